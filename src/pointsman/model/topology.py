"""Selection of the endpoints for cluster-wide and local traffic, and the reason for each endpoint."""

from __future__ import annotations

from collections.abc import Sequence

from pointsman.model.balancing import compute_weight
from pointsman.model.decision import EndpointReason
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
        chosen = tuple(e for e in endpoints if e.ready and node_name in e.state.node_hints)
    elif mode is TopologyMode.ZONE:
        chosen = tuple(e for e in endpoints if e.ready and zone in e.state.zone_hints)
    else:
        chosen = tuple([e for e in endpoints if e.state.ready])
        if len(chosen) == len(endpoints):
            return endpoints
    return chosen or tuple(e for e in endpoints if e.serving and e.terminating)


def choose_topology(endpoints: Sequence[Endpoint], node_name: str, zone: str) -> tuple[TopologyMode, str]:
    """Return which hints apply and, if none does, why: every ready endpoint must have them and one must name this node or zone."""
    for endpoint in endpoints:
        state = endpoint.state
        if state.zone_hints or state.node_hints:
            break
    else:
        return TopologyMode.NONE, ""
    ready = [endpoint for endpoint in endpoints if endpoint.ready]
    if (
        ready
        and all(e.state.node_hints for e in ready)
        and any(node_name in e.state.node_hints for e in ready)
    ):
        return TopologyMode.NODE, ""
    if not ready:
        return TopologyMode.NONE, f"hints ignored: 0 of {len(endpoints)} endpoints are ready"
    if any(e.state.node_hints for e in ready) and not any(e.state.zone_hints for e in ready):
        return TopologyMode.NONE, f"hints ignored: {_explain_node_hints(ready, node_name)}"
    without = sum(not e.state.zone_hints for e in ready)
    if without:
        return (
            TopologyMode.NONE,
            f"hints ignored: {without} of {len(ready)} ready endpoints have no zone hint",
        )
    if not zone:
        return TopologyMode.NONE, "hints ignored: this node has no zone label"
    if not any(zone in e.state.zone_hints for e in ready):
        hinted_for = ", ".join(
            sorted({named for e in ready for named in e.state.zone_hints})[:_MAX_ZONES_NAMED]
        )
        why = f"0 of {len(ready)} ready endpoints are hinted for zone {zone} (they are for {hinted_for})"
        return TopologyMode.NONE, f"hints ignored: {why}"
    return TopologyMode.ZONE, ""


def _explain_node_hints(ready: Sequence[Endpoint], node_name: str) -> str:
    without = sum(not e.state.node_hints for e in ready)
    if without:
        return f"{without} of {len(ready)} ready endpoints have no node hint"
    return f"0 of {len(ready)} ready endpoints are hinted for node {node_name}"


def find_endpoint_reason(
    plan: ServicePlan, endpoint: Endpoint, *, local_policy: bool
) -> tuple[bool, EndpointReason]:
    """Return whether a frontend with this policy uses the endpoint, and why."""
    used = endpoint in (plan.endpoints.local if local_policy else plan.endpoints.cluster)
    if local_policy and not endpoint.local:
        return False, EndpointReason.OTHER_NODE
    if used and not endpoint.ready:
        return True, EndpointReason.SERVING
    topology = plan.endpoints.topology
    if used:
        if local_policy:
            return True, EndpointReason.LOCAL
        return True, _READY.get(topology, EndpointReason.READY)
    if endpoint.terminating and endpoint.serving and not endpoint.ready:
        return False, EndpointReason.TERMINATING
    if not endpoint.ready:
        return False, EndpointReason.NOT_SERVING if endpoint.terminating else EndpointReason.NOT_READY
    if not compute_weight(endpoint, plan.port.service.balancing):
        return False, EndpointReason.NO_WEIGHT
    return False, _NOT_HINTED.get(topology, EndpointReason.NO_FRONTEND)


_READY = {
    TopologyMode.NODE: EndpointReason.NODE_HINT,
    TopologyMode.ZONE: EndpointReason.ZONE_HINT,
}
_NOT_HINTED = {
    TopologyMode.NODE: EndpointReason.OTHER_NODE_HINT,
    TopologyMode.ZONE: EndpointReason.OTHER_ZONE_HINT,
}
