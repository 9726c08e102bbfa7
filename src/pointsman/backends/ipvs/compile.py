"""One plan to the IPVS objects of its service port. Pure and deterministic.

Differences from the other modes that kube-proxy's users know and rely on: a Local policy without local endpoints
falls back to all endpoints instead of dropping (external clients still fail, as their packets keep their source),
and a service without endpoints keeps an empty virtual server, which refuses.
"""

from __future__ import annotations

from collections.abc import Mapping

from pointsman.backends.ipvs import sets
from pointsman.backends.ipvs.fragment import WEIGHT, Fragment, SetMember
from pointsman.backends.ipvs.schedulers import MAGLEV, Choice, Schedulers
from pointsman.backends.ipvs.sets import SetSpec
from pointsman.kernel.ipset_objects import SetEntry
from pointsman.kernel.ipvs_objects import PERSISTENT, SCHEDULER_2, RealKey, VirtualKey, VirtualServer
from pointsman.model.addresses import is_link_local, is_loopback
from pointsman.model.balancing import BalancingPlan
from pointsman.model.endpoint import Endpoint
from pointsman.model.node_context import NodeContext
from pointsman.model.plan import Frontend, FrontendKind, ServicePlan
from pointsman.model.service import Protocol

_NODE_PORT_SETS = {
    Protocol.TCP: (sets.NODE_PORT_TCP, sets.NODE_PORT_LOCAL_TCP),
    Protocol.UDP: (sets.NODE_PORT_UDP, sets.NODE_PORT_LOCAL_UDP),
    Protocol.SCTP: (sets.NODE_PORT_SCTP, sets.NODE_PORT_LOCAL_SCTP),
}


def node_addresses(context: NodeContext) -> tuple[bytes, ...]:
    """The node's own addresses as far as services are concerned: no loopback, no IPv6 link-local."""
    return tuple(address for address in context.addresses_in_rules if _usable(address))


def node_port_addresses(context: NodeContext) -> tuple[bytes, ...]:
    """Where node ports get a virtual server each."""
    if context.node_port_addresses.match_all:
        return node_addresses(context)
    return tuple(address for address in context.node_port_addresses.addresses if _usable(address))


def _usable(address: bytes) -> bool:
    link_local = len(address) == 16 and is_link_local(address)
    return not link_local and not is_loopback(address)


