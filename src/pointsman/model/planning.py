"""Plan of one service port: a pure function of the port, its endpoints, the node and the claims it lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from pointsman.model.addresses import Cidr, address_text, host_port_text
from pointsman.model.balancing import (
    NO_REQUEST,
    BalancingDefaults,
    BalancingPlan,
    Scheduler,
    build_balancing_plan,
    choose_fallback_scheduler,
    choose_scheduler,
    remove_drained_endpoints,
)
from pointsman.model.claims import Claim, Winner
from pointsman.model.endpoint import FULL_SHARE, NO_WEIGHT, Endpoint
from pointsman.model.findings import Code, Finding, Severity, Value
from pointsman.model.node_context import NodeContext
from pointsman.model.plan import (
    EndpointSelection,
    Frontend,
    FrontendKind,
    Outcome,
    ServicePlan,
    decide_outcome,
)
from pointsman.model.service import (
    SOURCE_RANGES_ANNOTATION,
    TCP_TIMEOUT_ANNOTATION,
    UDP_TIMEOUT_ANNOTATION,
    Protocol,
    ServicePort,
)
from pointsman.model.slots import compute_max_hash_slots, compute_max_hashed_endpoints
from pointsman.model.topology import select_endpoints

_DNS_PORT = 53
_NO_LOST_CLAIMS: Mapping[Claim, Winner] = {}


def plan_service_port(
    port: ServicePort,
    endpoints: tuple[Endpoint, ...],
    context: NodeContext,
    lost: Mapping[Claim, Winner] = _NO_LOST_CLAIMS,
    *,
    exceeds_hash_budget: bool = False,
) -> ServicePlan | Finding:
    """Return the plan, or why there is none: another service port owns the cluster IP. `lost` are claims that others own."""
    findings: list[Finding] = []
    if lost or port.external_ips or port.load_balancer_ips:
        winner = lost.get((port.cluster_ip, port.protocol, port.port))
        if winner is not None:
            return _build_conflict(Code.CONTESTED_CLUSTER_IP, port.cluster_ip, port, winner)
        port = _remove_lost_addresses(port, context, lost, findings)
    ranges = _find_external_ranges(port, context, findings)
    selected = select_endpoints(port, endpoints, context.node_name, context.zone)
    selected, balancing = _plan_balancing(
        port, selected, context.balancing, findings, exceeds_hash_budget=exceeds_hash_budget
    )
    cluster = decide_outcome(selected.has_any, selected.cluster)
    local = decide_outcome(selected.has_any, selected.local)
    internal = local if port.service.internal_local else cluster
    external = local if port.service.external_local else cluster
    flow_timeout = _find_flow_timeout(port, context.balancing, findings)
    return ServicePlan(
        port=port,
        frontends=tuple(_build_frontends(port, internal, external, ranges)),
        endpoints=selected,
        findings=tuple(findings),
        balancing=balancing,
        resets_gone=resets_gone(port, context.balancing),
        flow_timeout=flow_timeout,
    )


def resets_gone(port: ServicePort, defaults: BalancingDefaults) -> bool:
    """Return whether connections to removed endpoints are reset."""
    requested = port.service.balancing.reset_gone
    return port.protocol is Protocol.TCP and (defaults.reset_gone if requested is None else requested)


def _find_flow_timeout(port: ServicePort, defaults: BalancingDefaults, findings: list[Finding]) -> int:
    """Return the timeout of idle flows; 0 without a request, or where the mode cannot set it."""
    requested, annotation = 0, ""
    if port.protocol is Protocol.UDP:
        requested, annotation = port.service.flow_timeouts.udp, UDP_TIMEOUT_ANNOTATION
    elif port.protocol is Protocol.TCP:
        requested, annotation = port.service.flow_timeouts.tcp_established, TCP_TIMEOUT_ANNOTATION
    if not defaults.capabilities.sets_flow_timeouts:
        if requested:
            findings.append(Finding(Code.FLOW_TIMEOUT_NOT_POSSIBLE, parameters={"annotation": annotation}))
        return 0
    is_dns = port.protocol is Protocol.UDP and port.port == _DNS_PORT
    return requested or (defaults.dns_timeout if is_dns else 0)


def _plan_balancing(
    port: ServicePort,
    selected: EndpointSelection,
    defaults: BalancingDefaults,
    findings: list[Finding],
    *,
    exceeds_hash_budget: bool,
) -> tuple[EndpointSelection, BalancingPlan | None]:
    """Return the selected endpoints without drained ones, and how connections are distributed over them."""
    request = port.service.balancing
    states = [endpoint.state for endpoint in selected.reachable]
    if (
        request is NO_REQUEST
        and defaults.scheduler is Scheduler.RANDOM
        and not any(s.weight != NO_WEIGHT or s.share != FULL_SHARE for s in states)
    ):
        return selected, None
    scheduler = choose_scheduler(request, selected.reachable, defaults, findings)
    if scheduler.is_hash and defaults.capabilities.fills_hash_tables:
        scheduler = _limit_hash(scheduler, port, selected.reachable, findings)
    if scheduler is Scheduler.SOURCE_PORT_HASH and port.service.affinity_seconds:
        findings.append(Finding(Code.PORT_NOT_HASHED))
        scheduler = Scheduler.SOURCE_HASH
    if scheduler is not Scheduler.RANDOM:
        cluster = remove_drained_endpoints(selected.cluster, request)
        local = remove_drained_endpoints(selected.local, request)
        if (cluster, local) != (selected.cluster, selected.local):
            kept = {*cluster, *local}
            reachable = tuple(endpoint for endpoint in selected.reachable if endpoint in kept)
            selected = msgspec.structs.replace(selected, cluster=cluster, local=local, reachable=reachable)
    max_slots = compute_max_hash_slots(len(selected.reachable), port.service.port_count, port.frontend_count)
    if exceeds_hash_budget and scheduler.is_hash:
        max_slots = min(max_slots, defaults.hash_slots)
        findings.append(Finding(Code.HASH_BUDGET_EXCEEDED, Severity.NOTICE, parameters={"limit": max_slots}))
    return selected, build_balancing_plan(scheduler, request, selected.reachable, defaults, max_slots)


def _limit_hash(
    scheduler: Scheduler, port: ServicePort, endpoints: tuple[Endpoint, ...], findings: list[Finding]
) -> Scheduler:
    """Return the requested hash, or a fallback where filling its tables would delay the other Services for seconds."""
    limit = compute_max_hashed_endpoints(port.service.port_count, port.frontend_count)
    if len(endpoints) <= limit:
        return scheduler
    used = choose_fallback_scheduler(port.service.balancing, endpoints)
    parameters: dict[str, Value] = {"limit": limit, "used": used.value, "scheduler": scheduler.value}
    findings.append(Finding(Code.TOO_MANY_TO_HASH, Severity.NOTICE, parameters=parameters))
    return used


def _find_external_ranges(
    port: ServicePort, context: NodeContext, findings: list[Finding]
) -> tuple[Cidr, ...]:
    """Return the source ranges that restrict external IPs and the node port."""
    if port.service.source_ranges.other_family_only and (
        port.load_balancer_ips or (port.service.source_ranges.all_frontends and port.externally_accessible)
    ):
        parameters = {"family": port.family.value}
        findings.append(Finding(Code.SOURCE_RANGES_OF_OTHER_FAMILY, Severity.NOTICE, parameters=parameters))
    if not port.service.source_ranges.all_frontends or not port.service.source_ranges.cidrs:
        return ()
    if context.balancing.capabilities.limits_all_frontends:
        return port.service.source_ranges.cidrs
    findings.append(
        Finding(Code.SOURCE_RANGES_NOT_POSSIBLE, parameters={"annotation": SOURCE_RANGES_ANNOTATION})
    )
    return ()


def _build_frontends(
    port: ServicePort, internal: Outcome, external: Outcome, ranges: tuple[Cidr, ...]
) -> Iterator[Frontend]:
    yield Frontend(FrontendKind.CLUSTER_IP, port.cluster_ip, port.port, port.service.internal_local, internal)
    for address in port.external_ips:
        yield Frontend(
            FrontendKind.EXTERNAL_IP, address, port.port, port.service.external_local, external, ranges
        )
    for address in port.load_balancer_ips:
        yield Frontend(
            FrontendKind.LOAD_BALANCER_IP,
            address,
            port.port,
            port.service.external_local,
            external,
            port.service.source_ranges.cidrs,
        )
    if port.node_port:
        yield Frontend(
            FrontendKind.NODE_PORT, b"", port.node_port, port.service.external_local, external, ranges
        )


def _remove_lost_addresses(
    port: ServicePort, context: NodeContext, lost: Mapping[Claim, Winner], findings: list[Finding]
) -> ServicePort:
    """Return the service port without the addresses that it does not get; report them."""
    node_port = port.node_port
    winner = lost.get((b"", port.protocol, node_port)) if node_port else None
    if winner is not None:
        parameters: dict[str, Value] = {"nodePort": node_port, "holder": str(winner.name)}
        findings.append(Finding(Code.CONTESTED_NODE_PORT, parameters=parameters))
        node_port = 0
    found = {
        address: problem
        for address in (*port.external_ips, *port.load_balancer_ips)
        if (problem := _check_address(address, port, context, lost)) is not None
    }
    findings += found.values()
    not_served = {address for address, problem in found.items() if problem.severity is not Severity.NOTICE}
    if not not_served and winner is None:
        return port
    return msgspec.structs.replace(
        port,
        node_port=node_port,
        external_ips=tuple(a for a in port.external_ips if a not in not_served),
        load_balancer_ips=tuple(a for a in port.load_balancer_ips if a not in not_served),
    )


def _check_address(
    address: bytes, port: ServicePort, context: NodeContext, lost: Mapping[Claim, Winner]
) -> Finding | None:
    """Return why the service port does not get an external address, or a notice about one that it gets."""
    winner = lost.get((address, port.protocol, port.port))
    text = address_text(address)
    if winner is not None and winner.has_address:
        return Finding(Code.ADDRESS_IS_CLUSTER_IP, parameters={"address": text, "holder": winner.name.key})
    if winner is not None:
        return _build_conflict(Code.CONTESTED_ADDRESS, address, port, winner)
    allowed = context.external_allow
    if allowed and not any(cidr.contains(address) for cidr in allowed):
        return Finding(Code.ADDRESS_NOT_ALLOWED, parameters={"address": text})
    if address != port.cluster_ip and any(cidr.contains(address) for cidr in context.service_cidrs):
        return Finding(Code.ADDRESS_IN_SERVICE_RANGE, Severity.NOTICE, parameters={"address": text})
    return None


def _build_conflict(code: Code, address: bytes, port: ServicePort, winner: Winner) -> Finding:
    severity = Severity.ERROR if code is Code.CONTESTED_CLUSTER_IP else Severity.WARNING
    place = host_port_text(address, port.port)
    parameters = {"address": address_text(address), "frontend": place, "holder": str(winner.name)}
    return Finding(code, severity, parameters=parameters)
