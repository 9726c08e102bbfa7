"""An explanation as text for a terminal: findings first, the evidence below."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pointsman.explain.service_port import (
    EndpointReport,
    Explanation,
    FrontendReport,
    HostState,
    KernelState,
    ServicePortReport,
)
from pointsman.machine.reach import Reached
from pointsman.model.balancing import Scheduler
from pointsman.model.decision import State
from pointsman.model.findings import Finding
from pointsman.screen import PLAIN, Screen, lay_out
from pointsman.text import join_some
from pointsman.wording.findings import render_finding, render_message
from pointsman.wording.outcomes import render_client

MAX_ENDPOINTS_SHOWN = 20

_SCHEDULERS = {
    Scheduler.SOURCE_HASH.value: "by a hash of the client's address",
    Scheduler.SOURCE_PORT_HASH.value: "by a hash of the client's address and port",
    Scheduler.LEAST_CONNECTIONS.value: "at random, in shares that follow the open connections",
}
_HOST = {
    HostState.NOT_CHECKED: "not checked",
    HostState.CLEAR: "forwarding, routes, other programs' rules and conntrack do not obstruct these packets",
    HostState.OBSTRUCTED: "see above",
}
_KERNEL = {
    KernelState.NOT_CHECKED: "not checked",
    KernelState.PRESENT: "matches the desired state",
    KernelState.MISSING: "lacks objects",
    KernelState.DIFFERENT: "differs from the desired state",
}


def render_explanation(explanation: Explanation, screen: Screen = PLAIN) -> str:
    """Return the whole answer, ending with a newline."""
    source = "the running proxy" if explanation.live else "manifests"
    lines = [f"{explanation.question} on node {explanation.node}, {explanation.mode} mode, from {source}"]
    lines += _render_findings(explanation.findings, "", objects=True)
    for port in explanation.ports:
        lines += ["", *_render_port(port)]
    lines += ["", *_conclude(explanation)]
    return lay_out(lines, screen)


def _conclude(explanation: Explanation) -> Iterator[str]:
    if not explanation.ports:
        yield "Result: no Service answers here."
    elif all(port.state is State.DOWN for port in explanation.ports):
        usable = any(port.usable for port in explanation.ports)
        yield f"Result: all connections fail{'' if usable else ': no usable endpoint'}; see above."
    elif not explanation.is_healthy:
        yield "Result: some connections fail; see above."
    elif _has_all_connected(explanation):
        yield "Result: connections are delivered to endpoints, and all probes from this node connected."
    else:
        yield "Result: connections are delivered to endpoints. If clients still fail, check the endpoints:"
        yield "does the pod listen on that port (not only on localhost), and does a NetworkPolicy allow it?"
    if explanation.live and explanation.ports and not explanation.is_healthy:
        yield f"When it changed: pointsman events {' '.join(dict.fromkeys(port.service for port in explanation.ports))}"


def _has_all_connected(explanation: Explanation) -> bool:
    """Return whether the probe of every used endpoint connected."""
    used = [e.probe for port in explanation.ports for e in port.endpoints if any(use.used for use in e.uses)]
    return bool(used) and all(probe is not None and probe.outcome is Reached.CONNECTED for probe in used)


def _render_findings(findings: Iterable[Finding], indent: str, *, objects: bool) -> Iterator[str]:
    for finding in findings:
        text = render_finding(finding) if objects else render_message(finding)
        yield f"{indent}{'✗' if finding.is_error else '!'} {finding.code}: {text}"
        if finding.remedy:
            yield f"{indent}    -> {finding.remedy}"


def _render_port(port: ServicePortReport) -> Iterator[str]:
    mark = "✓" if port.is_healthy else "✗"
    yield f"{mark} {port.name} {port.protocol} {port.number} ({port.family}): {port.state}"
    yield from _render_findings(port.findings, "  ", objects=False)
    yield "  Frontends"
    for frontend in port.frontends:
        yield from _render_frontend(frontend)
    yield from _render_endpoints(port.endpoints)
    if port.scheduler:
        yield f"  Balancing: {_render_balancing(port)}"
    if port.resets_gone:
        yield "  Removed endpoints: a connection to one is reset with the client's next packet"
    if port.keeps_draining:
        yield "  Terminating endpoints: a UDP flow to one stays there until it is removed, even if it no longer serves"
    if port.flow_timeout:
        flows = "an established connection" if port.protocol == "TCP" else "a flow"
        yield f"  Connection tracking: {flows} is forgotten {port.flow_timeout} s after its last packet"
    if port.affinity_seconds:
        yield f"  Session affinity: a client keeps its endpoint for {port.affinity_seconds} s after its last connection"
    if port.topology_target:
        kind = "node" if port.topology == "PreferSameNode" else "zone"
        yield f"  Topology: hints select endpoints for {kind} {port.topology_target}"
    yield f"  Kernel: {_KERNEL[port.kernel.state]}"
    for difference in port.kernel.differences:
        yield f"    {difference.what}: want {difference.want or 'nothing'}, have {difference.have or 'nothing'}"
    yield f"  Host: {_HOST[port.host.state]}"
    for obstacle in port.host.not_read:
        yield f"    not checked: {obstacle}"


def _render_balancing(port: ServicePortReport) -> str:
    text = f"{port.scheduler}, {_SCHEDULERS.get(port.scheduler, 'at random')}"
    if port.warming_up:
        text += " while new endpoints warm up"
    shares = [f"{e.address} {e.share:.1%}" for e in port.endpoints if e.share is not None]
    if shares:
        text += f"; shares {join_some(shares)}"
    if "hash" in port.scheduler and port.affinity_seconds:
        text += "; session affinity comes from the hash and has no timeout"
    return text


def _render_frontend(frontend: FrontendReport) -> Iterator[str]:
    ranges = f", only from {', '.join(frontend.source_ranges)}" if frontend.source_ranges else ""
    yield f"    {frontend.kind} {_render_place(frontend)}, policy {frontend.policy}{ranges}"
    if not frontend.asked:
        return
    clients = [render_client(f"{o.client} {o.address}".strip()) for o in frontend.outcomes]
    width = max(map(len, clients), default=0)
    for client, outcome in zip(clients, frontend.outcomes, strict=True):
        yield f"      from {client:{width}}  {outcome.message}"
    for probe in frontend.probes:
        yield f"      probe from this node to {probe.place}: {probe.message}"


def _render_place(frontend: FrontendReport) -> str:
    if frontend.ip:
        return frontend.address
    if frontend.every_address:
        return f"{frontend.address} at every address of this node"
    addresses = join_some(place.rpartition(":")[0].strip("[]") for place in frontend.places)
    return f"{frontend.address} at {addresses or 'no address of this node'}"


def _render_endpoints(endpoints: tuple[EndpointReport, ...]) -> Iterator[str]:
    yield f"  Endpoints ({len(endpoints)})" if endpoints else "  Endpoints: none"
    address_width = max((len(endpoint.address) for endpoint in endpoints), default=0)
    node_width = max((len(_render_node(endpoint)) for endpoint in endpoints), default=0)
    pod_width = max((len(endpoint.pod) + 2 for endpoint in endpoints if endpoint.pod), default=0)
    for endpoint in endpoints[:MAX_ENDPOINTS_SHOWN]:
        pod = f"  {endpoint.pod}" if endpoint.pod else ""
        head = (
            f"    {endpoint.address:{address_width}}{pod:{pod_width}}  {_render_node(endpoint):{node_width}}"
        )
        several = len(endpoint.uses) > 1
        for number, use in enumerate(endpoint.uses):
            policy = f" {'(' + use.policy + ')':9}" if several else ""
            start = head if number == 0 else " " * len(head)
            probe = (
                f"; probe from this node: {endpoint.probe.message}" if endpoint.probe and not number else ""
            )
            yield f"{start}  {'in ' if use.used else 'out'}{policy}  {use.message}{probe}"
    if len(endpoints) > MAX_ENDPOINTS_SHOWN:
        yield f"    and {len(endpoints) - MAX_ENDPOINTS_SHOWN} more; -o json lists all"


def _render_node(endpoint: EndpointReport) -> str:
    node = endpoint.node or "no node"
    return f"{node} (here)" if endpoint.local else node
