"""`pointsman trace`: follows a real packet to a Service through the rules of this node."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec

from pointsman.backends import mode_named
from pointsman.cli.arguments import add_live, add_namespace, add_output, create_parser, parse_seconds
from pointsman.cli.control_client import ask
from pointsman.cli.output import print_answer, run_guarded
from pointsman.errors import PointsmanError
from pointsman.explain.probes import parse_place, render_attempt
from pointsman.explain.service_port import Explanation, FrontendReport
from pointsman.explain.target import EVERYWHERE, Question
from pointsman.explain.trace import TraceReport, build_trace_report, render_trace
from pointsman.kernel.iptables_programs import LEGACY, find_variants_in_use
from pointsman.kernel.nfnl import NftablesSocket
from pointsman.kernel.rtnl import RouteSocket, list_local_addresses
from pointsman.machine.nft_chains import ChainReader
from pointsman.machine.packet_filter import FilterChain
from pointsman.machine.reach import Attempt, Place, Reached, reach
from pointsman.machine.trace import TraceEvent, TraceFilter, Tracer
from pointsman.model.addresses import address_from_text, address_text, family_of, host_port_text
from pointsman.model.decision import ClientKind
from pointsman.model.plan import FrontendKind

_ABOUT = """Follow the first packet of a connection through netfilter: at each hook its addresses, every rule that handled it, ours and
those of other programs, and its outcome.

Without --from the connection is made here, by the node; --from an address of this node makes it from there. --from a
pod or another address, or --wait, waits for such a connection. The packets to follow are marked by a
rule in a table of its own, pointsman-trace, which the kernel removes when this command ends, however it ends. The
proxy's own rules are not changed. Needs root on the node."""

_QUIET_SECONDS = 0.3
"""After the last event of a packet."""
_LEGACY_NOTE = (
    "legacy iptables has tables here, and nftables cannot show what their rules do: "
    "iptables-legacy -t raw -A PREROUTING ... -j TRACE logs it"
)


class NothingToTrace(PointsmanError):
    """The question leads to no packet; the message says why."""


def build_parser() -> argparse.ArgumentParser:
    made = create_parser("trace", _ABOUT)
    made.add_argument("target", help="the Service, in any form that explain accepts")
    made.add_argument(
        "--from",
        dest="client",
        metavar="CLIENT",
        default="",
        help="an IP address, or the name of a pod that is an endpoint; default: this node",
    )
    add_namespace(made, everywhere=EVERYWHERE)
    made.add_argument("--wait", action="store_true", help="wait for a connection instead of making one")
    made.add_argument(
        "--seconds",
        type=parse_seconds,
        metavar="SECONDS",
        help="timeout; default 3, or 60 when waiting for a connection",
    )
    add_output(made)
    add_live(made)
    return made


def main(argv: Sequence[str]) -> int:
    """Exit status 0 when the packet passed, 1 when it did not, 2 when nothing could be followed."""
    given = build_parser().parse_args(argv)
    return run_guarded("trace", lambda: _trace(given))


def _trace(given: argparse.Namespace) -> int:
    client = given.client.removeprefix("pod/")
    if client in {kind.value for kind in ClientKind} - {ClientKind.NODE.value}:
        raise NothingToTrace(f"--from {client}: name one, by its IP address or the name of a pod")
    question = Question(given.target, given.namespace, client, kernel=False)
    explanation = ask(given.control_socket, "/explain", Explanation, question)
    place, source = find_place(explanation)
    waiting = given.wait or bool(source and source not in list_local_addresses(family_of(source)))
    timeout = given.seconds or (60.0 if waiting else 3.0)
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(128 + signal.SIGTERM))
    events, attempt = _follow(place, source, timeout, waiting=waiting)
    report = _build_report(given.target, place, source, events, attempt, explanation)
    print_answer(given, report, render_trace)
    answered = attempt is None or attempt.reached in (Reached.CONNECTED, Reached.UNKNOWN)
    return 0 if report.passed and answered else 1


