"""Compiles one plan to the rows of its service port. Pure and deterministic.

Two differences from the other modes are kube-proxy's, and its users rely on them: policy Local without local endpoints
falls back to all endpoints instead of dropping (external clients still fail, as their packets keep their source), and a
Service without endpoints keeps an empty virtual server, which rejects.

The scheduler is the configured one, or the one that the Service's annotation requests where the kernel has it. That is probed
before anything is compiled (`Schedulers.probe`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from pointsman.backends.ipvs import sets
from pointsman.backends.ipvs.sets import SetSpec
from pointsman.backends.ledger import Row
from pointsman.kernel.ipvs_objects import (
    PERSISTENT,
    SCHEDULER_2,
    RealKey,
    SetEntry,
    VirtualKey,
    VirtualServer,
)
from pointsman.model.addresses import is_link_local, is_loopback
from pointsman.model.balancing import IPVS_SCHEDULERS, BalancingPlan, Scheduler
from pointsman.model.endpoint import Endpoint
from pointsman.model.node_context import NodeContext
from pointsman.model.plan import Frontend, FrontendKind, ServicePlan
from pointsman.model.service import Protocol

# Kinds of rows; the entries of an ipset are rows of a kind that has the name of the set.
SERVER = "virtual servers"
ADDRESS = "addresses"
"""On the dummy device."""
BLOCKED = "load-balancer addresses blocked for the node"
"""The node itself may not use these virtual servers: it is outside their source ranges."""

DEFAULT_WEIGHT = 1
"""Of a real server whose Service has no weights; a draining one has 0."""


_NODE_PORT_SETS = {
    Protocol.TCP: (sets.NODE_PORT_TCP, sets.NODE_PORT_LOCAL_TCP),
    Protocol.UDP: (sets.NODE_PORT_UDP, sets.NODE_PORT_LOCAL_UDP),
    Protocol.SCTP: (sets.NODE_PORT_SCTP, sets.NODE_PORT_LOCAL_SCTP),
}

MAGLEV = "mh"

_CLOSEST = {
    Scheduler.RANDOM: "rr",
    Scheduler.WEIGHTED: "wrr",
    Scheduler.LEAST_CONNECTIONS: "lc",
    Scheduler.SOURCE_HASH: MAGLEV,
    Scheduler.SOURCE_PORT_HASH: MAGLEV,
}
"""The IPVS scheduler that comes closest to each scheduler of the annotation for all modes."""


class Choice(NamedTuple):
    """An IPVS scheduler."""

    name: str
    by_port: bool = True
    """With `mh`: the client's port is part of the hash."""


def _find_request(plan: ServicePlan) -> Choice | None:
    """Return what a service port requests: the annotation for this mode has precedence over the one for all modes."""
    settings, balancing = plan.port.service, plan.balancing
    if settings.ipvs_scheduler:
        return Choice(settings.ipvs_scheduler)
    word, scheduler = settings.balancing.requested_name, settings.balancing.scheduler
    if scheduler is None and balancing is not None and balancing.scheduler is Scheduler.WEIGHTED:
        scheduler = Scheduler.WEIGHTED
    if scheduler is None or word in IPVS_SCHEDULERS:
        return Choice(word) if word else None
    name = _CLOSEST[scheduler]
    if scheduler is Scheduler.LEAST_CONNECTIONS and balancing is not None and balancing.weights:
        name = "wlc"
    return Choice(name, by_port=scheduler is not Scheduler.SOURCE_HASH)


