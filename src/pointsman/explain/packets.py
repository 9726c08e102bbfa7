"""What a packet meets, by mode, frontend, policy and client: the proxy's behaviour as one table of decisions. Pure.

The backends' compile steps turn the same plans into rules; this is what those rules do, said in words. The
end-to-end tests pin the behaviour, the tests of this module pin the words to it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec

from pointsman.backends.contract import Mode
from pointsman.backends.packet_quirks import LoopbackNodePort, PacketQuirks
from pointsman.explain.report import Path
from pointsman.explain.target import BadQuestion
from pointsman.explain.view import FamilyView
from pointsman.model.addresses import address_from_text, address_text, family_of, is_loopback
from pointsman.model.endpoint import Endpoint
from pointsman.model.node_context import LocalMode
from pointsman.model.plan import Frontend, FrontendKind, ServicePlan
from pointsman.model.service import Protocol

REFUSED = "refused (the client fails at once)"
SILENT = "silently dropped (the client times out)"


class ClientKind(enum.Enum):
    """Where a connection comes from."""

    POD = "pod"
    NODE = "node"
    OUTSIDE = "outside"


_WORDS = {
    ClientKind.POD: "a pod of this node",
    ClientKind.NODE: "this node itself",
    ClientKind.OUTSIDE: "an external client",
}
_ADDRESSED_POD = "a pod"
"""With a cluster-wide range, pods of other nodes count as local, too."""


class Client(msgspec.Struct, frozen=True):
    """A client; the address is empty when only the kind is known."""

    kind: ClientKind
    address: bytes = b""

    @property
    def words(self) -> str:
        if not self.address:
            return _WORDS[self.kind]
        words = _ADDRESSED_POD if self.kind is ClientKind.POD else _WORDS[self.kind]
        return f"{address_text(self.address)} ({words})"


EVERYONE = tuple(Client(kind) for kind in ClientKind)


def check_client(text: str, families: Iterable[FamilyView]) -> None:
    """Raises BadQuestion unless `--from TEXT` means somebody."""
    known = not text or text in {kind.value for kind in ClientKind} or address_from_text(text) is not None
    if not known and not any(_addresses_of_pod(text, family) for family in families):
        raise BadQuestion(
            f"--from {text!r}: say pod, node, outside, an IP address or the name of a pod that is an endpoint"
        )


def clients_of(text: str, view: FamilyView) -> tuple[Client, ...]:
    """The clients that `--from TEXT` means in this family; none when the address is of the other one."""
    if not text:
        return EVERYONE
    kinds = {kind.value: kind for kind in ClientKind}
    if text in kinds:
        return (Client(kinds[text]),)
    address = address_from_text(text)
    if address is None:
        return tuple(Client(_kind_of(one, view), one) for one in _addresses_of_pod(text, view))
    if family_of(address) is not view.family:
        return ()
    return (Client(_kind_of(address, view), address),)


def _addresses_of_pod(text: str, view: FamilyView) -> list[bytes]:
    """Where a pod is, by its name or NAMESPACE/NAME, as far as it is an endpoint of some Service."""
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


def _kind_of(address: bytes, view: FamilyView) -> ClientKind:
    if address in view.node_addresses or is_loopback(address):
        return ClientKind.NODE
    local = view.context.local
    if local.mode is LocalMode.CIDR and local.cidr is not None:
        return ClientKind.POD if local.cidr.contains(address) else ClientKind.OUTSIDE
    here = any(cidr.contains(address) for cidr in view.pod_ranges) or any(
        e.address == address and e.local for state in view.states.values() for e in state.endpoints
    )
    return ClientKind.POD if here else ClientKind.OUTSIDE


def path(plan: ServicePlan, frontend: Frontend, client: Client, view: FamilyView, mode: Mode) -> Path:
    """What a connection of this client to this frontend meets."""
    denied = denied_by_ranges(frontend, client, view)
    if denied:
        meets = REFUSED if mode.quirks.refuses_denied_when_empty and not plan.endpoints.has_any else SILENT
        return Path(client.words, answered=False, result=f"{meets}: {denied}", restricted=True)
    if frontend.kind is FrontendKind.NODE_PORT and serves_node_ports_nowhere(view):
        return Path(
            client.words, answered=False, result="not answered: nodePortAddresses selects no address here"
        )
    endpoints = endpoints_for(plan, frontend, client, view, mode.quirks)
    if not endpoints:
        return Path(client.words, answered=False, result=_nothing(plan, frontend, client, mode))
    count = "1 endpoint" if len(endpoints) == 1 else f"one of {len(endpoints)} endpoints"
    condition = ""
    if frontend.source_ranges and not client.address and client.kind is not ClientKind.NODE:
        condition = ", if its address is in the source ranges"
    return Path(
        client.words,
        answered=True,
        result=f"answered by {count}{condition}",
        endpoints=tuple(str(endpoint) for endpoint in endpoints),
        source=_source(frontend, client, view, mode, endpoints),
    )


def reached(
    plan: ServicePlan, frontend: Frontend, client: Client, view: FamilyView, mode: Mode
) -> tuple[Endpoint, ...]:
    """The endpoints among which a connection of this client to this frontend ends up; none: it is not answered."""
    if denied_by_ranges(frontend, client, view):
        return ()
    if frontend.kind is FrontendKind.NODE_PORT and serves_node_ports_nowhere(view):
        return ()
    return endpoints_for(plan, frontend, client, view, mode.quirks)


def denied_by_ranges(frontend: Frontend, client: Client, view: FamilyView) -> str:
    """Why the load balancer's source ranges keep this client out; empty when they do not, or may not."""
    ranges = frontend.source_ranges
    if not ranges:
        return ""
    if client.kind is ClientKind.NODE:
        own = view.context.node_ips
        if any(cidr.contains(ip) for ip in own for cidr in ranges):
            return ""
        return "the node's own address is not in loadBalancerSourceRanges"
    if client.address and not any(cidr.contains(client.address) for cidr in ranges):
        return f"{address_text(client.address)} is not in loadBalancerSourceRanges"
    return ""


