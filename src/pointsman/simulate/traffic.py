"""Where the connections of all clients go: every service port, planned for every node of a cluster.

Nodes that plan a service port alike are planned once. Plans differ between nodes by their zone, where endpoints have zone
hints; by their name, where endpoints have node hints or a policy is Local; and by nothing else.
"""

from __future__ import annotations

import enum
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from pointsman.model.addresses import Cidr, Family, cidr_from_text
from pointsman.model.balancing import compute_weight
from pointsman.model.claims import Claim, ClaimIndex, Winner
from pointsman.model.decision import DecisionReason, State
from pointsman.model.endpoint import Endpoint, Identity
from pointsman.model.findings import Finding
from pointsman.model.node_context import NodeContext
from pointsman.model.plan import Outcome, ServicePlan, TopologyMode
from pointsman.model.planning import plan_service_port
from pointsman.model.service import ServicePort, ServicePortName
from pointsman.model.tracker import PortState, Tracker
from pointsman.simulate.cluster import ClientWeights, Cluster, weigh_nodes
from pointsman.wording.findings import render_finding
from pointsman.wording.outcomes import render_reason

MAX_NODES_NAMED = 5
"""Of the nodes where a service port is not served."""


class Clients(enum.StrEnum):
    """Which clients of a service port, and so which of its policies."""

    INTERNAL = "internal"
    """Pods and nodes, to the cluster IP."""
    EXTERNAL = "external"
    """To a load balancer's address, an external IP or a node port: they arrive at a node."""


class EndpointShare(msgspec.Struct, frozen=True, rename="camel"):
    """One endpoint and its part of all connections to the service port."""

    address: str
    pod: str
    node: str
    zone: str
    share: float


class Unserved(msgspec.Struct, frozen=True, rename="camel"):
    """Clients without an answer."""

    outcome: Outcome
    reason: str
    """A `DecisionReason`, or the code of a finding."""
    message: str
    share: float
    """Of all connections."""
    nodes: int
    names: tuple[str, ...]
    """The first of them."""


class HintUse(msgspec.Struct, frozen=True, rename="camel"):
    """Whether the hints of the endpoints are used, for some of the clients."""

    mode: str
    """PreferSameZone, PreferSameNode, or empty when hints are ignored."""
    note: str
    """Why they are ignored."""
    share: float
    """Of all connections."""


class PortTraffic(msgspec.Struct, frozen=True, rename="camel"):
    """Connections of one kind of client to one service port, as fractions of all of them."""

    namespace: str
    service: str
    port: str
    protocol: str
    family: str
    clients: Clients
    state: State
    delivered: float
    shares: tuple[EndpointShare, ...]
    skew: float
    """The largest share divided by the fair one (by weight, of the delivered); 0 where nothing is delivered."""
    same_node: float
    same_zone: float
    """Including those that stay on the node."""
    cross_zone: float
    """What is left are clients or endpoints without a zone."""
    hints: tuple[HintUse, ...]
    """Empty when no endpoint has any."""
    unserved: tuple[Unserved, ...]

    @property
    def identity(self) -> tuple[str, ...]:
        return self.namespace, self.service, self.port, self.protocol, self.family, self.clients.value

    @property
    def name(self) -> str:
        """The service port as every command spells it."""
        return f"{self.namespace}/{self.service}" + (f":{self.port}" if self.port else "")


class Simulation(msgspec.Struct, frozen=True, rename="camel"):
    """Traffic of a whole cluster."""

    clients: str
    """The assumption about where they are."""
    nodes: int
    zones: tuple[str, ...]
    services: int
    traffic: tuple[PortTraffic, ...]
    flows: Mapping[str, Mapping[str, float]]
    """Mean over all service ports of what is delivered from each zone to each zone."""


_Flows = dict[tuple[str, str], float]
"""What is delivered from zone to zone, summed over service ports."""


class _Group(msgspec.Struct, frozen=True):
    """Nodes that plan a service port alike, and their clients."""

    node: str
    """Empty unless the group is this node alone."""
    zone: str
    """That planning uses; empty where zones do not matter."""
    weights: Mapping[str, float]
    """Clients by zone."""
    others: frozenset[str]
    """Nodes that are groups of their own."""

    @property
    def total(self) -> float:
        return sum(self.weights.values())

    def has_node(self, name: str, cluster: Cluster) -> bool:
        if self.node:
            return name == self.node
        return name not in self.others and name in cluster.nodes and cluster.find_zone(name) in self.weights


