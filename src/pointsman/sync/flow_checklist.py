"""Which tracked flows must not live on, decided from plans alone.

A tracked flow keeps its first choice of endpoint for as long as packets come, and its first choice may have been none
at all: a packet that met no rule of ours is remembered as untranslated, and everything that follows goes the same
way. After the kernel took a change, these flows are stale:

UDP, at every service port whose plan changed in any way:

- addressed to a frontend of ours, and answered by an endpoint that does not serve any more (a terminating one that
  still serves keeps its flows, whatever the traffic policy says now);
- addressed to a frontend that has endpoints, and not translated: the flow began before there were any, or its packet
  slipped through while rules were replaced (iptables replaces its tables one after the other);
- addressed to a frontend that is gone, and translated to one of the endpoints it had.

TCP, at frontends that have just come into service, or whose source ranges have changed: neither translated nor answered.
Every retransmission of such a SYN would follow the first one into nowhere.

TCP, at service ports that ask for it: translated to an endpoint that was in some slice and is in none any more. The
client's next packet then meets another endpoint, which resets the connection, where it would have met nobody. Any other
TCP flow that was translated or answered is never touched, nor is one of a Service that is gone with its endpoints.

Never touched either: SCTP, service ports that did not change, and flows to a node port's number on addresses of other
machines.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Final, TypeVar

import msgspec

from pointsman.kernel.tracked_flows import Flow, FlowQuery
from pointsman.model.addresses import Cidr, is_loopback
from pointsman.model.endpoint import Identity
from pointsman.model.node_context import Situation
from pointsman.model.plan import FrontendKind, Outcome, ServicePlan
from pointsman.model.service import Protocol
from pointsman.sync.reconcile import PlanChange

MAX_EXACT_QUERIES: Final = 8
"""Up to so many ports are looked up one by one; beyond, one walk over all flows of the protocol is cheaper."""

_TCP: Final = Protocol.TCP.value
_UDP: Final = Protocol.UDP.value
_ANYWHERE: Final = b""
T = TypeVar("T")

FrontendKey = tuple[int, bytes, int]
"""Protocol number, address and port packets are sent to; the address is empty for a node port."""


class Served:
    """A frontend of this plan: its endpoints may answer.

    They are gathered when the first flow is found: after a start every frontend is checked, and most have no flow.
    """

    __slots__ = ("_plan", "_serving", "_translates")

    def __init__(self, plan: ServicePlan) -> None:
        self._plan = plan
        self._serving: frozenset[Identity] | None = None
        self._translates = False
        """Packets find an endpoint here, so that none should be answered by the frontend's own address."""

    def refutes(self, destination: Identity, answering: Identity) -> bool:
        if self._serving is None:
            self._serving, self._translates = _serving(self._plan), bool(_used(self._plan))
        return answering not in self._serving and (answering != destination or self._translates)


class Removed(msgspec.Struct, frozen=True, gc=False):
    """A frontend that is gone: who answered there before may not any more."""

    backends: frozenset[Identity]

    def refutes(self, _destination: Identity, answering: Identity) -> bool:
        return answering in self.backends


Expectation = Served | Removed


class Checklist(msgspec.Struct, frozen=True):
    """The frontends whose flows are to be checked."""

    frontends: Mapping[FrontendKey, Expectation]
    node_addresses: frozenset[bytes] = frozenset()
    """Where node ports answer, loopback apart."""
    loopback: bool = False
    left: Mapping[FrontendKey, frozenset[Identity]] = {}
    """Where connections to endpoints that have left are to be reset: who has."""

    def refutes(
        self, protocol: int, destination: Identity, answering: Identity, *, replied: bool = False
    ) -> bool:
        """Whether a flow to this destination must not go on being answered from there."""
        if protocol == _TCP and (answering != destination or replied):
            return answering != destination and answering in (
                self._at(self.left, protocol, destination) or ()
            )
        found = self._at(self.frontends, protocol, destination)
        return found is not None and found.refutes(destination, answering)

    def _at(self, by_frontend: Mapping[FrontendKey, T], protocol: int, destination: Identity) -> T | None:
        address, port = destination
        found = by_frontend.get((protocol, address, port))
        if found is None and self._answers_node_ports(address):
            found = by_frontend.get((protocol, _ANYWHERE, port))
        return found

    def _answers_node_ports(self, address: bytes) -> bool:
        return address in self.node_addresses or (
            self.loopback and len(address) == 4 and is_loopback(address)
        )

    def queries(self, most: int = MAX_EXACT_QUERIES) -> list[FlowQuery]:
        """What to ask the kernel for, with `most` exact queries per protocol or else one for all its flows."""
        handshakes = frozenset((_TCP,))
        return [*flow_queries(self.frontends, handshakes, most), *flow_queries(self.left, most=most)]


def flow_queries(
    frontends: Iterable[FrontendKey], unreplied: Container[int] = (), most: int = MAX_EXACT_QUERIES
) -> list[FlowQuery]:
    """What to ask the kernel for to see the flows to these frontends; only unanswered ones of some protocols."""
    asked: dict[int, dict[int, set[bytes]]] = {}
    for protocol, address, port in frontends:
        asked.setdefault(protocol, {}).setdefault(port, set()).add(address)
    return [
        query
        for protocol, by_port in asked.items()
        for query in _queries(protocol, by_port, most, unreplied=protocol in unreplied)
    ]


