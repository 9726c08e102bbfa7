"""What a sync changed about one Service, as events: pure comparison of plans before and after."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from pointsman.explain.packets import combine_outcomes
from pointsman.model.addresses import address_text
from pointsman.model.decision import WORST_FIRST, State
from pointsman.model.endpoint import Endpoint
from pointsman.model.findings import Value
from pointsman.model.history import EventKind
from pointsman.model.plan import ServicePlan
from pointsman.model.service import ServicePort
from pointsman.sync.reconcile import PlanChange

MAX_NAMED = 3

STATE_KINDS: Mapping[State, EventKind] = {
    State.DOWN: EventKind.SERVICE_DOWN,
    State.PARTIAL: EventKind.SERVICE_PARTIAL,
    State.HEALTHY: EventKind.SERVICE_HEALTHY,
}

_PORT_FIELDS: Mapping[str, str] = {
    "cluster_ip": "clusterIP",
    "port": "port",
    "node_port": "nodePort",
    "external_ips": "externalIPs",
    "load_balancer_ips": "load-balancer IPs",
}
_SETTINGS: Mapping[str, str] = {
    "source_ranges": "loadBalancerSourceRanges",
    "internal_local": "internalTrafficPolicy",
    "external_local": "externalTrafficPolicy",
    "affinity_seconds": "sessionAffinity",
    "health_check_node_port": "healthCheckNodePort",
    "ipvs_scheduler": "scheduler",
    "balancing": "balancing",
}


def find_states(changes: Iterable[PlanChange]) -> tuple[State, State] | None:
    """Return the worst state before and after, of the ports that exist in both; None where there is none."""
    pairs = [(one.old, one.new) for one in changes if one.old is not None and one.new is not None]
    if not pairs:
        return None
    return _find_worst(old for old, _ in pairs), _find_worst(new for _, new in pairs)


def _find_worst(plans: Iterable[ServicePlan]) -> State:
    return min(
        (combine_outcomes(one.outcome for one in plan.frontends) for plan in plans), key=WORST_FIRST.index
    )


def compare_service(changes: Sequence[PlanChange]) -> Iterator[tuple[EventKind, dict[str, Value]]]:
    """Yield kind and parameters of each event of one Service in one IP family.

    Shares that are adjusted continuously are no event.
    """
    added = [one.new for one in changes if one.old is None and one.new is not None]
    removed = [one.old for one in changes if one.old is not None and one.new is None]
    both = [(one.old, one.new) for one in changes if one.old is not None and one.new is not None]
    if added:
        yield EventKind.PORTS_ADDED, {**_name(map(_format_port, added)), "usable": _count_usable(added)}
    if removed:
        yield EventKind.PORTS_REMOVED, _name(map(_format_port, removed))
    if fields := sorted({field for old, new in both for field in _list_changed_fields(old.port, new.port)}):
        yield EventKind.SERVICE_CHANGED, _name(fields)
    states = find_states(changes)
    if states is None:
        return
    parameters = _compare_endpoints(both)
    usable = _count_usable(old for old, _ in both), _count_usable(new for _, new in both)
    if parameters or states[0] is not states[1] or usable[0] != usable[1]:
        kind = EventKind.ENDPOINTS_CHANGED if states[0] is states[1] else STATE_KINDS[states[1]]
        yield kind, {**parameters, "usableBefore": usable[0], "usable": usable[1]}


def _name(texts: Iterable[str]) -> dict[str, Value]:
    """Return the first texts, and how many more there are."""
    names = tuple(texts)
    more = len(names) - MAX_NAMED
    return {"names": names[:MAX_NAMED], **({"more": more} if more > 0 else {})}


def _format_port(plan: ServicePlan) -> str:
    return f"{plan.name.port or plan.port.port}/{plan.name.protocol.name}"


def _count_usable(plans: Iterable[ServicePlan]) -> int:
    """Return the number of endpoints that the port with the fewest can use."""
    return min(len(plan.endpoints.reachable) for plan in plans)


def _list_changed_fields(old: ServicePort, new: ServicePort) -> Iterator[str]:
    if old == new:
        return
    for fields, before, after in ((_PORT_FIELDS, old, new), (_SETTINGS, old.service, new.service)):
        yield from (text for name, text in fields.items() if getattr(before, name) != getattr(after, name))


def _compare_endpoints(plans: Iterable[tuple[ServicePlan, ServicePlan]]) -> dict[str, Value]:
    """Return number and first names of the addresses that changed, by kind of change.

    An address counts once, however many ports of the Service use it. Endpoints that are the same objects are not compared.
    """
    found: dict[str, dict[bytes, Endpoint]] = {}
    for old, new in plans:
        kept = set(map(id, old.endpoints.all)) & set(map(id, new.endpoints.all))
        before = _index(old.endpoints.all, kept)
        after = _index(new.endpoints.all, kept)
        for identity, endpoint in after.items():
            earlier = before.pop(identity, None)
            change = "added" if earlier is None else _find_transition(earlier, endpoint)
            if change:
                found.setdefault(change, {})[endpoint.address] = endpoint
        for endpoint in before.values():
            found.setdefault("removed", {})[endpoint.address] = endpoint
    parameters: dict[str, Value] = {}
    for change, endpoints in found.items():
        parameters[change] = len(endpoints)
        parameters[f"{change}Names"] = tuple(map(_format_endpoint, list(endpoints.values())[:MAX_NAMED]))
    return parameters


def _index(endpoints: Iterable[Endpoint], skipped: Collection[int]) -> dict[tuple[bytes, int], Endpoint]:
    return {one.identity: one for one in endpoints if id(one) not in skipped}


def _find_transition(old: Endpoint, new: Endpoint) -> str:
    if new.terminating and not old.terminating:
        return "terminating"
    if new.ready != old.ready:
        return "ready" if new.ready else "notReady"
    return ""


def _format_endpoint(endpoint: Endpoint) -> str:
    address = address_text(endpoint.address)
    return f"{address} {endpoint.pod}" if endpoint.pod else address
