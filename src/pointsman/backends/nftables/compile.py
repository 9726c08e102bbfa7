"""From a plan to its fragment. Pure: the plan, the context and the previous fragment decide everything."""

from __future__ import annotations

from collections.abc import Iterable

from pointsman.backends.nftables import clauses as c
from pointsman.backends.nftables import schema, userdata
from pointsman.backends.nftables.affinity import build_affinity_chains, compute_digest
from pointsman.backends.nftables.balancers import (
    RESET,
    RESET_KNOWN,
    Balancer,
    Flavour,
    Pick,
    list_needed,
    shared_balancer,
)
from pointsman.backends.nftables.clauses import build_rule
from pointsman.backends.nftables.fields import find_traits, pack_port, pack_protocol
from pointsman.backends.nftables.fragment import Element, Fragment, Pool, arrange_slots
from pointsman.backends.nftables.schema import Chain, FlowTimeout
from pointsman.model.balancing import Scheduler
from pointsman.model.endpoint import Endpoint
from pointsman.model.node_context import NodeContext
from pointsman.model.plan import Frontend, FrontendKind, Outcome, ServicePlan
from pointsman.model.service import ServicePortName
from pointsman.model.slots import assign_slots

_PICKS = {Scheduler.SOURCE_HASH: Pick.SOURCE, Scheduler.SOURCE_PORT_HASH: Pick.SOURCE_PORT}


def compile_fragment(
    plan: ServicePlan, context: NodeContext, previous: Fragment | None = None, *, counters: bool = False
) -> Fragment:
    """Return the fragment; slots of `previous` are kept where possible so that little has to change."""
    return _Compilation(plan, context, previous, counters).compile()