def simulate(
    cluster: Cluster,
    clients: ClientWeights,
    is_selected: Callable[[ServicePortName], bool] = lambda _name: True,
) -> Simulation:
    """Return the traffic of the selected service ports, sorted by name; a Service that no proxy serves has none."""
    flows: _Flows = defaultdict(float)
    traffic: list[PortTraffic] = []
    arrivals = weigh_nodes(cluster)
    for family in Family:
        tracker = Tracker(family, "")
        for service in cluster.services.values():
            tracker.upsert_service(service)
        for item in cluster.slices.values():
            tracker.upsert_slice(item)
        states = tracker.states
        claims = ClaimIndex()
        for state in states.values():
            claims.replace(None, state.port)
        cidrs = tuple(filter(None, map(cidr_from_text, cluster.service_cidrs)))
        for state in states.values():
            if not is_selected(state.port.name):
                continue
            simulator = _PortSimulator(cluster, state, cidrs, claims.find_lost(state.port))
            if state.port.cluster_ip:
                traffic.append(simulator.simulate(Clients.INTERNAL, clients, flows))
            if state.port.externally_accessible:
                traffic.append(simulator.simulate(Clients.EXTERNAL, arrivals, flows))
    traffic.sort(key=lambda one: one.identity)
    return Simulation(
        clients=clients.source,
        nodes=len(cluster.nodes),
        zones=tuple(sorted(cluster.zones)),
        services=len(cluster.services),
        traffic=tuple(traffic),
        flows=_compute_mean_flows(flows, len(traffic) or 1),
    )


def _compute_mean_flows(flows: _Flows, traffics: int) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for (source, target), amount in sorted(flows.items()):
        found.setdefault(source, {})[target] = round(amount / traffics, _DIGITS)
    return found


class _PortSimulator:
    """One service port of one IP family, on all nodes."""

    def __init__(
        self, cluster: Cluster, state: PortState, cidrs: tuple[Cidr, ...], lost: Mapping[Claim, Winner]
    ) -> None:
        self._cluster = cluster
        self._port = state.port
        self._endpoints = state.endpoints
        self._context = NodeContext(state.port.family, "", service_cidrs=cidrs)
        self._lost = lost
        self._plans: dict[tuple[str, str], ServicePlan | Finding] = {}

    def simulate(self, kind: Clients, clients: ClientWeights, flows: _Flows) -> PortTraffic:
        """Return the traffic of these clients, and add what is delivered to the flows."""
        groups = [(group, _find_served(self._plan(group), kind)) for group in self._group_nodes(clients)]
        if kind is Clients.EXTERNAL and self._port.service.health_check_node_port:
            # A load balancer sends nothing to nodes that fail its health check.
            healthy = [one for one in groups if _find_endpoints(one[1], kind)[0] is Outcome.DELIVERED]
            groups = healthy or groups
        total = sum(group.total for group, _ in groups)
        tally = _Tally(self._cluster, clients, flows, total)
        for group, plan in groups:
            tally.add(group, plan, kind)
        return tally.build(self._port, kind)

    def _group_nodes(self, clients: ClientWeights) -> Iterator[_Group]:
        """Yield groups of nodes that plan alike, with clients; a group without any is left out."""
        cluster = self._cluster
        single: set[str] = set()
        by_zone = False
        for endpoint in self._endpoints:
            single.update(endpoint.state.node_hints)
            by_zone = by_zone or bool(endpoint.state.zone_hints)
            if self._port.uses_local_endpoints:
                single.add(endpoint.node)
        others = frozenset(single & cluster.nodes.keys())
        if not others and not by_zone:
            yield _Group("", "", clients.by_zone, others)
            return
        rest = dict(clients.by_zone)
        for name in sorted(others):
            zone, weight = cluster.find_zone(name), clients.by_node[name]
            rest[zone] -= weight
            if weight:
                yield _Group(name, zone, {zone: weight}, others)
        rest = {zone: weight for zone, weight in rest.items() if weight > _NO_WEIGHT}
        if by_zone:
            for zone, weight in rest.items():
                yield _Group("", zone, {zone: weight}, others)
        elif rest:
            yield _Group("", "", rest, others)

    def _plan(self, group: _Group) -> ServicePlan | Finding:
        known = self._plans.get((group.node, group.zone))
        if known is not None:
            return known
        endpoints = self._endpoints
        if group.node:
            endpoints = tuple(_view_from(endpoint, group.node) for endpoint in endpoints)
        context = msgspec.structs.replace(self._context, node_name=group.node, zone=group.zone)
        plan = plan_service_port(self._port, endpoints, context, self._lost)
        self._plans[group.node, group.zone] = plan
        return plan


def _view_from(endpoint: Endpoint, node: str) -> Endpoint:
    if endpoint.node != node:
        return endpoint
    state = msgspec.structs.replace(endpoint.state, local=True)
    return msgspec.structs.replace(endpoint, state=state)


def _find_served(plan: ServicePlan | Finding, kind: Clients) -> ServicePlan | Finding:
    """Return the plan, or why there is no frontend for these clients: another Service holds its external addresses."""
    if isinstance(plan, Finding) or kind is Clients.INTERNAL or plan.port.externally_accessible:
        return plan
    return plan.findings[0]


def _find_endpoints(plan: ServicePlan | Finding, kind: Clients) -> tuple[Outcome, tuple[Endpoint, ...]]:
    if isinstance(plan, Finding):
        return Outcome.REJECTED, ()
    if kind is Clients.INTERNAL:
        return plan.internal_outcome, plan.internal_endpoints
    return plan.external_outcome, plan.external_endpoints


