"""What happens to a packet, by mode, frontend, policy and client: the proxy's behaviour as one table of decisions. Pure.

The backends' compile steps turn the same plans into rules; this is what those rules do. The end-to-end tests compare
the two with real packets.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from pointsman.backends.contract import LoopbackNodePort, Mode, PacketQuirks
from pointsman.explain.target import BadQuestion
from pointsman.explain.view import FamilyView
from pointsman.model.addresses import address_from_text, address_text, family_of, is_loopback
from pointsman.model.decision import ClientKind, DecisionReason, SourceAddress, State
from pointsman.model.endpoint import Endpoint
from pointsman.model.node_context import LocalMode
from pointsman.model.plan import Frontend, FrontendKind, Outcome, ServicePlan
from pointsman.model.service import Protocol


class Client(msgspec.Struct, frozen=True):
    """A client; the address is empty when only the kind is known."""

    kind: ClientKind
    address: bytes = b""

    @property
    def spec(self) -> str:
        """As a parameter of findings: `KIND` or `KIND ADDRESS`."""
        return f"{self.kind} {address_text(self.address)}" if self.address else self.kind.value


class Decision(NamedTuple):
    """What happens to a connection, and what decided it."""

    outcome: Outcome
    reason: DecisionReason
    endpoints: tuple[Endpoint, ...] = ()
    policy: str = ""
    """The traffic policy that chose the endpoints."""


ALL_CLIENTS = tuple(Client(kind) for kind in ClientKind)


def check_client(text: str, families: Iterable[FamilyView]) -> None:
    """Raise BadQuestion unless `--from TEXT` is a client."""
    known = not text or text in {kind.value for kind in ClientKind} or address_from_text(text) is not None
    if not known and not any(_find_pod_addresses(text, family) for family in families):
        raise BadQuestion(
            f"--from {text!r}: use pod, node, outside, an IP address or the name of a pod that is an endpoint"
        )


def parse_clients(text: str, view: FamilyView) -> tuple[Client, ...]:
    """Return the clients that `--from TEXT` means in this family; none when the address is of the other one."""
    if not text:
        return ALL_CLIENTS
    kinds = {kind.value: kind for kind in ClientKind}
    if text in kinds:
        return (Client(kinds[text]),)
    address = address_from_text(text)
    if address is None:
        return tuple(Client(_find_kind(one, view), one) for one in _find_pod_addresses(text, view))
    if family_of(address) is not view.family:
        return ()
    return (Client(_find_kind(address, view), address),)


def _find_pod_addresses(text: str, view: FamilyView) -> list[bytes]:
    """Return the addresses of a pod, by its name or NAMESPACE/NAME, where it is an endpoint of some Service."""
    namespace, _, pod = text.rpartition("/")
    return sorted(
        {
            endpoint.address
            for name, state in view.states.items()
            if namespace in ("", name.namespace)
            for endpoint in state.endpoints
            if endpoint.pod == pod
        }
    )


def _find_kind(address: bytes, view: FamilyView) -> ClientKind:
    if address in view.node_addresses or is_loopback(address):
        return ClientKind.NODE
    local = view.context.local
    if local.mode is LocalMode.CIDR and local.cidr is not None:
        return ClientKind.POD if local.cidr.contains(address) else ClientKind.OUTSIDE
    here = any(cidr.contains(address) for cidr in view.pod_ranges) or any(
        e.address == address and e.local for state in view.states.values() for e in state.endpoints
    )
    return ClientKind.POD if here else ClientKind.OUTSIDE


def decide(plan: ServicePlan, frontend: Frontend, client: Client, view: FamilyView, mode: Mode) -> Decision:
    """Return what happens to a connection of this client to this frontend."""
    quirks = mode.quirks
    if is_excluded(frontend, client, view):
        rejects = quirks.rejects_denied_when_empty and not plan.endpoints.has_any
        return Decision(Outcome.REJECTED if rejects else Outcome.DROPPED, DecisionReason.SOURCE_RANGES)
    if frontend.kind is FrontendKind.NODE_PORT and serves_no_node_ports(view):
        return Decision(Outcome.REJECTED, DecisionReason.NODE_PORT_ADDRESSES)
    local = _uses_local_endpoints(plan, frontend, client, view, quirks)
    endpoints = plan.endpoints.local if local else plan.endpoints.cluster
    if endpoints:
        return Decision(
            Outcome.DELIVERED, DecisionReason.ENDPOINTS, endpoints, "Local" if local else "Cluster"
        )
    return _decide_without_endpoints(plan, frontend, client, quirks)


def _uses_local_endpoints(
    plan: ServicePlan, frontend: Frontend, client: Client, view: FamilyView, quirks: PacketQuirks
) -> bool:
    if not frontend.local_policy:
        return False
    if quirks.local_falls_back:
        return bool(plan.endpoints.local) or client.kind is ClientKind.OUTSIDE
    if frontend.kind is FrontendKind.CLUSTER_IP:
        return True
    short_circuits = client.kind is ClientKind.NODE or (
        client.kind is ClientKind.POD and view.context.local.mode is not LocalMode.NONE
    )
    return not short_circuits


def _decide_without_endpoints(
    plan: ServicePlan, frontend: Frontend, client: Client, quirks: PacketQuirks
) -> Decision:
    internal = frontend.kind is FrontendKind.CLUSTER_IP
    if quirks.local_falls_back and plan.endpoints.cluster:
        return Decision(Outcome.DROPPED, DecisionReason.REPLIES_BYPASS_NODE)
    if plan.endpoints.has_any and frontend.local_policy and not (quirks.local_falls_back and internal):
        return Decision(Outcome.DROPPED, DecisionReason.NO_LOCAL_ENDPOINT)
    external = frontend.kind in (FrontendKind.LOAD_BALANCER_IP, FrontendKind.EXTERNAL_IP)
    if quirks.own_packets_leave and client.kind is ClientKind.NODE and external:
        return Decision(Outcome.DROPPED, DecisionReason.LEAVES_NODE)
    return Decision(Outcome.REJECTED, DecisionReason.NO_ENDPOINT)


def compute_state(plan: ServicePlan, view: FamilyView, mode: Mode) -> State:
    """Return the state for every kind of client; the kernel is not read, except for rules that it rejected and clients that it blocks."""
    if plan.name in view.rejected:
        return State.DOWN
    decisions = (
        (client, decide(plan, frontend, client, view, mode))
        for frontend in plan.frontends
        for client in ALL_CLIENTS
    )
    return combine_outcomes(
        Outcome.DROPPED if _is_blocked(client, decision, view) else decision.outcome
        for client, decision in decisions
        if decision.reason is not DecisionReason.SOURCE_RANGES
    )


def _is_blocked(client: Client, decision: Decision, view: FamilyView) -> bool:
    """Return whether this host keeps the connection from every endpoint."""
    if not view.blocked and not view.unreachable:
        return False
    addresses = [endpoint.address for endpoint in decision.endpoints]
    if client.kind in view.blocked and not any(address in view.node_addresses for address in addresses):
        return True
    return bool(view.unreachable and addresses) and view.unreachable.issuperset(addresses)


def combine_outcomes(outcomes: Iterable[Outcome]) -> State:
    """Return the state that these outcomes, of every client at every frontend, make up."""
    delivered = [outcome is Outcome.DELIVERED for outcome in outcomes]
    if not any(delivered):
        return State.DOWN
    return State.HEALTHY if all(delivered) else State.PARTIAL


def is_excluded(frontend: Frontend, client: Client, view: FamilyView) -> bool:
    """Return whether the load balancer's source ranges certainly exclude this client."""
    ranges = frontend.source_ranges
    if not ranges:
        return False
    if client.kind is ClientKind.NODE:
        return not any(cidr.contains(ip) for ip in view.context.node_ips for cidr in ranges)
    return bool(client.address) and not any(cidr.contains(client.address) for cidr in ranges)