class _Compilation:
    """One service port on its way to a fragment."""

    def __init__(
        self, plan: ServicePlan, context: NodeContext, previous: Fragment | None, counters: bool
    ) -> None:
        self._plan = plan
        self._context = context
        self._protocol = pack_protocol(plan.port.protocol.value)
        self._label = userdata.make_printable(str(plan.name))
        self._before = {(pool.where, pool.prefix): pool.slots for pool in previous.pools} if previous else {}
        self._elements: dict[tuple[str, bytes], Element] = {}
        self._pools: list[Pool] = []
        self._guards: list[Chain] = []
        self._balancers: dict[Balancer, None] = {}
        self._timeout = FlowTimeout(plan.port.protocol, plan.flow_timeout) if plan.flow_timeout else None
        self._pick = _PICKS.get(plan.balancing.scheduler, Pick.RANDOM) if plan.balancing else Pick.RANDOM
        self._cluster = _pack_endpoints(assign_slots(plan.endpoints.cluster, plan.balancing))
        local = plan.endpoints.local if plan.port.uses_local_endpoints else ()
        self._local = _pack_endpoints(assign_slots(local, plan.balancing))
        # A hash of the client's address is an affinity by itself.
        self._affinity = (
            build_affinity_chains(plan, context, self._label, self._timeout, counters=counters)
            if plan.port.service.affinity_seconds and plan.endpoints.has_any and self._pick is Pick.RANDOM
            else None
        )

    def compile(self) -> Fragment:
        for frontend in self._plan.frontends:
            self._add_frontend(frontend)
        return Fragment(
            label=self._label,
            elements=tuple(self._elements.values()),
            shared=tuple(self._list_shared()),
            pools=tuple(self._pools),
            balancers=tuple(self._balancers),
            chains=(*(self._affinity.chains if self._affinity else ()), *self._guards),
            sets=self._affinity.sets if self._affinity else (),
            endpoint_chains=self._affinity.endpoints if self._affinity else (),
            timeout=self._timeout,
            plan=self._plan,
        )

    def _add_frontend(self, frontend: Frontend) -> None:
        on_node = frontend.kind is FrontendKind.NODE_PORT
        key = frontend.address + self._protocol + pack_port(frontend.port)
        if frontend.source_ranges and not on_node:
            self._restrict(key, frontend)
        verdicts = schema.SERVICE_NODEPORTS if on_node else schema.SERVICE_IPS
        if (verdicts, key) in self._elements:
            return
        if frontend.outcome is not Outcome.DELIVERED:
            refusals = schema.NO_ENDPOINT_NODEPORTS if on_node else schema.NO_ENDPOINT_SERVICES
            self._put(Element(refusals, key, self._choose_refusal(frontend.outcome)))
        target = self._find_target(frontend, key, on_node)
        if frontend.source_ranges and on_node:
            guard = _build_node_port_guard(self._plan.name, frontend, target, self._context, self._label)
            self._guards.append(guard)
            target = guard.name
        if target:
            self._put(Element(verdicts, key, target))

    def _choose_refusal(self, outcome: Outcome) -> str:
        if self._plan.resets_gone:
            return self._use(RESET if outcome is Outcome.REJECTED else RESET_KNOWN)
        return schema.REJECT_CHAIN if outcome is Outcome.REJECTED else ""

    def _put(self, element: Element) -> None:
        self._elements[(element.where, element.key)] = element

    def _find_target(self, frontend: Frontend, key: bytes, on_node: bool) -> str:
        """Return the chain that a frontend leads to; empty when no client can get anywhere through it."""
        external = frontend.kind is not FrontendKind.CLUSTER_IP
        everywhere = external and frontend.local_policy and bool(self._cluster)
        if frontend.outcome is not Outcome.DELIVERED and not everywhere:
            return ""
        if self._affinity is not None:
            return self._affinity.external if external else self._affinity.internal
        if not external:
            return self._add_balanced_pool(
                Flavour.PLAIN, key, on_node, self._local if frontend.local_policy else self._cluster
            )
        if not frontend.local_policy:
            return self._add_balanced_pool(Flavour.MASQUERADE, key, on_node, self._cluster)
        self._add_pool(schema.NODEPORT_ENDPOINTS if on_node else schema.ENDPOINTS, key, self._cluster)
        local = schema.LOCAL_NODEPORT_ENDPOINTS if on_node else schema.LOCAL_ENDPOINTS
        self._add_pool(local, key, self._local)
        return self._use(
            shared_balancer(
                Flavour.LOCAL, on_node, len(self._local), len(self._cluster), self._pick, self._timeout
            )
        )

    def _add_balanced_pool(
        self, flavour: Flavour, key: bytes, on_node: bool, endpoints: tuple[bytes, ...]
    ) -> str:
        self._add_pool(schema.NODEPORT_ENDPOINTS if on_node else schema.ENDPOINTS, key, endpoints)
        return self._use(shared_balancer(flavour, on_node, len(endpoints), 0, self._pick, self._timeout))

    def _add_pool(self, where: str, prefix: bytes, endpoints: tuple[bytes, ...]) -> None:
        if not endpoints:
            return
        if self._pick is Pick.RANDOM:
            endpoints = arrange_slots(self._before.get((where, prefix), ()), endpoints)
        self._pools.append(Pool.from_slots(where, prefix, endpoints))

    def _use(self, balancer: Balancer) -> str:
        self._balancers |= dict.fromkeys(list_needed(balancer))
        return balancer.name

    def _restrict(self, key: bytes, frontend: Frontend) -> None:
        self._put(Element(schema.FIREWALL_IPS, key))
        spans = [(cidr.first, cidr.last) for cidr in frontend.source_ranges]
        if frontend.admits_any(self._context.node_ips):
            # A node that holds such an address itself uses it as the source towards it.
            own = (int.from_bytes(a, "big") for a in (frontend.address, *self._plan.port.load_balancer_ips))
            spans += [(address, address) for address in own]
        length = self._context.family.address_length
        for first, last in _merge_ranges(spans):
            start = key + first.to_bytes(length, "big")
            self._elements[(schema.FIREWALL_ALLOW, start)] = Element(
                schema.FIREWALL_ALLOW, start, None, key + last.to_bytes(length, "big")
            )

    def _list_shared(self) -> Iterable[Element]:
        yield Element(schema.CLUSTER_IPS, self._plan.port.cluster_ip)
        for endpoint in self._plan.endpoints.reachable:
            if endpoint.local:
                key = endpoint.address * 2 + self._protocol + pack_port(endpoint.port)
                yield Element(schema.HAIRPIN, key)


def _build_node_port_guard(
    name: ServicePortName, frontend: Frontend, target: str, context: NodeContext, label: str
) -> Chain:
    """Return the chain of a node port with source ranges: allowed clients go to `target`, or back without one; others are dropped.

    Other frontends are guarded by two sets that all services share (schema.py), but a node port has no address of its own.
    """
    admitted = c.goto(target) if target else c.RETURN
    traits = find_traits(context.family)
    rules = [build_rule(c.match_source(cidr, traits), admitted) for cidr in frontend.source_ranges]
    if frontend.admits_any(context.node_ips):
        # Packets of a node to one of its own addresses have that address as their source, too.
        rules.append(build_rule(c.SOURCE_IS_NODE, admitted, comment="the node itself"))
    return Chain(f"nodeport-ranges-{compute_digest(name)}", (*rules, build_rule(c.DROP_PACKET)), label)


def _pack_endpoints(endpoints: tuple[Endpoint, ...]) -> tuple[bytes, ...]:
    return tuple([e.address + e.port.to_bytes(2, "big") + b"\0\0" for e in endpoints])


def _merge_ranges(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges without overlap: the kernel rejects overlapping ones."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged
