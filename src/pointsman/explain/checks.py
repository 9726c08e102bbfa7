"""Likely causes when a Service, or an address without one, does not answer. Pure.

Each function checks one thing and yields findings; `check_service_port` orders them as they help in debugging.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from pointsman.explain.packets import Client, find_node_port_denial, is_excluded, serves_no_node_ports
from pointsman.explain.target import Target
from pointsman.explain.view import FamilyView, View
from pointsman.model.addresses import address_text, family_of, host_port_text, is_loopback
from pointsman.model.endpoint import Endpoint
from pointsman.model.findings import DOCUMENT, FILE, Code, Finding, ObjectReference, Severity, Value
from pointsman.model.plan import Frontend, FrontendKind, ServicePlan
from pointsman.model.service import SOURCE_RANGES_ANNOTATION, ServicePortName


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
    plan: ServicePlan,
    family: FamilyView,
    view: View,
    clients: tuple[Client, ...],
    *,
    fails: bool,
) -> Iterator[Finding]:
    """Yield what is wrong with a planned service port, most decisive first; `fails`: some clients are not served."""
    port = plan.port
    if fails:
        yield from _check_endpoints(plan, family)
        yield from _check_local_endpoints(plan, family)
    if port.node_port and serves_no_node_ports(family):
        yield build_warning(
            Code.NO_NODE_PORT_ADDRESS,
            nodePort=port.node_port,
            family=family.family.value,
            mode=view.mode.name,
            usual=view.mode.quirks.usual_node_ports,
        )
    yield from _check_source_ranges(plan.frontends, clients, family)
    yield from plan.findings
    yield from view.service_findings.get(port.name.key, ())
    if port.service.external_ips_ignored:
        yield build_warning(Code.EXTERNAL_IPS_IGNORED)
    if port.service.health_check_node_port and not plan.endpoints.local:
        yield build_warning(Code.HEALTH_CHECK_FAILS, nodePort=port.service.health_check_node_port)
    if plan.endpoints.topology_note:
        yield build_warning(Code.HINTS_IGNORED, reason=plan.endpoints.topology_note)


def _check_endpoints(plan: ServicePlan, family: FamilyView) -> Iterator[Finding]:
    if plan.endpoints.has_any:
        return
    if plan.endpoints.all:
        endpoints = tuple(_describe(endpoint) for endpoint in plan.endpoints.all)
        yield build_error(Code.NO_READY_ENDPOINTS, count=len(endpoints), endpoints=endpoints)
        return
    port, key = plan.port, plan.name.key
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


def is_same_host(name: str, node: str) -> bool:
    """Return whether a name differs from that of this node, but in case or domain only."""
    if not name or name == node:
        return False
    one, other = node.casefold(), name.casefold()
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")


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


# --- addresses without a Service ---------------------------------------------------------------------------


def check_unserved(view: View, target: Target) -> Iterator[Finding]:
    """Yield why no Service answers; at least one finding."""
    address = target.address or b""
    if not address:
        yield _check_node_ports(view, target)
        return
    family = next((entry for entry in view.families if entry.family is family_of(address)), None)
    if family is None:
        yield build_error(Code.FAMILY_NOT_SERVED, family=family_of(address).value)
        return
    found = [
        *_check_conflicts(family, target, address),
        *_check_node_port(view, family, target, address),
        *_check_ip_mode(view, address),
        *_check_other_ports(view, family, address),
        *_check_service_range(view, family, address),
    ]
    yield from found or [build_error(Code.NOT_A_SERVICE_ADDRESS, address=address_text(address))]


def _check_node_ports(view: View, target: Target) -> Finding:
    ports = {p.port.node_port for family in view.families for p in family.plans.values() if p.port.node_port}
    return build_error(
        Code.NO_SUCH_NODE_PORT, nodePort=target.number, nodePorts=tuple(str(port) for port in sorted(ports))
    )


def _check_conflicts(family: FamilyView, target: Target, address: bytes) -> Iterator[Finding]:
    """Yield Services that request this address but lost the conflict."""
    for name, finding in find_lost_claims(family, target, address):
        yield Finding(finding.code, Severity.ERROR, refer_to(name.key, name.port), finding.parameters)


def find_lost_claims(
    family: FamilyView, target: Target, address: bytes
) -> Iterator[tuple[ServicePortName, Finding]]:
    """Yield service ports that request the address and port asked about and do not get it, with the finding that has the reason."""
    text = address_text(address)
    for name, state in sorted(family.states.items()):
        port, plan = state.port, family.plans.get(name)
        requested = (port.cluster_ip, *port.external_ips, *port.load_balancer_ips)
        if target.number not in (0, port.port) or address not in requested:
            continue
        for finding in plan.findings if plan is not None else (find_conflict(family, name),):
            if finding.parameters.get("address") == text and finding.severity is not Severity.NOTICE:
                yield name, finding


def find_conflict(family: FamilyView, name: ServicePortName) -> Finding:
    """Return why a service port has no plan."""
    port = family.states[name].port
    for holder, plan in family.plans.items():
        if holder.protocol is name.protocol and any(
            f.address == port.cluster_ip and f.port == port.port for f in plan.frontends
        ):
            return build_error(
                Code.CONTESTED_CLUSTER_IP,
                address=address_text(port.cluster_ip),
                frontend=host_port_text(port.cluster_ip, port.port),
                holder=str(holder),
            )
    return build_not_planned(family, name)


def build_not_planned(family: FamilyView, name: ServicePortName) -> Finding:
    """Return that there is no plan, without searching for the reason in all others."""
    return build_error(Code.NOT_PLANNED, servicePort=str(name), family=family.family.value)


def _check_node_port(view: View, family: FamilyView, target: Target, address: bytes) -> Iterator[Finding]:
    if address not in family.node_addresses and not is_loopback(address):
        return
    serving = [
        name
        for name, plan in sorted(family.plans.items())
        if plan.port.node_port == target.number != 0 and target.protocol in (None, name.protocol)
    ]
    if serving:
        yield build_error(
            Code.NODE_PORT_ADDRESSES,
            servicePort=str(serving[0]),
            nodePort=target.number,
            reason=find_node_port_denial(address, serving[0].protocol, family, view.mode),
        )
        return
    yield build_error(Code.NODE_ADDRESS, address=address_text(address), nodePort=target.number or "there")


def _check_ip_mode(view: View, address: bytes) -> Iterator[Finding]:
    text = address_text(address)
    for _, findings in sorted(view.service_findings.items()):
        for finding in findings:
            if finding.code is Code.IP_MODE_PROXY and finding.parameters["address"] == text:
                yield Finding(finding.code, Severity.ERROR, finding.object, finding.parameters)


def _check_other_ports(view: View, family: FamilyView, address: bytes) -> Iterator[Finding]:
    holders = {
        name: frontend.kind
        for name, plan in family.plans.items()
        for frontend in plan.frontends
        if frontend.kind is not FrontendKind.NODE_PORT and frontend.address == address
    }
    if not holders:
        return
    rejected = bool(view.mode.quirks.rejects_other_ports_of.intersection(holders.values()))
    yield build_error(
        Code.WRONG_PORT,
        address=address_text(address),
        ports=tuple(
            f"{family.plans[name].port.port}/{name.protocol.name} ({name})" for name in sorted(holders)
        ),
        rejected="yes" if rejected else "",
    )


def _check_service_range(view: View, family: FamilyView, address: bytes) -> Iterator[Finding]:
    held = any(frontend.address == address for plan in family.plans.values() for frontend in plan.frontends)
    ranges = [cidr for cidr in family.context.service_cidrs if cidr.contains(address)]
    if not held and ranges:
        yield build_error(
            Code.NO_SERVICE_AT_ADDRESS,
            address=address_text(address),
            range=str(ranges[0]),
            dropped="yes" if view.mode.quirks.drops_unallocated else "",
        )