def _queries(
    protocol: int, by_port: Mapping[int, set[bytes]], most: int, *, unreplied: bool
) -> list[FlowQuery]:
    if len(by_port) > most:
        return [FlowQuery(protocol, unreplied=unreplied)]
    return [
        FlowQuery(protocol, (min(addresses) or None) if len(addresses) == 1 else None, port, unreplied)
        for port, addresses in by_port.items()
    ]


class Unsettled(msgspec.Struct, frozen=True, gc=False):
    """One service port whose flows are still to be checked: what it was since the last check, what it is now."""

    frontends: frozenset[FrontendKey]
    """Where to look."""
    backends: frozenset[Identity]
    """Endpoints it used before."""
    new: ServicePlan | None
    left: frozenset[Identity] = frozenset()
    """Endpoints it had before in any state, where connections to those that have left are to be reset."""


def _frontends(plan: ServicePlan | None) -> frozenset[FrontendKey]:
    if plan is None:
        return frozenset()
    number = plan.port.protocol.value
    return frozenset((number, entry.address, entry.port) for entry in plan.frontends)


def _serving(plan: ServicePlan | None) -> frozenset[Identity]:
    """Endpoints whose flows may live on, wherever they are and whatever the policy prefers."""
    if plan is None:
        return frozenset()
    return frozenset(entry.identity for entry in plan.all_endpoints if entry.serving)


def _listed(plan: ServicePlan | None) -> frozenset[Identity]:
    """Endpoints in any slice, whatever their state."""
    if plan is None:
        return frozenset()
    return frozenset(entry.identity for entry in plan.all_endpoints)


def _left(earlier: frozenset[Identity], change: PlanChange) -> frozenset[Identity]:
    """Who had left before or with this change, where that matters."""
    if change.new is None or not change.new.resets_gone:
        return frozenset()
    return (earlier | _listed(change.old)) - _listed(change.new)


def _used(plan: ServicePlan | None) -> frozenset[Identity]:
    """Endpoints that flows may lead to: those that serve, and those that packets are sent to."""
    if plan is None:
        return frozenset()
    return _serving(plan) | {entry.identity for entry in plan.reachable_endpoints}


_InService = tuple[FrontendKey, bool, tuple[Cidr, ...]]
"""A frontend, whether outsiders are served there too, and the source ranges that all of them must be in."""


def _in_service(plan: ServicePlan | None) -> frozenset[_InService]:
    """The frontends at which packets are translated, and whose.

    Pods and the node itself reach external frontends with policy Local also while this node has no endpoint.
    """
    if plan is None:
        return frozenset()
    found: set[_InService] = set()
    for entry in plan.frontends:
        key = (plan.port.protocol.value, entry.address, entry.port)
        if entry.outcome is Outcome.DELIVERED:
            found.add((key, True, entry.source_ranges))
        if plan.reachable_endpoints and entry.kind is not FrontendKind.CLUSTER_IP:
            found.add((key, False, entry.source_ranges))
    return frozenset(found)


def _to_check(change: PlanChange) -> frozenset[FrontendKey]:
    plan = change.new or change.old
    match plan.port.protocol if plan is not None else None:
        case Protocol.UDP:
            return _frontends(change.old) | _frontends(change.new)
        case Protocol.TCP:
            return frozenset(key for key, *_ in _in_service(change.new) - _in_service(change.old))
        case _:
            return frozenset()


def unsettled_after(earlier: Unsettled | None, change: PlanChange) -> Unsettled | None:
    """What is to be checked, given what was still to be checked before this change; None for nothing."""
    frontends, backends = _to_check(change), _used(change.old)
    left = _left(earlier.left if earlier is not None else frozenset(), change)
    if earlier is not None:
        frontends, backends = frontends | earlier.frontends, backends | earlier.backends
    return Unsettled(frontends, backends, change.new, left) if frontends or left else None


def seen_again(entry: Unsettled, now: ServicePlan | None) -> Unsettled:
    """What a second look is about, given the plan of now: packets that were on their way while rules changed.

    Connections to endpoints that have left are no part of it: one may have come back.
    """
    return Unsettled(entry.frontends, entry.backends, now)


def checklist_of(unsettled: Iterable[Unsettled], situation: Situation) -> Checklist:
    """Present frontends win over removed ones: an address may have passed to another service port."""
    present: dict[FrontendKey, Expectation] = {}
    removed: dict[FrontendKey, frozenset[Identity]] = {}
    left: dict[FrontendKey, frozenset[Identity]] = {}
    for entry in unsettled:
        now = _frontends(entry.new)
        if entry.new is not None:
            present |= dict.fromkeys(entry.frontends & now, Served(entry.new))
        if entry.left:
            left |= dict.fromkeys(now, entry.left)
        for key in entry.frontends - now:
            if key[0] == _UDP:
                removed[key] = removed.get(key, frozenset()) | entry.backends
    selected = situation.context.node_port_addresses
    everywhere = (*situation.own_addresses, *situation.context.node_ips)
    return Checklist(
        {key: Removed(backends) for key, backends in removed.items()} | present,
        frozenset(everywhere if selected.match_all else selected.addresses),
        selected.loopback,
        left,
    )


def stale_flows(flows: Iterable[Flow], checklist: Checklist) -> list[Flow]:
    """The flows to delete."""
    return [
        flow
        for flow in flows
        if checklist.refutes(
            flow.protocol,
            (flow.destination, flow.destination_port),
            (flow.reply_source, flow.reply_source_port),
            replied=flow.replied,
        )
    ]
