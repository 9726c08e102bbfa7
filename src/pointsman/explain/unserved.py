"""An address and port at which no Service answers: what packets to it meet, and the likely reason. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from pointsman.explain.causes import listed
from pointsman.explain.packets import node_port_denial
from pointsman.explain.report import Cause
from pointsman.explain.target import Target
from pointsman.explain.view import FamilyView, View
from pointsman.model.addresses import address_text, family_of, is_loopback
from pointsman.model.findings import Code, Severity
from pointsman.model.plan import FrontendKind
from pointsman.model.service import ServicePort
from pointsman.wording.findings import render_message


def causes(view: View, target: Target) -> Iterator[Cause]:
    """Why nothing answers; at least one cause."""
    address = target.address or b""
    if not address:
        yield _no_node_port(view, target)
        return
    family = next((entry for entry in view.families if entry.family is family_of(address)), None)
    if family is None:
        yield Cause("FamilyNotServed", f"this proxy does not serve {family_of(address).value}")
        return
    found = [
        *_losers(family, target, address),
        *_node_port(view, family, target, address),
        *_ip_mode(view, address),
        *_other_port(view, family, address),
        *_unallocated(view, family, address),
    ]
    if found:
        yield from found
        return
    yield Cause(
        "NotAServiceAddress",
        f"no Service has the address {address_text(address)}; packets to it pass this proxy untouched",
        "for a load balancer, is the address in the Service's status? for an external IP, in spec.externalIPs?",
    )


def _no_node_port(view: View, target: Target) -> Cause:
    ports = sorted(
        {p.port.node_port for family in view.families for p in family.plans.values() if p.port.node_port}
    )
    known = (
        f"node ports in use: {listed(str(port) for port in ports)}" if ports else "no Service has a node port"
    )
    return Cause("NoSuchNodePort", f"no Service has node port {target.number}", known)


def _losers(family: FamilyView, target: Target, address: bytes) -> Iterator[Cause]:
    """Services that name this address and did not get it."""
    for name, state in sorted(family.states.items()):
        if target.number not in (0, state.port.port) or not _claims(state.port, address):
            continue
        plan = family.plans.get(name)
        text = address_text(address)
        for finding in plan.findings if plan is not None else ():
            if finding.parameters.get("address") == text and finding.severity is not Severity.NOTICE:
                message = f"{name} requests it but lost the conflict: {render_message(finding)}"
                yield Cause(finding.code.value, message)


def _claims(port: ServicePort, address: bytes) -> bool:
    return address in (port.cluster_ip, *port.external_ips, *port.load_balancer_ips)


def _node_port(view: View, family: FamilyView, target: Target, address: bytes) -> Iterator[Cause]:
    if address not in family.node_addresses and not is_loopback(address):
        return
    serving = [
        name
        for name, plan in sorted(family.plans.items())
        if plan.port.node_port == target.number != 0 and target.protocol in (None, name.protocol)
    ]
    if serving:
        denial = node_port_denial(address, serving[0].protocol, family, view.mode)
        yield Cause(
            "NodePortAddresses",
            f"{serving[0]} has node port {target.number}, but not at this address: {denial}",
            "set nodePortAddresses in the configuration, or use an address it selects",
        )
        return
    yield Cause(
        "NodeAddress",
        f"{address_text(address)} is this node's own address and no Service has node port {target.number or 'there'}",
        "a process on the node has to listen there itself",
    )


def _ip_mode(view: View, address: bytes) -> Iterator[Cause]:
    text = address_text(address)
    for key, findings in sorted(view.service_findings.items()):
        for finding in findings:
            if finding.code is Code.IP_MODE_PROXY and finding.parameters["address"] == text:
                yield Cause(
                    finding.code.value,
                    f"{text} is a load balancer address of {key} with ipMode Proxy: not served on nodes",
                    "packets go to the load balancer itself; set ipMode VIP to serve it here",
                )


def _other_port(view: View, family: FamilyView, address: bytes) -> Iterator[Cause]:
    holders = {
        name: frontend.kind
        for name, plan in family.plans.items()
        for frontend in plan.frontends
        if frontend.kind is not FrontendKind.NODE_PORT and frontend.address == address
    }
    if not holders:
        return
    ports = listed(
        f"{family.plans[name].port.port}/{name.protocol.name} ({name})" for name in sorted(holders)
    )
    if view.mode.quirks.refuses_other_ports_of.intersection(holders.values()):
        meets = "packets to other ports are refused"
    else:
        meets = "packets to other ports pass untouched, so they usually time out"
    yield Cause(
        "WrongPort", f"{address_text(address)} serves {ports}, and not this port or protocol; {meets}"
    )


def _unallocated(view: View, family: FamilyView, address: bytes) -> Iterator[Cause]:
    held = any(frontend.address == address for plan in family.plans.values() for frontend in plan.frontends)
    ranges = [cidr for cidr in family.context.service_cidrs if cidr.contains(address)]
    if held or not ranges:
        return
    meets = "are dropped" if view.mode.quirks.drops_unallocated else "pass untouched and time out"
    yield Cause(
        "NoServiceAtAddress",
        f"{address_text(address)} lies in the service range {ranges[0]}, but no Service has it; packets to it {meets}",
        "the Service was deleted or never existed; does the client use an old address, or a stale DNS answer?",
    )
