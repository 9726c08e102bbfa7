"""Build the report of a service port: a summary for lists, and with everything known for explanations. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from pointsman.backends.contract import Difference, Mode
from pointsman.explain.checks import build_error, build_not_planned, build_warning, check_service_port
from pointsman.explain.host import build_journeys, check_host
from pointsman.explain.packets import (
    Client,
    combine_outcomes,
    compute_state,
    decide,
    decide_source,
    is_conditional,
    parse_clients,
)
from pointsman.explain.service_port import (
    EndpointReport,
    FrontendReport,
    HostReport,
    HostState,
    KernelReport,
    KernelState,
    PolicyUse,
    ServicePortReport,
)
from pointsman.explain.view import FamilyView, View
from pointsman.model.addresses import address_text, host_port_text
from pointsman.model.balancing import BalancingPlan, Scheduler
from pointsman.model.decision import ClientOutcome, State
from pointsman.model.endpoint import Endpoint
from pointsman.model.findings import Code, Finding
from pointsman.model.plan import Frontend, FrontendKind, ServicePlan, TopologyMode
from pointsman.model.service import ServicePortName
from pointsman.model.slots import assign_slots
from pointsman.model.topology import find_endpoint_reason
from pointsman.wording.findings import describe
from pointsman.wording.outcomes import describe_outcome, render_endpoint_reason

MAX_FRONTENDS = 8
"""In a summary without details."""


def summarize_plan(
    plan: ServicePlan, family: FamilyView, mode: Mode, *, detailed: bool = False
) -> ServicePortReport:
    """Return the summary; with details it has every frontend and endpoint."""
    frontends = plan.frontends if detailed else plan.frontends[:MAX_FRONTENDS]
    return ServicePortReport(
        service=plan.name.key,
        port=plan.name.port,
        protocol=plan.name.protocol.name,
        family=plan.port.family.value,
        number=plan.port.port,
        state=compute_state(plan, family, mode),
        frontends=tuple(map(_summarize_frontend, frontends)),
        usable=len(plan.endpoints.reachable),
        total=len(plan.endpoints.all),
        local=sum(endpoint.local for endpoint in plan.endpoints.all),
        type=plan.port.service.type,
        affinity_seconds=plan.port.service.affinity_seconds,
        topology=plan.endpoints.topology.value,
        scheduler=plan.scheduler,
        resets_gone=plan.resets_gone,
        keeps_draining=plan.port.keeps_draining,
        flow_timeout=plan.flow_timeout,
        findings=tuple(map(describe, plan.findings)),
        endpoints=_summarize_endpoints(plan.endpoints.all, plan.endpoints.reachable) if detailed else (),
    )


def summarize_unplanned(
    name: ServicePortName, family: FamilyView, *, detailed: bool = False
) -> ServicePortReport:
    """Return the summary of a service port without a plan: another one has its cluster IP, or a sync is pending."""
    state = family.states[name]
    port = state.port
    cluster_ip = FrontendReport(
        FrontendKind.CLUSTER_IP.value, host_port_text(port.cluster_ip, port.port), policy=""
    )
    return ServicePortReport(
        service=name.key,
        port=name.port,
        protocol=name.protocol.name,
        family=family.family.value,
        number=port.port,
        state=State.DOWN,
        frontends=(cluster_ip,),
        usable=0,
        total=len(state.endpoints),
        local=sum(endpoint.local for endpoint in state.endpoints),
        type=port.service.type,
        findings=(describe(build_not_planned(family, name)),),
        endpoints=_summarize_endpoints(state.endpoints, used=()) if detailed else (),
    )


def format_frontend(frontend: Frontend) -> str:
    """Return `ip:port`, or `port 30080` for a node port."""
    return host_port_text(frontend.address, frontend.port) if frontend.address else f"port {frontend.port}"


def _summarize_frontend(frontend: Frontend) -> FrontendReport:
    return FrontendReport(
        kind=frontend.kind.value,
        address=format_frontend(frontend),
        policy="Local" if frontend.local_policy else "Cluster",
        ip=address_text(frontend.address) if frontend.address else "",
        port=frontend.port,
        source_ranges=tuple(str(cidr) for cidr in frontend.source_ranges),
    )


def _summarize_endpoints(
    endpoints: Iterable[Endpoint], used: Iterable[Endpoint]
) -> tuple[EndpointReport, ...]:
    reachable = frozenset(used)
    return tuple(
        EndpointReport(
            str(endpoint), endpoint.node, endpoint.local, endpoint in reachable, endpoint.zone, endpoint.pod
        )
        for endpoint in endpoints
    )


def explain_plan(
    view: View, family: FamilyView, plan: ServicePlan, asked: Sequence[Frontend], client: str
) -> ServicePortReport:
    """Return everything about one service port; `asked` are the frontends asked about."""
    clients = parse_clients(client, family)
    frontends = tuple(
        _explain_frontend(view, family, plan, frontend, clients, asked=frontend in asked)
        for frontend in plan.frontends
    )
    outcomes = [outcome for frontend in frontends if frontend.asked for outcome in frontend.outcomes]
    fails = any(not outcome.is_delivered and not outcome.is_restricted for outcome in outcomes)
    kernel = _compare_kernel(family, plan.name)
    in_kernel = list(_check_kernel(family, plan.name, kernel))
    on_host: list[Finding] = []
    host = HostReport(HostState.NOT_CHECKED)
    if family.host is not None:
        journeys = tuple(build_journeys(view, family, family.host, plan, tuple(asked), clients))
        on_host = list(check_host(family, family.host, plan, view.mode, journeys))
        host = HostReport(HostState.OBSTRUCTED if on_host else HostState.CLEAR, family.host.not_read)
    findings = (
        *in_kernel,
        *check_service_port(plan, family, view, clients, fails=fails),
        *on_host,
    )
    state = combine_outcomes(outcome.outcome for outcome in outcomes if client or not outcome.is_restricted)
    if plan.name in family.rejected:
        state = State.DOWN
    elif state is State.HEALTHY and any(finding.is_error for finding in (*in_kernel, *on_host)):
        state = State.PARTIAL
    return msgspec.structs.replace(
        summarize_plan(plan, family, view.mode),
        state=state,
        frontends=frontends,
        topology_target=_find_topology_target(plan, family),
        warming_up=_is_warming_up(plan.balancing),
        findings=tuple(map(describe, findings)),
        endpoints=tuple(_explain_endpoints(plan, plan.endpoints.all, family)),
        kernel=kernel,
        host=host,
    )


def _explain_frontend(
    view: View,
    family: FamilyView,
    plan: ServicePlan,
    frontend: Frontend,
    clients: tuple[Client, ...],
    *,
    asked: bool,
) -> FrontendReport:
    where = family.context.node_port_addresses
    addresses: Sequence[bytes] = (frontend.address,)
    if not frontend.address:
        addresses = family.context.node_ips if where.match_all else tuple(where.addresses)
    return msgspec.structs.replace(
        _summarize_frontend(frontend),
        places=tuple(host_port_text(address, frontend.port) for address in addresses),
        every_address=not frontend.address and where.match_all,
        asked=asked,
        outcomes=tuple(decide_outcome(plan, frontend, client, family, view.mode) for client in clients),
    )


def decide_outcome(
    plan: ServicePlan, frontend: Frontend, client: Client, family: FamilyView, mode: Mode
) -> ClientOutcome:
    """Return what happens to a connection of this client, with everything that can be said about it."""
    decision = decide(plan, frontend, client, family, mode)
    endpoints = decision.endpoints
    return describe_outcome(
        ClientOutcome(
            client=client.kind,
            outcome=decision.outcome,
            reason=decision.reason,
            address=address_text(client.address) if client.address else "",
            policy=decision.policy,
            endpoints=tuple(map(str, endpoints)),
            conditional=bool(endpoints) and is_conditional(frontend, client),
            source=decide_source(frontend, client, family, mode, endpoints) if endpoints else None,
        )
    )


def explain_endpoint(plan: ServicePlan, endpoint: Endpoint, family: FamilyView) -> EndpointReport:
    """Return how the service port uses one endpoint."""
    return next(_explain_endpoints(plan, (endpoint,), family))


def _explain_endpoints(
    plan: ServicePlan, endpoints: tuple[Endpoint, ...], family: FamilyView
) -> Iterator[EndpointReport]:
    policies = sorted({frontend.local_policy for frontend in plan.frontends})
    shares = _compute_shares(plan.endpoints.reachable, plan.balancing)
    context = family.context
    for endpoint, report in zip(
        endpoints, _summarize_endpoints(endpoints, plan.endpoints.reachable), strict=True
    ):
        uses = []
        for local in policies:
            used, reason = find_endpoint_reason(plan, endpoint, local_policy=local)
            message = render_endpoint_reason(reason, endpoint, context.node_name, context.zone)
            uses.append(PolicyUse("Local" if local else "Cluster", used, reason, message))
        yield msgspec.structs.replace(report, uses=tuple(uses), share=shares.get(report.address))


def _compute_shares(endpoints: tuple[Endpoint, ...], balancing: BalancingPlan | None) -> dict[str, float]:
    """Return the share of each endpoint, where shares differ.

    For a hash they are computed from the weights, which its table approximates: computing the table takes long.
    """
    if balancing is None or not balancing.weights:
        return {}
    if balancing.scheduler.is_hash:
        counts = {str(endpoint): balancing.weight(endpoint) for endpoint in endpoints}
    else:
        counts = dict(Counter(str(endpoint) for endpoint in assign_slots(endpoints, balancing)))
    total = sum(counts.values())
    return {str(endpoint): counts.get(str(endpoint), 0) / total for endpoint in endpoints}


def _is_warming_up(balancing: BalancingPlan | None) -> bool:
    return (
        balancing is not None
        and balancing.adjusted
        and balancing.scheduler is not Scheduler.LEAST_CONNECTIONS
    )


def _find_topology_target(plan: ServicePlan, family: FamilyView) -> str:
    if plan.endpoints.topology is TopologyMode.NODE:
        return family.context.node_name
    return family.context.zone if plan.endpoints.topology is TopologyMode.ZONE else ""


def _compare_kernel(family: FamilyView, name: ServicePortName) -> KernelReport:
    if family.differences is None:
        return KernelReport(KernelState.NOT_CHECKED)
    found = [difference for difference in family.differences if _concerns(difference, name)]
    if not found:
        return KernelReport(KernelState.PRESENT)
    state = KernelState.DIFFERENT if any(difference.have for difference in found) else KernelState.MISSING
    return KernelReport(state, tuple(found))


def _concerns(difference: Difference, name: ServicePortName) -> bool:
    """Return whether it is about this service port: its own objects, and shared ones that are missing or changed."""
    return difference.owner == name if difference.owner else bool(difference.want)


def _check_kernel(family: FamilyView, name: ServicePortName, kernel: KernelReport) -> Iterator[Finding]:
    if name in family.rejected:
        yield build_error(Code.KERNEL_REFUSED, reason=family.rejected[name])
    if name in family.unsynced:
        yield build_warning(Code.NOT_SYNCED_YET)
    if kernel.differences:
        objects = tuple(difference.what for difference in kernel.differences)
        yield build_error(Code.KERNEL_DIFFERS, objects=objects)