def find_place(explanation: Explanation) -> tuple[Place, bytes]:
    """Return the frontend to follow and the client's address, empty for this node: the first frontend of the question, for an
    external client not the cluster IP where there is another one.
    """
    for port in explanation.ports:
        for frontend in sorted(port.frontends, key=_is_for_pods):
            for text in frontend.places if frontend.asked else ():
                place = parse_place(text, port.protocol)
                if place is not None:
                    return place, next((address_from_text(o.address) for o in frontend.outcomes), None) or b""
    reasons = "; ".join(
        f"{finding.message}: {finding.remedy}" if finding.remedy else finding.message
        for finding in explanation.findings
    )
    raise NothingToTrace(
        f"{explanation.question}: no frontend to send a packet to{': ' if reasons else ''}{reasons}"
    )


def _is_for_pods(frontend: FrontendReport) -> tuple[bool, bool]:
    """Whether an external client uses the frontend last, or after those with an address of their own."""
    is_outside = all(outcome.client is ClientKind.OUTSIDE for outcome in frontend.outcomes)
    is_cluster_ip = frontend.kind == FrontendKind.CLUSTER_IP.value
    return is_outside and is_cluster_ip, is_outside and not frontend.ip


def _follow(
    place: Place, source: bytes, timeout: float, *, waiting: bool
) -> tuple[list[TraceEvent], Attempt | None]:
    """Return what happened to the packets, and the result of the connection if it was made here."""
    wanted = TraceFilter(family_of(place.address), place.address, place.port, place.protocol, source)
    events: list[TraceEvent] = []
    last = [0.0]
    made: Future[list[Attempt]] | None = None

    def is_complete() -> bool:
        return bool(events) and time.monotonic() - last[0] > _QUIET_SECONDS

    with Tracer(wanted) as tracer, ThreadPoolExecutor(1) as pool:
        if waiting:
            whose = f" from {address_text(source)}" if source else ""
            where = f"{host_port_text(place.address, place.port)}/{place.protocol.name}"
            sys.stderr.write(f"waiting up to {timeout:g} s for a connection{whose} to {where}\n")
        else:
            made = pool.submit(reach, [place], timeout, source)
        for event in tracer.events(timeout, is_complete):
            events.append(event)
            last[0] = time.monotonic()
        attempt = made.result()[0] if made is not None else None
    if all(event.is_own for event in events):
        raise NothingToTrace(_describe_nothing(place, attempt, timeout))
    return events, attempt


def _describe_nothing(place: Place, attempt: Attempt | None, timeout: float) -> str:
    where = f"{host_port_text(place.address, place.port)}/{place.protocol.name}"
    if attempt is None:
        return f"no connection to {where} began within {timeout:g} s"
    return f"no packet to {where} met nftables: the connection was {render_attempt(attempt)}"


def _build_report(
    question: str,
    place: Place,
    source: bytes,
    events: Sequence[TraceEvent],
    attempt: Attempt | None,
    explanation: Explanation,
) -> TraceReport:
    family = family_of(place.address)
    route = RouteSocket()
    try:
        interfaces = {index: name for name, index in route.list_indexes().items()}
    finally:
        route.close()
    untraceable = mode_named(explanation.mode).quirks.untraceable
    legacy = _LEGACY_NOTE if LEGACY in find_variants_in_use(family) else ""
    client = address_text(source) if source else "any client" if attempt is None else "this node"
    report = build_trace_report(
        f"{question}: a packet from {client} to {host_port_text(place.address, place.port)}/{place.protocol.name}",
        events,
        _read_chains(events, place),
        interfaces,
        explanation,
        tuple(filter(None, (untraceable, legacy))),
    )
    if attempt is None:
        return report
    again = not report.passed and attempt.reached is Reached.CONNECTED
    text = f"{render_attempt(attempt)}{', by a packet that was sent again' if again else ''}"
    return msgspec.structs.replace(report, connection=text)


def _read_chains(events: Sequence[TraceEvent], place: Place) -> dict[tuple[str, str], FilterChain]:
    """Return every chain that the events name, with the text of its rules."""
    socket = NftablesSocket()
    try:
        reader = ChainReader(socket, family_of(place.address))
        bases = {(chain.table, chain.name): chain for chain in reader.list_base_chains(ignored_table="")}
        named = dict.fromkeys((event.table, event.chain) for event in events if not event.is_own)
        return {
            (table, name): msgspec.structs.replace(
                bases.get((table, name), FilterChain(table, name)),
                rules=tuple(reader.read_rules(table, name)),
            )
            for table, name in named
        }
    finally:
        socket.close()