def is_conditional(frontend: Frontend, client: Client) -> bool:
    """Return whether source ranges may exclude this client, whose address is not known."""
    return bool(frontend.source_ranges) and not client.address and client.kind is not ClientKind.NODE


def decide_source(
    frontend: Frontend, client: Client, view: FamilyView, mode: Mode, endpoints: tuple[Endpoint, ...]
) -> SourceAddress:
    """Return what becomes of the client's address on the way to the endpoint."""
    external = frontend.kind in (FrontendKind.LOAD_BALANCER_IP, FrontendKind.EXTERNAL_IP)
    if mode.quirks.holds_addresses and client.kind is ClientKind.NODE and external and frontend.local_policy:
        return SourceAddress.FRONTEND
    if is_masqueraded(frontend, client, view):
        on_node = [endpoint.address in view.node_addresses for endpoint in endpoints]
        if all(on_node):
            return SourceAddress.KEPT_ON_NODE
        return SourceAddress.MASQUERADED_EXCEPT_NODE if any(on_node) else SourceAddress.MASQUERADED
    hairpin = client.kind is ClientKind.POD and any(
        endpoint.address == client.address if client.address else endpoint.local for endpoint in endpoints
    )
    return SourceAddress.KEPT_EXCEPT_HAIRPIN if hairpin else SourceAddress.KEPT


def is_masqueraded(frontend: Frontend, client: Client, view: FamilyView) -> bool:
    """Return whether the proxy's own rules replace the client's address."""
    context = view.context
    detects = context.local.mode is not LocalMode.NONE
    if frontend.kind is FrontendKind.CLUSTER_IP:
        return context.masquerade_all or (detects and client.kind is not ClientKind.POD)
    if not frontend.local_policy:
        return True
    return client.kind is ClientKind.NODE


def serves_no_node_ports(view: FamilyView) -> bool:
    """Return whether nodePortAddresses selects no address of this node."""
    where = view.context.node_port_addresses
    return not where.match_all and not where.addresses


def find_node_port_denial(address: bytes, protocol: Protocol, view: FamilyView, mode: Mode) -> str:
    """Return why node ports are not served at this address of the node; empty when they are."""
    where = view.context.node_port_addresses
    text = address_text(address)
    if is_loopback(address):
        return mode.quirks.loopback_denial(
            LoopbackNodePort(address, protocol, where, view.localhost_node_ports)
        )
    if address not in view.node_addresses:
        return f"{text} is not an address of this node"
    if where.match_all or address in where.addresses:
        return ""
    served = ", ".join(address_text(one) for one in where.addresses) or "none"
    usual = mode.quirks.usual_node_ports
    default = f"; in {mode.name} mode the default is {usual}" if usual else ""
    return f"nodePortAddresses does not select {text}, only {served}{default}"
