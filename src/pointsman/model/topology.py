"""Selection of the endpoints for cluster-wide and local traffic, and the reason for each endpoint."""

from __future__ import annotations

from collections.abc import Sequence

from pointsman.model.balancing import compute_weight
from pointsman.model.endpoint import Endpoint
from pointsman.model.plan import EndpointSelection, ServicePlan, TopologyMode
from pointsman.model.service import ServicePort

_MAX_ZONES_NAMED = 5
NO_ENDPOINTS = EndpointSelection()


def select_endpoints(
    port: ServicePort, endpoints: tuple[Endpoint, ...], node_name: str, zone: str
) -> EndpointSelection:
    """Return the endpoints for policy Cluster and policy Local, hints and terminating fallback applied."""
    if not endpoints:
        return NO_ENDPOINTS
    cluster: tuple[Endpoint, ...] = ()
    mode, note = TopologyMode.NONE, ""
    if port.uses_cluster_endpoints:
        mode, note = choose_topology(endpoints, node_name, zone)
        cluster = _select_ready_or_terminating(endpoints, mode, node_name, zone)
        if not port.uses_local_endpoints:
            return EndpointSelection(endpoints, cluster, (), cluster, bool(cluster), mode, note)
    local_candidates = tuple(endpoint for endpoint in endpoints if endpoint.local)
    local = _select_ready_or_terminating(local_candidates, TopologyMode.NONE, node_name, zone)
    if not port.uses_cluster_endpoints:
        anywhere = any(e.ready or (e.serving and e.terminating) for e in endpoints)
        return EndpointSelection(endpoints, (), local, local, anywhere)
    wanted = {*cluster, *local}
    reachable = cluster if len(wanted) == len(cluster) else tuple(e for e in endpoints if e in wanted)
    return EndpointSelection(endpoints, cluster, local, reachable, bool(reachable), mode, note)


def _select_ready_or_terminating(
    endpoints: tuple[Endpoint, ...], mode: TopologyMode, node_name: str, zone: str
) -> tuple[Endpoint, ...]:
    """Return ready endpoints that the hints select; when there is none, terminating ones that still serve."""
    if mode is TopologyMode.NODE:
        chosen = tuple(e for e in endpoints if e.ready and node_name in e.node_hints)
    elif mode is TopologyMode.ZONE:
        chosen = tuple(e for e in endpoints if e.ready and zone in e.zone_hints)
    else:
        chosen = tuple(e for e in endpoints if e.ready)
        if len(chosen) == len(endpoints):
            return endpoints
    return chosen or tuple(e for e in endpoints if e.serving and e.terminating)


def choose_topology(endpoints: Sequence[Endpoint], node_name: str, zone: str) -> tuple[TopologyMode, str]:
    """Return which hints apply and, if none does, why: every ready endpoint must have them and one must name this node or zone."""
    hinted = False
    for endpoint in endpoints:
        if endpoint.zone_hints or endpoint.node_hints:
            hinted = True
            break
    if not hinted:
        return TopologyMode.NONE, ""
    ready = [endpoint for endpoint in endpoints if endpoint.ready]
    if ready and all(e.node_hints for e in ready) and any(node_name in e.node_hints for e in ready):
        return TopologyMode.NODE, ""
    if not ready:
        return TopologyMode.NONE, f"hints ignored: 0 of {len(endpoints)} endpoints are ready"
    if any(e.node_hints for e in ready) and not any(e.zone_hints for e in ready):
        return TopologyMode.NONE, f"hints ignored: {_explain_node_hints(ready, node_name)}"
    without = sum(not e.zone_hints for e in ready)
    if without:
        return (
            TopologyMode.NONE,
            f"hints ignored: {without} of {len(ready)} ready endpoints have no zone hint",
        )
    if not zone:
        return TopologyMode.NONE, "hints ignored: this node has no zone label"
    if not any(zone in e.zone_hints for e in ready):
        hinted_for = ", ".join(sorted({named for e in ready for named in e.zone_hints})[:_MAX_ZONES_NAMED])
        why = f"0 of {len(ready)} ready endpoints are hinted for zone {zone} (they are for {hinted_for})"
        return TopologyMode.NONE, f"hints ignored: {why}"
    return TopologyMode.ZONE, ""


def _explain_node_hints(ready: Sequence[Endpoint], node_name: str) -> str:
    without = sum(not e.node_hints for e in ready)
    if without:
        return f"{without} of {len(ready)} ready endpoints have no node hint"
    return f"0 of {len(ready)} ready endpoints are hinted for node {node_name}"


def endpoint_reason(
    plan: ServicePlan, endpoint: Endpoint, *, local_policy: bool, node_name: str, zone: str
) -> tuple[bool, str]:
    """Whether a frontend with this policy uses the endpoint, and the reason in words."""
    used = endpoint in (plan.endpoints.local if local_policy else plan.endpoints.cluster)
    if local_policy and not endpoint.local:
        where = f"runs on node {endpoint.node}" if endpoint.node else "has no nodeName"
        return False, f"policy Local: it {where}, this node is {node_name}"
    if used:
        if endpoint.ready:
            return True, _explain_use(plan, endpoint, local_policy=local_policy)
        return True, "terminating but still serving, and no endpoint is ready"
    if not endpoint.ready:
        if endpoint.terminating and endpoint.serving:
            return False, "terminating; ready endpoints exist"
        return False, "terminating and no longer serving" if endpoint.terminating else "not ready"
    if not compute_weight(endpoint, plan.port.service.balancing):
        return False, "weight 0: it keeps its connections and gets no new ones"
    if plan.endpoints.topology is TopologyMode.NODE:
        return False, f"hinted for node {', '.join(endpoint.node_hints)}, this node is {node_name}"
    if plan.endpoints.topology is TopologyMode.ZONE:
        return False, f"hinted for zone {', '.join(endpoint.zone_hints)}, this node is in {zone}"
    return False, "no frontend with this policy"


def _explain_use(plan: ServicePlan, endpoint: Endpoint, *, local_policy: bool) -> str:
    state = "ready (and terminating)" if endpoint.terminating else "ready"
    if local_policy:
        return f"{state}, on this node"
    if plan.endpoints.topology is TopologyMode.NODE:
        return f"{state}, hinted for this node"
    if plan.endpoints.topology is TopologyMode.ZONE:
        return f"{state}, hinted for this zone"
    return state
