"""Results of connections made from this node, added to what an explanation derives from the rules. Pure."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

import msgspec

from pointsman.explain.checks import build_error
from pointsman.explain.service_port import (
    EndpointReport,
    Explanation,
    FrontendReport,
    ProbeResult,
    ServicePortReport,
)
from pointsman.machine.reach import Attempt, Place, Reached
from pointsman.model.addresses import address_from_text, port_from_text, split_host_port
from pointsman.model.decision import State
from pointsman.model.findings import Code, Finding
from pointsman.model.service import Protocol
from pointsman.wording.findings import describe
from pointsman.wording.outcomes import describe_outcome

MAX_PLACES = 200
"""Connections of one probe; further endpoints are not tried."""

_ENDPOINT_CODES = {
    Reached.REFUSED: Code.ENDPOINT_REFUSED,
    Reached.SILENT: Code.ENDPOINT_SILENT,
    Reached.UNREACHABLE: Code.ENDPOINT_UNREACHABLE,
    Reached.BLOCKED: Code.ENDPOINT_BLOCKED,
}
_FRONTEND_CODES = {
    Reached.REFUSED: Code.FRONTEND_REFUSED,
    Reached.SILENT: Code.FRONTEND_SILENT,
    Reached.UNREACHABLE: Code.FRONTEND_UNREACHABLE,
    Reached.BLOCKED: Code.FRONTEND_BLOCKED,
}


def find_places(explanation: Explanation) -> list[Place]:
    """Return where to connect: every endpoint, and every frontend asked about."""
    found: dict[Place, None] = {}
    for port in explanation.ports:
        texts = [place for frontend in port.frontends if frontend.asked for place in frontend.places]
        texts += [endpoint.address for endpoint in port.endpoints]
        for text in texts:
            place = parse_place(text, port.protocol)
            if place is not None:
                found[place] = None
    return list(found)[:MAX_PLACES]


def add_probes(explanation: Explanation, attempts: Mapping[Place, Attempt]) -> Explanation:
    """Return the explanation with these results; a used endpoint or a frontend that fails is a finding."""
    ports = tuple(_add_to_port(port, attempts) for port in explanation.ports)
    return msgspec.structs.replace(explanation, ports=ports)


def parse_place(text: str, protocol: str) -> Place | None:
    """Return the place that `ip:port` names, or None."""
    host, port_text = split_host_port(text) or ("", "")
    address, port = address_from_text(host), port_from_text(port_text)
    return Place(address, port, Protocol[protocol]) if address is not None and port else None


def _add_to_port(port: ServicePortReport, attempts: Mapping[Place, Attempt]) -> ServicePortReport:
    def find_result(text: str) -> ProbeResult | None:
        place = parse_place(text, port.protocol)
        attempt = attempts.get(place) if place is not None else None
        return None if attempt is None else ProbeResult(text, attempt.reached, render_attempt(attempt))

    endpoints: tuple[EndpointReport, ...] = tuple(
        msgspec.structs.replace(endpoint, probe=find_result(endpoint.address)) for endpoint in port.endpoints
    )
    failed = {e.address for e in endpoints if e.probe is not None and e.probe.outcome in _ENDPOINT_CODES}
    frontends = tuple(_add_to_frontend(frontend, find_result, failed) for frontend in port.frontends)
    used = [e.probe for e in endpoints if e.probe is not None and any(use.used for use in e.uses)]
    findings = list(_check_results(_ENDPOINT_CODES, used))
    if not findings:
        served = [probe for f in frontends for probe in f.probes if _is_served(f)]
        findings += _check_results(_FRONTEND_CODES, served)
    return msgspec.structs.replace(
        port,
        endpoints=endpoints,
        frontends=frontends,
        findings=(*port.findings, *map(describe, findings)),
        state=_lower_state(port.state, used, failed) if findings else port.state,
    )


def _lower_state(state: State, used: Sequence[ProbeResult], failed: Container[str]) -> State:
    """Return the state of a service port with probes that failed."""
    if used and all(probe.place in failed for probe in used):
        return State.DOWN
    return State.PARTIAL if state is State.HEALTHY else state


def _add_to_frontend(
    frontend: FrontendReport, find_result: Callable[[str], ProbeResult | None], failed: Container[str]
) -> FrontendReport:
    if not frontend.asked:
        return frontend
    results = (find_result(place) for place in frontend.places)
    return msgspec.structs.replace(
        frontend,
        probes=tuple(result for result in results if result is not None),
        outcomes=tuple(
            describe_outcome(outcome, sum(endpoint in failed for endpoint in outcome.endpoints))
            for outcome in frontend.outcomes
        ),
    )


def _is_served(frontend: FrontendReport) -> bool:
    """Return whether the rules deliver connections of all clients that no source range excludes."""
    return all(outcome.is_delivered or outcome.is_restricted for outcome in frontend.outcomes)


def render_attempt(attempt: Attempt) -> str:
    """Return how a connection ended."""
    milliseconds = attempt.seconds * 1000
    return {
        Reached.CONNECTED: f"connected in {milliseconds:.1f} ms",
        Reached.REFUSED: "refused",
        Reached.SILENT: f"no reply within {attempt.seconds:g} s",
        Reached.UNREACHABLE: f"unreachable: {attempt.detail}",
        Reached.BLOCKED: f"not sent: {attempt.detail}",
        Reached.UNKNOWN: attempt.detail,
    }[attempt.reached]


def _check_results(codes: Mapping[Reached, Code], results: Iterable[ProbeResult]) -> Iterator[Finding]:
    every = list(results)
    for reached, code in codes.items():
        failed = [result for result in every if result.outcome is reached]
        if failed:
            places = tuple(result.place for result in failed)
            yield build_error(code, places=places, detail=failed[0].message)