class Schedulers(msgspec.Struct, frozen=True):
    """The schedulers of a kernel; those that were not probed are taken to exist."""

    default: str
    """Of Services that request none, and instead of missing ones."""
    probed: Mapping[str, bool] = {}
    """By name: the kernel has it."""

    def probe(self, plans: Iterable[ServicePlan], has_scheduler: Callable[[str], bool]) -> Schedulers:
        """Return the same with everything that plans request; `has_scheduler` is called once for each name."""
        requests = (_find_request(plan) for plan in plans)
        requested = {request.name for request in requests if request is not None}
        new = requested - self.probed.keys() - {self.default}
        return Schedulers(self.default, {**self.probed, **{name: has_scheduler(name) for name in new}})

    def choose(self, plan: ServicePlan) -> Choice:
        """Return the requested scheduler, or the default one where the kernel lacks it."""
        request = _find_request(plan) or Choice(self.default)
        if self.probed.get(request.name, True):
            return request
        return Choice(self.default, request.by_port)

    @property
    def missing(self) -> list[str]:
        """Requested schedulers that the kernel lacks, sorted."""
        return sorted(name for name, found in self.probed.items() if not found)


class ServerRow(NamedTuple):
    """The value of a row of kind SERVER: a virtual server with all its real servers."""

    server: VirtualServer
    weights: Mapping[RealKey, int]
    may_drain: frozenset[RealKey] | None = None
    """The only real servers that may wait for the end of their connections when they leave; None for all."""


def find_node_addresses(context: NodeContext) -> tuple[bytes, ...]:
    """Return the node's own addresses that Services may use: no loopback, no IPv6 link-local."""
    return tuple(address for address in context.addresses_in_rules if _is_usable(address))


def find_node_port_addresses(context: NodeContext) -> tuple[bytes, ...]:
    """Return the addresses at which every node port gets a virtual server."""
    if context.node_port_addresses.match_all:
        return find_node_addresses(context)
    return tuple(address for address in context.node_port_addresses.addresses if _is_usable(address))


def _is_usable(address: bytes) -> bool:
    link_local = len(address) == 16 and is_link_local(address)
    return not link_local and not is_loopback(address)


class Compiler:
    """Compiles plans under one node context; make a new one when that changes."""

    def __init__(self, context: NodeContext, schedulers: Schedulers) -> None:
        self._schedulers = schedulers
        self._own = frozenset(find_node_addresses(context))
        self._node_ports_at = find_node_port_addresses(context)
        self._node_ip = context.node_ips[0] if context.node_ips else b""
        self._names = {spec: spec.name(context.family) for spec in sets.ALL}

    def compile(self, plan: ServicePlan) -> tuple[Row, ...]:
        """Return the rows of a service port."""
        rows = _Rows(plan, self._schedulers.choose(plan), self._names)
        protocol = plan.port.protocol.value
        for endpoint in plan.endpoints.all:
            if endpoint.local:
                entry = SetEntry(endpoint.address, protocol, endpoint.port, endpoint.address)
                rows.add_entry(sets.LOOP_BACK, entry)
        for frontend in plan.frontends:
            if frontend.kind is FrontendKind.NODE_PORT:
                self._add_node_port(rows, frontend, plan.port.protocol)
            else:
                self._add_address(rows, frontend, protocol)
        if plan.port.service.health_check_node_port:
            rows.add_entry(
                sets.HEALTH_CHECK_NODE_PORT, SetEntry(port=plan.port.service.health_check_node_port)
            )
        return rows.collect()

    def _add_address(self, rows: _Rows, frontend: Frontend, protocol: int) -> None:
        address, port = frontend.address, frontend.port
        entry = SetEntry(address, protocol, port)
        for spec in _choose_address_sets(frontend):
            rows.add_entry(spec, entry)
        if frontend.source_ranges:
            self._add_source_ranges(rows, frontend, protocol)
        rows.add_server(VirtualKey(protocol, address, port), local=frontend.local_policy)
        if frontend.kind is FrontendKind.CLUSTER_IP or address not in self._own:
            rows.add(ADDRESS, address)
            rows.add_entry(sets.IPVS_IPS, SetEntry(address))

    def _add_source_ranges(self, rows: _Rows, frontend: Frontend, protocol: int) -> None:
        address, port = frontend.address, frontend.port
        for cidr in frontend.source_ranges:
            entry = SetEntry(address, protocol, port, cidr.network, cidr.prefix)
            rows.add_entry(sets.LOAD_BALANCER_SOURCE_CIDR, entry)
        if self._node_ip and any(cidr.contains(self._node_ip) for cidr in frontend.source_ranges):
            # The node's own packets to an address it holds carry that very address as their source.
            rows.add_entry(sets.LOAD_BALANCER_SOURCE_IP, SetEntry(address, protocol, port, address))
        else:
            rows.add(BLOCKED, VirtualKey(protocol, address, port))

    def _add_node_port(self, rows: _Rows, frontend: Frontend, protocol: Protocol) -> None:
        if not self._node_ports_at:
            return
        everyone, local = _NODE_PORT_SETS[protocol]
        if protocol is Protocol.SCTP:
            entries = [SetEntry(address, protocol.value, frontend.port) for address in self._node_ports_at]
        else:
            entries = [SetEntry(port=frontend.port)]
        for spec in (everyone, local) if frontend.local_policy else (everyone,):
            for entry in entries:
                rows.add_entry(spec, entry)
        for address in self._node_ports_at:
            rows.add_server(VirtualKey(protocol.value, address, frontend.port), local=frontend.local_policy)