class _Tally:
    """Sums over the groups of nodes; all amounts are fractions of all connections."""

    def __init__(self, cluster: Cluster, clients: ClientWeights, flows: _Flows, total: float) -> None:
        self._flows = flows
        self._same_zone = self._cross_zone = 0.0
        self._cluster = cluster
        self._clients = clients
        self._total = total or 1.0
        self._shares: dict[Identity, float] = defaultdict(float)
        self._endpoints: dict[Identity, Endpoint] = {}
        """All that are ready or get connections."""
        self._same_node = 0.0
        self._hints: dict[tuple[str, str], float] = defaultdict(float)
        self._unserved: dict[tuple[Outcome, str, str], tuple[float, int, tuple[str, ...]]] = {}

    def add(self, group: _Group, plan: ServicePlan | Finding, kind: Clients) -> None:
        amount = group.total / self._total
        if isinstance(plan, Finding):
            self._add_unserved(group, amount, Outcome.REJECTED, plan.code.value, render_finding(plan))
            return
        chosen = plan.endpoints
        if chosen.topology is not TopologyMode.NONE or chosen.topology_note:
            self._hints[chosen.topology.value, chosen.topology_note] += amount
        self._endpoints.update((one.identity, one) for one in chosen.all if one.ready)
        outcome, endpoints = _find_endpoints(plan, kind)
        if outcome is not Outcome.DELIVERED:
            reason = _REASONS[outcome]
            self._add_unserved(group, amount, outcome, reason.value, render_reason(reason))
            return
        weights = [plan.balancing.weight(one) if plan.balancing is not None else 1 for one in endpoints]
        total = sum(weights)
        targets: dict[str, float] = defaultdict(float)
        for endpoint, weight in zip(endpoints, weights, strict=True):
            part = weight / total
            self._shares[endpoint.identity] += amount * part
            self._endpoints[endpoint.identity] = endpoint
            targets[self._find_zone(endpoint)] += part
            if group.has_node(endpoint.node, self._cluster):
                self._same_node += part * self._clients.by_node[endpoint.node] / self._total
        for source, clients in group.weights.items():
            for target, part in targets.items():
                moved = clients / self._total * part
                self._flows[source, target] += moved
                if source and source == target:
                    self._same_zone += moved
                elif source and target:
                    self._cross_zone += moved

    def build(self, port: ServicePort, kind: Clients) -> PortTraffic:
        delivered = min(1.0, round(sum(self._shares.values()), _DIGITS))
        shares = [
            EndpointShare(str(one), one.pod, one.node, self._find_zone(one), self._shares.get(identity, 0.0))
            for identity, one in self._endpoints.items()
        ]
        return PortTraffic(
            namespace=port.name.namespace,
            service=port.name.service,
            port=port.name.port,
            protocol=port.protocol.name,
            family=port.family.value,
            clients=kind,
            state=State.DOWN if not self._shares else State.PARTIAL if self._unserved else State.HEALTHY,
            delivered=delivered,
            shares=tuple(sorted(shares, key=lambda one: (-one.share, one.address))),
            skew=self._compute_skew(port, delivered),
            same_node=round(self._same_node, _DIGITS),
            same_zone=round(self._same_zone, _DIGITS),
            cross_zone=round(self._cross_zone, _DIGITS),
            hints=tuple(HintUse(mode, note, part) for (mode, note), part in self._hints.items()),
            unserved=tuple(Unserved(*why, *who) for why, who in self._unserved.items()),
        )

    def _add_unserved(self, group: _Group, amount: float, *why: *tuple[Outcome, str, str]) -> None:
        part, count, names = self._unserved.get(why, (0.0, 0, ()))
        found = (group.node,) if group.node else self._list_nodes(group)
        named = tuple(itertools.islice((*names, *found), MAX_NODES_NAMED))
        self._unserved[why] = part + amount, count + len(found), named

    def _list_nodes(self, group: _Group) -> Sequence[str]:
        return [
            name for zone in group.weights for name in self._clients.nodes[zone] if name not in group.others
        ]

    def _find_zone(self, endpoint: Endpoint) -> str:
        return endpoint.zone or self._cluster.find_zone(endpoint.node)

    def _compute_skew(self, port: ServicePort, delivered: float) -> float:
        request = port.service.balancing
        weights = {identity: compute_weight(one, request) for identity, one in self._endpoints.items()}
        total = sum(weights.values())
        return max(
            (
                share * total / (weights[identity] * delivered)
                for identity, share in self._shares.items()
                if weights[identity]
            ),
            default=0.0,
        )


_NO_WEIGHT = 1e-9
_DIGITS = 9
"""Sums of many fractions are rounded, so that everything is 1, and the same in every run."""
_REASONS = {Outcome.REJECTED: DecisionReason.NO_ENDPOINT, Outcome.DROPPED: DecisionReason.NO_LOCAL_ENDPOINT}