class Compiler:
    """Compiles plans under one node context; make a new one when that changes."""

    def __init__(self, context: NodeContext, schedulers: Schedulers) -> None:
        self._schedulers = schedulers
        self._own = frozenset(node_addresses(context))
        self._node_ports_at = node_port_addresses(context)
        self._node_ip = context.node_ips[0] if context.node_ips else b""
        self._names = {spec: spec.name(context.family) for spec in sets.ALL}

    def fragment(self, plan: ServicePlan) -> Fragment:
        scheduler = self._schedulers.choice_for(plan)
        pieces = _Pieces(plan, scheduler)
        protocol = plan.port.protocol.value
        for endpoint in plan.all_endpoints:
            if endpoint.local:
                entry = SetEntry(endpoint.address, protocol, endpoint.port, endpoint.address)
                pieces.entries.append((self._names[sets.LOOP_BACK], entry))
        for frontend in plan.frontends:
            if frontend.kind is FrontendKind.NODE_PORT:
                self._node_port(pieces, frontend, plan.port.protocol)
            else:
                self._address(pieces, frontend, protocol)
        if plan.port.service.health_check_node_port:
            entry = SetEntry(port=plan.port.service.health_check_node_port)
            pieces.entries.append((self._names[sets.HEALTH_CHECK_NODE_PORT], entry))
        return Fragment(
            tuple(pieces.servers),
            tuple(dict.fromkeys(pieces.entries)),
            tuple(dict.fromkeys(pieces.addresses)),
            tuple(pieces.hidden),
            frozenset(RealKey(e.address, e.port) for e in plan.all_endpoints) if plan.resets_gone else None,
            f"{plan.name}: {scheduler.problem}" if scheduler.problem else "",
        )

    def _address(self, pieces: _Pieces, frontend: Frontend, protocol: int) -> None:
        address, port = frontend.address, frontend.port
        entry = SetEntry(address, protocol, port)
        for spec in _address_sets(frontend):
            pieces.entries.append((self._names[spec], entry))
        if frontend.source_ranges:
            self._source_ranges(pieces, frontend, protocol)
        pieces.serve(VirtualKey(protocol, address, port), local=frontend.local_policy)
        if frontend.kind is FrontendKind.CLUSTER_IP or address not in self._own:
            pieces.addresses.append(address)
            pieces.entries.append((self._names[sets.IPVS_IPS], SetEntry(address)))

    def _source_ranges(self, pieces: _Pieces, frontend: Frontend, protocol: int) -> None:
        address, port = frontend.address, frontend.port
        allowed = self._names[sets.LOAD_BALANCER_SOURCE_CIDR]
        for cidr in frontend.source_ranges:
            pieces.entries.append((allowed, SetEntry(address, protocol, port, cidr.network, cidr.prefix)))
        if self._node_ip and any(cidr.contains(self._node_ip) for cidr in frontend.source_ranges):
            # The node's own packets to an address it holds carry that very address as their source.
            entry = SetEntry(address, protocol, port, address)
            pieces.entries.append((self._names[sets.LOAD_BALANCER_SOURCE_IP], entry))
        else:
            pieces.hidden.append(VirtualKey(protocol, address, port))

    def _node_port(self, pieces: _Pieces, frontend: Frontend, protocol: Protocol) -> None:
        if not self._node_ports_at:
            return
        everyone, local = _NODE_PORT_SETS[protocol]
        if protocol is Protocol.SCTP:
            entries = [SetEntry(address, protocol.value, frontend.port) for address in self._node_ports_at]
        else:
            entries = [SetEntry(port=frontend.port)]
        for spec in (everyone, local) if frontend.local_policy else (everyone,):
            pieces.entries.extend((self._names[spec], entry) for entry in entries)
        for address in self._node_ports_at:
            pieces.serve(VirtualKey(protocol.value, address, frontend.port), local=frontend.local_policy)


def _address_sets(frontend: Frontend) -> tuple[SetSpec, ...]:
    if frontend.kind is FrontendKind.CLUSTER_IP:
        return (sets.CLUSTER_IP,)
    if frontend.kind is FrontendKind.EXTERNAL_IP:
        return (sets.EXTERNAL_IP_LOCAL if frontend.local_policy else sets.EXTERNAL_IP,)
    return (
        sets.LOAD_BALANCER,
        *((sets.LOAD_BALANCER_LOCAL,) if frontend.local_policy else ()),
        *((sets.LOAD_BALANCER_FIREWALL,) if frontend.source_ranges else ()),
    )


class _Pieces:
    """A fragment while it is put together."""

    def __init__(self, plan: ServicePlan, scheduler: Choice) -> None:
        self.servers: list[tuple[VirtualServer, Mapping[RealKey, int]]] = []
        self.entries: list[SetMember] = []
        self.addresses: list[bytes] = []
        self.hidden: list[VirtualKey] = []
        self._scheduler = scheduler.name
        self._timeout = plan.port.service.affinity_seconds
        self._flags = (PERSISTENT if self._timeout else 0) | (
            SCHEDULER_2 if scheduler.name == MAGLEV and scheduler.by_port else 0
        )
        self._everywhere = _weighed(plan.cluster_endpoints, plan.balancing)
        self._here = _weighed(plan.local_endpoints, plan.balancing)

    def serve(self, key: VirtualKey, *, local: bool) -> None:
        server = VirtualServer(key, self._scheduler, self._flags, self._timeout)
        self.servers.append((server, (self._here or self._everywhere) if local else self._everywhere))


def _weighed(endpoints: tuple[Endpoint, ...], balance: BalancingPlan | None) -> dict[RealKey, int]:
    return {RealKey(e.address, e.port): balance.weight(e) if balance else WEIGHT for e in endpoints}
