"""What connections made from here say, put into an explanation beside what the rules say. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from pointsman.explain.causes import listed
from pointsman.explain.report import Cause, Explanation, FrontendAnswer, PortAnswer, ProbeAnswer
from pointsman.machine.reach import Attempt, Place, Reached
from pointsman.model.addresses import address_from_text, port_from_text, split_host_port
from pointsman.model.service import Protocol

MOST_PLACES = 200
"""Connections of one probe; further endpoints are not tried."""
_FAILURES = (Reached.REFUSED, Reached.SILENT, Reached.UNREACHABLE, Reached.BLOCKED)
_ADVICE = {
    Reached.REFUSED: "nothing listens there: does the pod listen on that port, and not only on localhost?",
    Reached.SILENT: "the packets or their answers are lost: a NetworkPolicy, the network plugin, or a pod that hangs",
    Reached.UNREACHABLE: "this node finds no way there: look at the routes and at the network plugin",
    Reached.BLOCKED: "a rule of this host forbids its own packets to leave: see above, or `nft list ruleset`",
}


def places_of(explanation: Explanation) -> list[Place]:
    """Where to connect: every endpoint, and every frontend that was asked about."""
    found: dict[Place, None] = {}
    for port in explanation.ports:
        texts = [place for frontend in port.frontends if frontend.asked for place in frontend.places]
        texts += [endpoint.address for endpoint in port.endpoints]
        for text in texts:
            place = place_of(text, port.protocol)
            if place is not None:
                found[place] = None
    return list(found)[:MOST_PLACES]


def with_probes(explanation: Explanation, attempts: Mapping[Place, Attempt]) -> Explanation:
    """The explanation with what came of the attempts; a usable endpoint or a frontend that fails is a cause."""
    ports = tuple(_port(port, attempts) for port in explanation.ports)
    return msgspec.structs.replace(explanation, ports=ports)


def place_of(text: str, protocol: str) -> Place | None:
    """Where `ip:port` leads, or None when the text is none."""
    host, port_text = split_host_port(text) or ("", "")
    address, port = address_from_text(host), port_from_text(port_text)
    return Place(address, port, Protocol[protocol]) if address is not None and port else None


def _port(port: PortAnswer, attempts: Mapping[Place, Attempt]) -> PortAnswer:
    def probed(text: str) -> ProbeAnswer | None:
        place = place_of(text, port.protocol)
        attempt = attempts.get(place) if place is not None else None
        return None if attempt is None else _answer(text, attempt)

    endpoints = tuple(
        msgspec.structs.replace(endpoint, probe=probed(endpoint.address)) for endpoint in port.endpoints
    )
    frontends = tuple(_frontend(frontend, probed) for frontend in port.frontends)
    used = [e.probe for e in endpoints if e.probe is not None and any(use.used for use in e.uses)]
    causes = list(_failures("Endpoint", used))
    if not causes:
        causes += _failures("Frontend", [probe for f in frontends for probe in f.probes if _should_answer(f)])
    return msgspec.structs.replace(
        port,
        endpoints=endpoints,
        frontends=frontends,
        causes=(*port.causes, *causes),
        answers=port.answers and not causes,
    )


def _frontend(frontend: FrontendAnswer, probed: Callable[[str], ProbeAnswer | None]) -> FrontendAnswer:
    if not frontend.asked:
        return frontend
    probes = (probed(place) for place in frontend.places)
    return msgspec.structs.replace(frontend, probes=tuple(probe for probe in probes if probe is not None))


def _should_answer(frontend: FrontendAnswer) -> bool:
    """Whether connections of the node itself are answered there according to the rules."""
    return all(path.answered or path.restricted for path in frontend.paths)


def _answer(text: str, attempt: Attempt) -> ProbeAnswer:
    return ProbeAnswer(text, attempt.reached, attempt_words(attempt))


def attempt_words(attempt: Attempt) -> str:
    """How it ended."""
    milliseconds = attempt.seconds * 1000
    return {
        Reached.CONNECTED: f"connected in {milliseconds:.1f} ms",
        Reached.REFUSED: "refused",
        Reached.SILENT: f"no answer within {attempt.seconds:g} s",
        Reached.UNREACHABLE: f"not reached: {attempt.detail}",
        Reached.BLOCKED: f"not sent: {attempt.detail}",
        Reached.UNKNOWN: attempt.detail,
    }[attempt.reached]


def _failures(what: str, probes: Iterable[ProbeAnswer]) -> Iterator[Cause]:
    for reached in _FAILURES:
        failed = [probe for probe in probes if probe.outcome is reached]
        if not failed:
            continue
        advice = _ADVICE[reached]
        if what == "Frontend":
            advice = "every endpoint that was tried answers directly: follow a packet with `pointsman trace`"
        yield Cause(
            f"{what}{reached.value.capitalize()}",
            f"connections from here to {listed(probe.place for probe in failed)} fail: {failed[0].words}",
            advice,
        )
