"""An explanation as text for a terminal: the verdict and its causes first, the evidence below."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pointsman.explain.report import (
    Cause,
    EndpointAnswer,
    Explanation,
    FrontendAnswer,
    HostState,
    KernelState,
    PortAnswer,
)
from pointsman.machine.reach import Reached
from pointsman.screen import PLAIN, Screen, laid_out

ENDPOINTS_SHOWN = 20


def explanation_text(explanation: Explanation, screen: Screen = PLAIN) -> str:
    """The whole answer, ending with a newline."""
    source = "the running proxy" if explanation.live else "manifests"
    lines = [f"{explanation.question} on node {explanation.node}, {explanation.mode} mode, from {source}"]
    lines += _causes(explanation.causes, "")
    for port in explanation.ports:
        lines += ["", *_port(port)]
    if not explanation.ports:
        lines += ["", "Verdict: no Service answers here."]
    elif not explanation.answers:
        lines += ["", "Verdict: not every client is answered; see above."]
    elif _connected(explanation):
        lines += [
            "",
            "Verdict: connections are handed to endpoints, and all that were made from here were answered.",
        ]
    else:
        lines += [
            "",
            "Verdict: connections are handed to endpoints. If clients still fail, look behind the proxy:",
            "does the pod listen on that port (not only on localhost), and does a NetworkPolicy allow it?",
        ]
    return laid_out(lines, screen)


def _connected(explanation: Explanation) -> bool:
    """Every endpoint in use was connected to."""
    used = [e.probe for port in explanation.ports for e in port.endpoints if any(use.used for use in e.uses)]
    return bool(used) and all(probe is not None and probe.outcome is Reached.CONNECTED for probe in used)


def _causes(causes: Iterable[Cause], indent: str) -> Iterator[str]:
    for cause in causes:
        mark = "✗" if cause.fatal else "!"
        yield f"{indent}{mark} {cause.code}: {cause.message}"
        if cause.advice:
            yield f"{indent}    -> {cause.advice}"


def _port(port: PortAnswer) -> Iterator[str]:
    name = f"{port.service}:{port.port}" if port.port else port.service
    yield f"{'✓' if port.answers else '✗'} {name} {port.protocol} {port.number} ({port.family})"
    yield from _causes(port.causes, "  ")
    yield "  Frontends"
    for frontend in port.frontends:
        yield from _frontend(frontend)
    yield from _endpoints(port.endpoints)
    if port.balancing:
        yield f"  Balancing: {port.balancing}"
    if port.gone:
        yield f"  Gone endpoints: {port.gone}"
    if port.affinity_seconds:
        yield f"  Session affinity: a client keeps its endpoint for {port.affinity_seconds} s after its last connection"
    if port.topology:
        yield f"  Topology: {port.topology}"
    yield f"  Kernel: {_KERNEL[port.kernel.state]}"
    for difference in port.kernel.differences:
        yield f"    {difference.what}: want {difference.want or 'nothing'}, have {difference.have or 'nothing'}"
    yield f"  Host: {_HOST[port.host.state]}"
    for obstacle in port.host.not_read:
        yield f"    not looked at: {obstacle}"


_HOST = {
    HostState.NOT_ASKED: "not looked at",
    HostState.CLEAR: "forwarding, routes, rules of others and conntrack do not stop these packets",
    HostState.HINDERED: "see above",
}
_KERNEL = {
    KernelState.NOT_ASKED: "not looked at",
    KernelState.PRESENT: "holds what it should",
    KernelState.MISSING: "lacks what it should hold",
    KernelState.DIFFERENT: "differs from what it should hold",
}


def _frontend(frontend: FrontendAnswer) -> Iterator[str]:
    ranges = f", only from {', '.join(frontend.source_ranges)}" if frontend.source_ranges else ""
    yield f"    {frontend.kind} {frontend.address}, policy {frontend.policy}{ranges}"
    if not frontend.asked:
        return
    width = max((len(path.client) for path in frontend.paths), default=0)
    for path in frontend.paths:
        source = f"; source {path.source}" if path.source else ""
        yield f"      from {path.client:{width}}  {path.result}{source}"
    for probe in frontend.probes:
        yield f"      probed from here at {probe.place}: {probe.words}"


def _endpoints(endpoints: tuple[EndpointAnswer, ...]) -> Iterator[str]:
    yield f"  Endpoints ({len(endpoints)})" if endpoints else "  Endpoints: none"
    address_width = max((len(endpoint.address) for endpoint in endpoints), default=0)
    node_width = max((len(_where(endpoint)) for endpoint in endpoints), default=0)
    pod_width = max((len(endpoint.pod) + 2 for endpoint in endpoints if endpoint.pod), default=0)
    for endpoint in endpoints[:ENDPOINTS_SHOWN]:
        pod = f"  {endpoint.pod}" if endpoint.pod else ""
        head = f"    {endpoint.address:{address_width}}{pod:{pod_width}}  {_where(endpoint):{node_width}}"
        several = len(endpoint.uses) > 1
        for number, use in enumerate(endpoint.uses):
            policy = f" {'(' + use.policy + ')':9}" if several else ""
            start = head if number == 0 else " " * len(head)
            probe = f"; probed from here: {endpoint.probe.words}" if endpoint.probe and number == 0 else ""
            yield f"{start}  {'in ' if use.used else 'out'}{policy}  {use.reason}{probe}"
    if len(endpoints) > ENDPOINTS_SHOWN:
        yield f"    and {len(endpoints) - ENDPOINTS_SHOWN} more; -o json lists all"


def _where(endpoint: EndpointAnswer) -> str:
    node = endpoint.node or "no node"
    return f"{node} (here)" if endpoint.local else node
