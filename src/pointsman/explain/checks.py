"""Likely causes when a Service does not answer, from the facts of one service port. Pure.

Each function checks one thing and yields findings; `check_service_port` orders them as they help in debugging.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from pointsman.explain.packets import Client, is_excluded, serves_no_node_ports
from pointsman.explain.view import FamilyView, View
from pointsman.model.addresses import address_text
from pointsman.model.endpoint import Endpoint
from pointsman.model.findings import DOCUMENT, FILE, Code, Finding, ObjectReference, Severity, Value
from pointsman.model.plan import Frontend, FrontendKind, ServicePlan
from pointsman.model.service import SOURCE_RANGES_ANNOTATION, ServicePort


def build_error(code: Code, **parameters: Value) -> Finding:
    """Return a finding that keeps connections from being delivered."""
    return Finding(code, Severity.ERROR, parameters=parameters)


def build_warning(code: Code, **parameters: Value) -> Finding:
    """Return a finding with which connections are delivered, possibly not as expected."""
    return Finding(code, Severity.WARNING, parameters=parameters)


def find_rejected_services(view: View) -> frozenset[str]:
    """Return the keys of Services that exist and that the source cannot use."""
    return frozenset(
        finding.object.key
        for finding in view.source_findings
        if finding.is_error and finding.object.kind == "Service" and finding.object.key
    )


def check_objects(view: View, key: str, *, served: bool) -> Iterator[Finding]:
    """Yield what the source found in a Service, and in the EndpointSlices of its namespace, which may be its own."""
    namespace = key.partition("/")[0]
    for finding in view.source_findings:
        reference = finding.object
        of_service = reference.kind == "Service" and reference.key == key
        of_slice = reference.kind == "EndpointSlice" and reference.key.partition("/")[0] == namespace
        if of_service and finding.is_error and not served:
            yield finding
        elif of_service or of_slice:
            severity = Severity.WARNING if finding.is_error else finding.severity
            yield msgspec.structs.replace(finding, severity=severity)
    if not served:
        for finding in view.service_findings.get(key, ()):
            yield msgspec.structs.replace(finding, severity=Severity.ERROR)


def check_files(view: View) -> Iterator[Finding]:
    """Yield files, and parts of files, whose objects are not known; the Service asked about may be one of them."""
    for finding in view.source_findings:
        if finding.object.kind in (FILE, DOCUMENT):
            yield msgspec.structs.replace(finding, severity=Severity.WARNING)


def check_service_port(
    port: ServicePort,
    plan: ServicePlan,
    family: FamilyView,
    view: View,
    clients: tuple[Client, ...],
    *,
    fails: bool,
) -> Iterator[Finding]:
    """Yield what is wrong with a planned service port, most decisive first; `fails`: some clients are not served."""
    if fails:
        yield from _check_endpoints(port, plan, family)
        yield from _check_local_endpoints(plan, family)
    if plan.port.node_port and serves_no_node_ports(family):
        yield build_warning(
            Code.NO_NODE_PORT_ADDRESS,
            nodePort=plan.port.node_port,
            family=family.family.value,
            mode=view.mode.name,
            usual=view.mode.quirks.usual_node_ports,
        )
    yield from _check_source_ranges(plan.frontends, clients, family)
    yield from plan.findings
    yield from view.service_findings.get(port.name.key, ())
    if port.service.external_ips_ignored:
        yield build_warning(Code.EXTERNAL_IPS_IGNORED)
    if plan.port.service.health_check_node_port and not plan.endpoints.local:
        yield build_warning(Code.HEALTH_CHECK_FAILS, nodePort=plan.port.service.health_check_node_port)
    if plan.endpoints.topology_note:
        yield build_warning(Code.HINTS_IGNORED, reason=plan.endpoints.topology_note)


def _check_endpoints(port: ServicePort, plan: ServicePlan, family: FamilyView) -> Iterator[Finding]:
    if plan.endpoints.has_any:
        return
    if plan.endpoints.all:
        endpoints = tuple(_describe(endpoint) for endpoint in plan.endpoints.all)
        yield build_error(Code.NO_READY_ENDPOINTS, count=len(endpoints), endpoints=endpoints)
        return
    key = port.name.key
    slices = family.slices.get(key, {})
    if not slices:
        yield build_error(
            Code.NO_ENDPOINT_SLICES, family=family.family.value, service=key, name=port.name.service
        )
        return
    offered = {found for ports in slices.values() for found in ports}
    if (port.name.port, port.name.protocol) in offered:
        yield build_error(Code.EMPTY_ENDPOINT_SLICES, slices=tuple(sorted(slices)))
        return
    names = tuple(sorted(f"{name!r}/{protocol.name}" for name, protocol in offered))
    yield build_error(
        Code.PORT_NAME_MISMATCH,
        port=f"{port.name.port!r}/{port.protocol.name}",
        offered=names or ("no port at all",),
    )


def _describe(endpoint: Endpoint) -> str:
    where = f" on {endpoint.node}" if endpoint.node else ""
    if endpoint.terminating:
        state = "terminating and no longer serving"
    else:
        state = "ready" if endpoint.ready else "not ready"
    return f"{endpoint}{where} ({state})"


def _check_local_endpoints(plan: ServicePlan, family: FamilyView) -> Iterator[Finding]:
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
    node = family.context.node_name
    lookalikes = sorted({e.node for e in plan.endpoints.all if is_same_host(e.node, node)})
    if lookalikes:
        yield build_error(Code.NODE_NAME_MISMATCH, found=lookalikes[0], node=node)
        return
    yield build_error(
        Code.NO_LOCAL_ENDPOINT,
        policies=" and ".join(policies),
        node=node,
        local=tuple(_describe(endpoint) for endpoint in plan.endpoints.all if endpoint.local),
        nodes=tuple(sorted({endpoint.node or "no named node" for endpoint in plan.endpoints.all})),
    )


def is_same_host(name: str, ours: str) -> bool:
    """Whether the names differ in case or domain only."""
    if not name or name == ours:
        return False
    mine, theirs = ours.casefold(), name.casefold()
    return mine == theirs or mine.startswith(f"{theirs}.") or theirs.startswith(f"{mine}.")


def _check_source_ranges(
    frontends: tuple[Frontend, ...], clients: tuple[Client, ...], family: FamilyView
) -> Iterator[Finding]:
    ranged = [frontend for frontend in frontends if frontend.source_ranges]
    if not ranged:
        return
    everywhere = {frontend.kind for frontend in ranged} != {FrontendKind.LOAD_BALANCER_IP}
    node_ports = [frontend for frontend in frontends if frontend.kind is FrontendKind.NODE_PORT]
    for client in clients:
        if is_excluded(ranged[0], client, family):
            make = build_error if client.address else build_warning
            yield make(
                Code.SOURCE_RANGES,
                client=client.spec,
                address=address_text(client.address) if client.address else "",
                sourceRanges=tuple(str(cidr) for cidr in ranged[0].source_ranges),
                annotation=SOURCE_RANGES_ANNOTATION if everywhere else "",
                nodePortRestricted=int(all(frontend.source_ranges for frontend in node_ports)),
            )


def refer_to(key: str, port: str = "") -> ObjectReference:
    """Return the reference to a Service, or to one of its ports."""
    return ObjectReference("Service", key, port)
