"""The likely causes when a Service does not answer, from the facts of one service port. Pure.

Each function looks for one kind of trouble and yields what it finds; the order of `port_causes` is the order in which
somebody debugging would want to hear of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pointsman.backends.contract import Mode
from pointsman.explain.packets import Client, denied_by_ranges, serves_node_ports_nowhere
from pointsman.explain.report import Cause
from pointsman.explain.view import FamilyView, View
from pointsman.model.endpoint import Endpoint
from pointsman.model.findings import Code, Finding
from pointsman.model.plan import Frontend, FrontendKind, ServicePlan
from pointsman.model.service import SOURCE_RANGES_ANNOTATION, ServicePort
from pointsman.wording.findings import describe

_SHOWN = 5

_NOT_SERVED = frozenset((Code.HEADLESS, Code.EXTERNAL_NAME, Code.OTHER_PROXY, Code.NO_CLUSTER_IP))


def listed(words: Iterable[str]) -> str:
    """The first few, and how many more."""
    every = list(words)
    more = len(every) - _SHOWN
    return ", ".join(every[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def skipped_causes(key: str, findings: tuple[Finding, ...]) -> Iterator[Cause]:
    """Why a Service that exists has no service ports here."""
    for finding in map(describe, findings):
        if finding.code in _NOT_SERVED:
            yield Cause(
                "NotServed", f"Service {key} is not for this proxy: {finding.message}", finding.remedy
            )
        else:
            yield Cause(finding.code.value, f"Service {key}: {finding.message}")


def port_causes(
    port: ServicePort,
    plan: ServicePlan,
    family: FamilyView,
    view: View,
    paths_fail: bool,
    clients: tuple[Client, ...],
) -> Iterator[Cause]:
    """Everything known to be wrong with a planned service port, most decisive first."""
    if paths_fail:
        yield from _missing_endpoints(port, plan, family)
        yield from _missing_local(plan, family)
    if plan.port.node_port and serves_node_ports_nowhere(family):
        yield Cause(
            "NodePortAddresses",
            f"node port {plan.port.node_port} answers nowhere: nodePortAddresses selects no {family.family.value} "
            "address that this node has on an interface",
            _node_ports_advice(view.mode),
            fatal=False,
        )
    yield from _source_ranges(plan.frontends, clients, family)
    for finding in map(describe, plan.findings):
        yield Cause(finding.code.value, finding.message, finding.remedy, fatal=False)
    yield from _remarks(port, plan, view)
    yield from _hints(plan)


def _node_ports_advice(mode: Mode) -> str:
    usual = mode.quirks.usual_node_ports
    if usual:
        return f"in {mode.name} mode the default is {usual}; is it behind NAT? then set nodePortAddresses"
    return "without nodePortAddresses, node ports answer at every address of this node: name a range that holds one of them"


def _missing_endpoints(port: ServicePort, plan: ServicePlan, family: FamilyView) -> Iterator[Cause]:
    if plan.endpoints.has_any:
        return
    if plan.endpoints.all:
        described = listed(_described(endpoint) for endpoint in plan.endpoints.all)
        yield Cause(
            "NoReadyEndpoints",
            f"none of its {len(plan.endpoints.all)} endpoints can be used: {described}",
            "look at the readiness probes of these pods: kubectl describe pod",
        )
        return
    slices = family.slices.get(port.name.key, {})
    if not slices:
        yield Cause(
            "NoEndpointSlices",
            f"no {family.family.value} EndpointSlice belongs to Service {port.name.key}",
            "its selector matches no pod, or it has none and nobody made slices with the label "
            f"kubernetes.io/service-name={port.name.service}",
        )
        return
    key = (port.name.port, port.name.protocol)
    offered = {found: count for ports in slices.values() for found, count in ports.items()}
    if key in offered:
        yield Cause(
            "EmptyEndpointSlices",
            f"its EndpointSlices ({listed(sorted(slices))}) hold no usable endpoint",
            "no pod matches the selector, or none has an address yet",
        )
        return
    names = listed(sorted(f"{name!r}/{protocol.name}" for name, protocol in offered)) or "no port at all"
    yield Cause(
        "PortNameMismatch",
        f"the Service's port is {port.name.port!r}/{port.protocol.name}, its EndpointSlices offer {names}",
        "port name and protocol must be the same in both; for a named targetPort, does the pod declare that name?",
    )


def _described(endpoint: Endpoint) -> str:
    where = f" on {endpoint.node}" if endpoint.node else ""
    if endpoint.terminating:
        state = "terminating and no longer serving"
    else:
        state = "ready" if endpoint.ready else "not ready"
    return f"{endpoint}{where} ({state})"


def _missing_local(plan: ServicePlan, family: FamilyView) -> Iterator[Cause]:
    policies = [
        name
        for name, local in (
            ("internalTrafficPolicy", plan.port.service.internal_local),
            ("externalTrafficPolicy", plan.port.service.external_local and plan.port.externally_accessible),
        )
        if local
    ]
    if not policies or plan.endpoints.local or not plan.endpoints.has_any:
        return
    ours = family.context.node_name
    lookalikes = sorted({e.node for e in plan.endpoints.all if _same_host(e.node, ours)})
    if lookalikes:
        yield Cause(
            "NodeNameMismatch",
            f"endpoints run on node {lookalikes[0]!r}, and this proxy calls its node {ours!r}: the same host by "
            "another name, so none counts as local",
            f"start the proxy with --hostname-override={lookalikes[0]} (nodeName of the pods must match exactly)",
        )
        return
    local = [endpoint for endpoint in plan.endpoints.all if endpoint.local]
    if local:
        detail = f"those here cannot be used: {listed(_described(endpoint) for endpoint in local)}"
    else:
        nodes = sorted({endpoint.node or "no named node" for endpoint in plan.endpoints.all})
        detail = f"they run on {listed(nodes)}"
    yield Cause(
        "NoLocalEndpoint",
        f"{' and '.join(policies)} Local, and no usable endpoint runs on this node ({ours}): {detail}",
        "send traffic to a node that runs one (load balancers find it by the health check node port), "
        "or use policy Cluster",
    )


def _same_host(name: str, ours: str) -> bool:
    """The same name but for case or domain."""
    if not name or name == ours:
        return False
    mine, theirs = ours.casefold(), name.casefold()
    return mine == theirs or mine.startswith(f"{theirs}.") or theirs.startswith(f"{mine}.")


def _source_ranges(
    frontends: tuple[Frontend, ...], clients: tuple[Client, ...], family: FamilyView
) -> Iterator[Cause]:
    ranged = next((frontend for frontend in frontends if frontend.source_ranges), None)
    if ranged is None:
        return
    for client in clients:
        denied = denied_by_ranges(ranged, client, family)
        if denied:
            ranges = listed(str(cidr) for cidr in ranged.source_ranges)
            yield Cause(
                "SourceRanges",
                f"{_guarded(frontends)} {client.words}: {denied} ({ranges})",
                f"add the client's address to loadBalancerSourceRanges; {_open(frontends)} not restricted",
                fatal=bool(client.address),
            )


def _guarded(frontends: tuple[Frontend, ...]) -> str:
    kinds = {frontend.kind for frontend in frontends if frontend.source_ranges}
    if kinds == {FrontendKind.LOAD_BALANCER_IP}:
        return "the load balancer address drops"
    return f"every frontend but the cluster IP drops (annotation {SOURCE_RANGES_ANNOTATION})"


def _open(frontends: tuple[Frontend, ...]) -> str:
    by_node_port = all(f.source_ranges for f in frontends if f.kind is FrontendKind.NODE_PORT)
    return "the cluster IP is" if by_node_port else "node port and cluster IP are"


def _remarks(port: ServicePort, plan: ServicePlan, view: View) -> Iterator[Cause]:
    for finding in map(describe, view.service_findings.get(port.name.key, ())):
        yield Cause(finding.code.value, finding.message, finding.remedy, fatal=False)
    if port.service.external_ips_ignored:
        yield Cause(
            "ExternalIPsIgnored",
            "externalIPs are switched off by the feature gate AllowServiceExternalIPs",
            fatal=False,
        )
    if plan.port.service.health_check_node_port and not plan.endpoints.local:
        yield Cause(
            "HealthCheckFails",
            f"health check node port {plan.port.service.health_check_node_port} answers 503 on this node",
            "that is how load balancers learn to avoid it",
            fatal=False,
        )


def _hints(plan: ServicePlan) -> Iterator[Cause]:
    if plan.endpoints.topology_note:
        yield Cause("HintsIgnored", plan.endpoints.topology_note, fatal=False)
