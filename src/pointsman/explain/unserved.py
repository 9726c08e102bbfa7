"""An address and port without a Service: what happens to packets, and the likely reason. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from pointsman.explain.checks import build_error, refer_to
from pointsman.explain.packets import find_node_port_denial
from pointsman.explain.target import Target
from pointsman.explain.view import FamilyView, View
from pointsman.model.addresses import address_text, family_of, is_loopback
from pointsman.model.findings import Code, Finding, Severity
from pointsman.model.plan import FrontendKind
from pointsman.model.service import ServicePort


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
    text = address_text(address)
    for name, state in sorted(family.states.items()):
        if target.number not in (0, state.port.port) or not _is_requested(state.port, address):
            continue
        plan = family.plans.get(name)
        for finding in plan.findings if plan is not None else ():
            if finding.parameters.get("address") == text and finding.severity is not Severity.NOTICE:
                about = refer_to(name.key, name.port)
                yield Finding(finding.code, Severity.ERROR, about, finding.parameters)


def _is_requested(port: ServicePort, address: bytes) -> bool:
    return address in (port.cluster_ip, *port.external_ips, *port.load_balancer_ips)


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