def endpoints_for(
    plan: ServicePlan, frontend: Frontend, client: Client, view: FamilyView, quirks: PacketQuirks
) -> tuple[Endpoint, ...]:
    """Where connections of this client to this frontend may lead."""
    if not frontend.local_policy:
        return plan.endpoints.cluster
    inside = client.kind is not ClientKind.OUTSIDE
    if quirks.local_falls_back:
        if plan.endpoints.local:
            return plan.endpoints.local
        return plan.endpoints.cluster if inside else ()
    if frontend.kind is FrontendKind.CLUSTER_IP:
        return plan.endpoints.local
    short_circuit = client.kind is ClientKind.NODE or (
        client.kind is ClientKind.POD and view.context.local.mode is not LocalMode.NONE
    )
    return plan.endpoints.cluster if short_circuit else plan.endpoints.local


def _nothing(plan: ServicePlan, frontend: Frontend, client: Client, mode: Mode) -> str:
    internal = frontend.kind is FrontendKind.CLUSTER_IP
    if mode.quirks.local_falls_back and plan.endpoints.cluster:
        return (
            "not answered: sent to remote endpoints with the client's own address; their answers go to it past this "
            "node, so it usually times out"
        )
    if plan.endpoints.has_any and frontend.local_policy and not (mode.quirks.local_falls_back and internal):
        return f"{SILENT}: policy Local and no usable endpoint on this node"
    external = frontend.kind in (FrontendKind.LOAD_BALANCER_IP, FrontendKind.EXTERNAL_IP)
    if mode.quirks.own_packets_leave and client.kind is ClientKind.NODE and external:
        return f"not answered: no usable endpoint; {mode.name} mode lets the node's own packet leave, so it times out"
    return f"{REFUSED}: no usable endpoint"


def _source(
    frontend: Frontend, client: Client, view: FamilyView, mode: Mode, endpoints: tuple[Endpoint, ...]
) -> str:
    """What the endpoint sees as the source."""
    external = frontend.kind in (FrontendKind.LOAD_BALANCER_IP, FrontendKind.EXTERNAL_IP)
    if mode.quirks.holds_addresses and client.kind is ClientKind.NODE and external and frontend.local_policy:
        return f"the endpoint sees {address_text(frontend.address)}, which the node itself holds in {mode.name} mode"
    if masqueraded(frontend, client, view):
        itself = [endpoint.address in view.node_addresses for endpoint in endpoints]
        if all(itself):
            return "kept (the endpoint is this node itself)"
        exception = " (an endpoint that is this node itself: kept)" if any(itself) else ""
        return f"becomes this node's address towards the endpoint{exception}"
    hairpin = client.kind is ClientKind.POD and any(
        endpoint.address == client.address if client.address else endpoint.local for endpoint in endpoints
    )
    return f"kept{' (a pod reaching itself: masqueraded)' if hairpin else ''}"


def masqueraded(frontend: Frontend, client: Client, view: FamilyView) -> bool:
    """Whether the proxy's own rules replace the client's address."""
    context = view.context
    detects = context.local.mode is not LocalMode.NONE
    if frontend.kind is FrontendKind.CLUSTER_IP:
        return context.masquerade_all or (detects and client.kind is not ClientKind.POD)
    if not frontend.local_policy:
        return True
    return client.kind is ClientKind.NODE


def serves_node_ports_nowhere(view: FamilyView) -> bool:
    where = view.context.node_port_addresses
    return not where.match_all and not where.addresses


def node_port_denial(address: bytes, protocol: Protocol, view: FamilyView, mode: Mode) -> str:
    """Why node ports do not answer at this address of the node; empty when they do."""
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
