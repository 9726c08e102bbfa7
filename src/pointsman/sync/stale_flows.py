"""Which tracked flows are stale, decided from plans alone.

A tracked flow keeps its first endpoint for as long as packets arrive, and a flow whose first packet matched no rule stays
untranslated. After the kernel accepted a change, these flows are stale:

UDP, at every service port whose plan changed in any way:

- sent to a frontend and answered by an endpoint that does not serve any more (a terminating endpoint that still serves
  keeps its flows, whatever the traffic policy; where the Service requests it, a terminating endpoint keeps them until it
  is in no slice);
- sent to a frontend that has endpoints and not translated: the flow began before there were any, or its packet passed
  while rules were replaced (iptables replaces its tables one after the other);
- sent to a frontend that was removed and translated to one of the endpoints it had.

TCP, at frontends that have just come into service or whose source ranges changed: neither translated nor answered.
Every retransmission of such a SYN would follow the first one and be lost, too.

TCP, at service ports that request it: translated to an endpoint that was in a slice and is in none any more. The next
packet of the client then reaches another endpoint, which resets the connection, instead of an address without a host. No
other TCP flow that was translated or answered is deleted, nor one of a Service that was removed with its endpoints.

Never deleted: SCTP flows, flows of service ports that did not change, and flows to the number of a node port on addresses
of other machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeVar

import msgspec

from pointsman.kernel.flow_count import MAX_EXACT_QUERIES, FrontendKey, build_flow_queries
from pointsman.kernel.tracked_flows import Flow, FlowQuery
from pointsman.model.addresses import Cidr, is_loopback
from pointsman.model.endpoint import Identity
from pointsman.model.node_context import NodeContext
from pointsman.model.plan import FrontendKind, Outcome, ServicePlan
from pointsman.model.service import Protocol, ServicePortName
from pointsman.sync.reconcile import PlanChange

_TCP: Final = Protocol.TCP.value
_UDP: Final = Protocol.UDP.value
_ANY_ADDRESS: Final = b""
T = TypeVar("T")


class PendingCheck(msgspec.Struct, frozen=True, gc=False):
    """What one service port had since its flows were checked last, each value once.

    Tuples, because after a full sync there is one for each service port, and most have one frontend: a set takes four times the memory.
    """

    frontends: tuple[FrontendKey, ...]
    """Where to look for stale flows."""
    endpoints: tuple[Identity, ...]
    """Endpoints that UDP flows may have been translated to."""
    listed: tuple[Identity, ...] = ()
    """Endpoints in any state, where connections to removed ones are reset."""

    def for_second_check(self) -> PendingCheck:
        """Return what to look for again; a connection to a removed endpoint is not tracked late."""
        return PendingCheck(self.frontends, self.endpoints)


def extend_check(earlier: PendingCheck | None, change: PlanChange) -> PendingCheck | None:
    """Return what to check after a change, given what was still to be checked before; None for nothing.

    This runs on the event loop: endpoints are collected only where they decide about a flow.
    """
    frontends = _find_affected_frontends(change)
    endpoints = (
        _collect_used(change.old) if any(protocol == _UDP for protocol, *_ in frontends) else frozenset()
    )
    resets = change.new is not None and change.new.resets_gone
    listed = _collect_listed(change.old) if resets else frozenset()
    if earlier is not None:
        frontends, endpoints = frontends.union(earlier.frontends), endpoints.union(earlier.endpoints)
        listed = listed.union(earlier.listed) if resets else listed
    removed = listed - _collect_listed(change.new) if listed else listed
    return PendingCheck(tuple(frontends), tuple(endpoints), tuple(listed)) if frontends or removed else None


class FlowCheck:
    """Decides for each flow whether it is stale.

    `plans` are the current ones. A frontend is checked by its current owner, because an address may have passed from one service
    port to another.
    """

    def __init__(
        self,
        pending: Iterable[tuple[ServicePortName, PendingCheck]],
        plans: Mapping[ServicePortName, ServicePlan],
        context: NodeContext,
        own_addresses: Iterable[bytes],
    ) -> None:
        self._owners: dict[FrontendKey, ServicePlan] = {}
        self._former: dict[FrontendKey, frozenset[Identity]] = {}
        """Endpoints of frontends without an owner."""
        self._removed: dict[FrontendKey, frozenset[Identity]] = {}
        """Endpoints whose connections are to be reset."""
        self._serving: dict[ServicePortName, tuple[frozenset[Identity], bool]] = {}
        selected = context.node_port_addresses
        everywhere = (*own_addresses, *context.node_ips)
        self._node_addresses = frozenset(everywhere if selected.match_all else selected.addresses)
        self._loopback = selected.loopback
        for name, check in pending:
            self._add(check, plans.get(name))
        if self._former:
            self._find_new_owners(plans.values())

    def is_stale(
        self, protocol: int, destination: Identity, answering: Identity, *, replied: bool = False
    ) -> bool:
        """Return whether a flow to `destination` must no longer be answered by `answering`."""
        translated = answering != destination
        if protocol == _TCP and (translated or replied):
            return translated and answering in (self._find(self._removed, protocol, destination) or ())
        owner = self._find(self._owners, protocol, destination)
        if owner is None:
            return answering in (self._find(self._former, protocol, destination) or ())
        serving, has_endpoints = self._find_serving(owner)
        return answering not in serving and (translated or has_endpoints)

    def find_stale(self, flows: Iterable[Flow]) -> list[Flow]:
        return [
            flow
            for flow in flows
            if self.is_stale(
                flow.protocol,
                (flow.destination, flow.destination_port),
                (flow.reply_source, flow.reply_source_port),
                replied=flow.replied,
            )
        ]

    def build_queries(self, max_exact: int = MAX_EXACT_QUERIES) -> list[FlowQuery]:
        """Return the queries for the kernel: at most `max_exact` per protocol, or else one for all its flows."""
        frontends = self._owners.keys() | self._former.keys()
        return [
            *build_flow_queries(frontends, unreplied=(_TCP,), max_exact=max_exact),
            *build_flow_queries(self._removed, max_exact=max_exact),
        ]

    def _add(self, check: PendingCheck, plan: ServicePlan | None) -> None:
        current = _collect_frontends(plan)
        if plan is not None:
            self._owners |= dict.fromkeys(current.intersection(check.frontends), plan)
        removed = frozenset(check.listed) - _collect_listed(plan) if check.listed else frozenset()
        if removed:
            self._removed |= dict.fromkeys(current, removed)
        for key in check.frontends:
            if key[0] == _UDP and key not in current:
                self._former[key] = self._former.get(key, frozenset()).union(check.endpoints)

    def _find_new_owners(self, plans: Iterable[ServicePlan]) -> None:
        for plan in plans:
            for key in _list_frontend_keys(plan):
                if key in self._former:
                    del self._former[key]
                    self._owners[key] = plan

    def _find(self, by_frontend: Mapping[FrontendKey, T], protocol: int, destination: Identity) -> T | None:
        address, port = destination
        found = by_frontend.get((protocol, address, port))
        if found is None and self._serves_node_ports(address):
            found = by_frontend.get((protocol, _ANY_ADDRESS, port))
        return found

    def _serves_node_ports(self, address: bytes) -> bool:
        return address in self._node_addresses or (
            self._loopback and len(address) == 4 and is_loopback(address)
        )

    def _find_serving(self, plan: ServicePlan) -> tuple[frozenset[Identity], bool]:
        """Return the endpoints whose flows are kept, and whether the service port has any endpoint.

        Computed for the first flow: after a start every frontend is checked, and most have no flows.
        """
        found = self._serving.get(plan.name)
        if found is None:
            found = self._serving[plan.name] = (_collect_serving(plan), bool(_collect_used(plan)))
        return found


def _list_frontend_keys(plan: ServicePlan) -> Iterator[FrontendKey]:
    number = plan.port.protocol.value
    return ((number, entry.address, entry.port) for entry in plan.frontends)


def _collect_frontends(plan: ServicePlan | None) -> frozenset[FrontendKey]:
    return frozenset(_list_frontend_keys(plan)) if plan is not None else frozenset()


def _collect_serving(plan: ServicePlan | None) -> frozenset[Identity]:
    """Return the endpoints whose flows are kept, on any node and whatever the policy prefers."""
    if plan is None:
        return frozenset()
    keeps = plan.port.keeps_draining
    return frozenset(
        [
            (entry.address, entry.port)
            for entry in plan.endpoints.all
            if entry.state.serving or (keeps and entry.state.terminating)
        ]
    )


def _collect_listed(plan: ServicePlan | None) -> frozenset[Identity]:
    """Return the endpoints in any slice, whatever their state."""
    if plan is None:
        return frozenset()
    return frozenset([(entry.address, entry.port) for entry in plan.endpoints.all])


def _collect_used(plan: ServicePlan | None) -> frozenset[Identity]:
    """Return the endpoints that flows may lead to: those that serve, and those that packets are sent to."""
    if plan is None:
        return frozenset()
    return _collect_serving(plan).union([(entry.address, entry.port) for entry in plan.endpoints.reachable])


_InService = tuple[FrontendKey, bool, tuple[Cidr, ...]]
"""A frontend, whether external clients are served there, and the source ranges that restrict them."""


def _find_in_service(plan: ServicePlan | None) -> frozenset[_InService]:
    """Return the frontends at which packets are translated, and for which clients.

    Pods and the node itself reach external frontends with policy Local also while this node has no endpoint.
    """
    if plan is None:
        return frozenset()
    found: set[_InService] = set()
    for entry in plan.frontends:
        key = (plan.port.protocol.value, entry.address, entry.port)
        if entry.outcome is Outcome.DELIVERED:
            found.add((key, True, entry.source_ranges))
        if plan.endpoints.reachable and entry.kind is not FrontendKind.CLUSTER_IP:
            found.add((key, False, entry.source_ranges))
    return frozenset(found)


def _find_affected_frontends(change: PlanChange) -> frozenset[FrontendKey]:
    plan = change.new or change.old
    match plan.port.protocol if plan is not None else None:
        case Protocol.UDP:
            return _collect_frontends(change.old) | _collect_frontends(change.new)
        case Protocol.TCP:
            return frozenset(key for key, *_ in _find_in_service(change.new) - _find_in_service(change.old))
        case _:
            return frozenset()