def _choose_address_sets(frontend: Frontend) -> tuple[SetSpec, ...]:
    if frontend.kind is FrontendKind.CLUSTER_IP:
        return (sets.CLUSTER_IP,)
    if frontend.kind is FrontendKind.EXTERNAL_IP:
        return (sets.EXTERNAL_IP_LOCAL if frontend.local_policy else sets.EXTERNAL_IP,)
    return (
        sets.LOAD_BALANCER,
        *((sets.LOAD_BALANCER_LOCAL,) if frontend.local_policy else ()),
        *((sets.LOAD_BALANCER_FIREWALL,) if frontend.source_ranges else ()),
    )


class _Rows:
    """Collects the rows of one service port, each once."""

    def __init__(self, plan: ServicePlan, choice: Choice, set_names: Mapping[SetSpec, str]) -> None:
        self._owner = plan.name
        self._rows: dict[tuple[str, object], Row] = {}
        self._set_names = set_names
        self._scheduler = choice.name
        self._timeout = plan.port.service.affinity_seconds
        self._flags = (PERSISTENT if self._timeout else 0) | (
            SCHEDULER_2 if choice.name == MAGLEV and choice.by_port else 0
        )
        self._may_drain = (
            frozenset(RealKey(e.address, e.port) for e in plan.endpoints.all) if plan.resets_gone else None
        )
        kept = [e for e in plan.endpoints.all if e.terminating] if plan.port.keeps_draining else ()
        self._kept = {RealKey(e.address, e.port): 0 for e in kept}
        self._cluster = _find_weights(plan.endpoints.cluster, plan.balancing)
        self._local = _find_weights(plan.endpoints.local, plan.balancing)

    def add(self, kind: str, key: object, value: object = None) -> None:
        self._rows[kind, key] = Row(self._owner, kind, key, value)

    def add_entry(self, spec: SetSpec, entry: SetEntry) -> None:
        self.add(self._set_names[spec], entry)

    def add_server(self, key: VirtualKey, *, local: bool) -> None:
        server = VirtualServer(key, self._scheduler, self._flags, self._timeout)
        weights = (self._local or self._cluster) if local else self._cluster
        self.add(SERVER, key, ServerRow(server, {**self._kept, **weights}, self._may_drain))

    def collect(self) -> tuple[Row, ...]:
        return tuple(self._rows.values())


def _find_weights(endpoints: tuple[Endpoint, ...], balance: BalancingPlan | None) -> dict[RealKey, int]:
    return {RealKey(e.address, e.port): balance.weight(e) if balance else DEFAULT_WEIGHT for e in endpoints}
