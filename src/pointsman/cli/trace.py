"""`pointsman trace`: follows a real packet to a Service through the rules of this node."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec

from pointsman.backends import mode_named
from pointsman.cli.arguments import add_live, add_output, guarded, parser, print_json, seconds
from pointsman.cli.control_client import ask
from pointsman.cli.output import screen
from pointsman.errors import PointsmanError
from pointsman.explain.probes import attempt_text, parse_place
from pointsman.explain.service_port import Explanation
from pointsman.explain.target import Question
from pointsman.explain.trace import TraceReport, report_of, trace_text
from pointsman.kernel.iptables_programs import LEGACY, variants_in_use
from pointsman.kernel.nfnl import NftablesSocket
from pointsman.kernel.rtnl import RouteSocket, local_addresses
from pointsman.machine.nft_chains import ChainReader
from pointsman.machine.packet_filter import FilterChain
from pointsman.machine.reach import Attempt, Place, Reached, reach
from pointsman.machine.trace import TraceEvent, TraceFilter, Tracer
from pointsman.model.addresses import address_from_text, address_text, family_of, host_port_text

_ABOUT = """Follow the first packet of a connection through netfilter: at each hook its addresses, every rule that handled it, ours and
those of other programs, and its outcome.

Without --from the connection is made here, by the node; --from an address of this node makes it from there. --from a
pod or another address, or --wait, waits for such a connection. The packets to follow are marked by a
rule in a table of its own, pointsman-trace, which the kernel removes when this command ends, however it ends. Nothing of the
proxy is touched. Needs root on the node."""

_QUIET_SECONDS = 0.3
"""After the last event of a packet."""
_LEGACY_NOTE = (
    "legacy iptables has tables here, and nftables cannot show what their rules do: "
    "iptables-legacy -t raw -A PREROUTING ... -j TRACE logs it"
)


class NothingToTrace(PointsmanError):
    """The question leads to no packet; the message says why."""


def command() -> argparse.ArgumentParser:
    made = parser("trace", _ABOUT)
    made.add_argument("target", help="the Service, in any form that explain understands")
    made.add_argument(
        "--from",
        dest="client",
        metavar="CLIENT",
        default="",
        help="an IP address, or the name of a pod that is an endpoint; default: this node",
    )
    made.add_argument("-n", "--namespace", default="", help="namespace of a name without one")
    made.add_argument("--wait", action="store_true", help="make no connection, wait for one")
    made.add_argument(
        "--seconds", type=seconds, help="how long to try or to wait; default 3, where it waits 60"
    )
    add_output(made)
    add_live(made)
    return made


def main(argv: Sequence[str]) -> int:
    """Exit status 0 when the packet passed, 1 when it did not, 2 when nothing could be followed."""
    given = command().parse_args(argv)
    return guarded("trace", lambda: _trace(given))


def _trace(given: argparse.Namespace) -> int:
    question = Question(given.target, given.namespace, kernel=False)
    explanation = ask(given.control_socket, "/explain", Explanation, question)
    source = _source(given.client, given.control_socket)
    place = _place(explanation, source)
    waiting = given.wait or bool(source and source not in local_addresses(family_of(source)))
    timeout = given.seconds or (60.0 if waiting else 3.0)
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(128 + signal.SIGTERM))
    events, attempt = _followed(place, source, timeout, waiting=waiting)
    report = _report(given.target, place, source, events, attempt, explanation)
    if given.output == "json":
        print_json(report)
    else:
        sys.stdout.write(trace_text(report, screen(given.color)))
    answered = attempt is None or attempt.reached in (Reached.CONNECTED, Reached.UNKNOWN)
    return 0 if report.passed and answered else 1


def _source(client: str, control_socket: Path) -> bytes:
    """The address of the client; empty for this node itself."""
    if not client or client == "node":
        return b""
    address = address_from_text(client)
    if address is not None:
        return address
    namespace, _, name = client.removeprefix("pod/").rpartition("/")
    question = Question(f"pod/{name}", namespace, kernel=False)
    found = ask(control_socket, "/explain", Explanation, question)
    for port in found.ports:
        for endpoint in port.endpoints:
            place = parse_place(endpoint.address, port.protocol)
            if endpoint.pod == name and place is not None:
                return place.address
    raise NothingToTrace(f"--from {client!r}: no endpoint is a pod of that name; give its IP address")


def _place(explanation: Explanation, source: bytes) -> Place:
    """The frontend to follow: the first one asked about, of the client's family."""
    for port in explanation.ports:
        for frontend in port.frontends:
            for text in frontend.places if frontend.asked else ():
                place = parse_place(text, port.protocol)
                if place is not None and len(source) in (0, len(place.address)):
                    return place
    reasons = "; ".join(
        f"{finding.message}: {finding.remedy}" if finding.remedy else finding.message
        for finding in explanation.findings
    )
    raise NothingToTrace(
        f"{explanation.question}: no frontend to send a packet to{': ' if reasons else ''}{reasons}"
    )


def _followed(
    place: Place, source: bytes, timeout: float, *, waiting: bool
) -> tuple[list[TraceEvent], Attempt | None]:
    """What happened to the packets, and what came of the connection if it was made here."""
    wanted = TraceFilter(family_of(place.address), place.address, place.port, place.protocol, source)
    events: list[TraceEvent] = []
    last = [0.0]
    made: Future[list[Attempt]] | None = None

    def enough() -> bool:
        return bool(events) and time.monotonic() - last[0] > _QUIET_SECONDS

    with Tracer(wanted) as tracer, ThreadPoolExecutor(1) as pool:
        if waiting:
            whose = f" from {address_text(source)}" if source else ""
            where = f"{host_port_text(place.address, place.port)}/{place.protocol.name}"
            sys.stderr.write(f"waiting up to {timeout:g} s for a connection{whose} to {where}\n")
        else:
            made = pool.submit(reach, [place], timeout, source)
        for event in tracer.events(timeout, enough):
            events.append(event)
            last[0] = time.monotonic()
        attempt = made.result()[0] if made is not None else None
    if all(event.ours for event in events):
        raise NothingToTrace(_describe_nothing(place, attempt, timeout))
    return events, attempt


def _describe_nothing(place: Place, attempt: Attempt | None, timeout: float) -> str:
    where = f"{host_port_text(place.address, place.port)}/{place.protocol.name}"
    if attempt is None:
        return f"no connection to {where} began within {timeout:g} s"
    return f"no packet to {where} met nftables: the connection was {attempt_text(attempt)}"


def _report(
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
        interfaces = {index: name for name, index in route.links().items()}
    finally:
        route.close()
    untraceable = mode_named(explanation.mode).quirks.untraceable
    legacy = _LEGACY_NOTE if LEGACY in variants_in_use(family) else ""
    client = address_text(source) if source else "any client" if attempt is None else "this node"
    report = report_of(
        f"{question}: a packet from {client} to {host_port_text(place.address, place.port)}/{place.protocol.name}",
        events,
        _chains(events, place),
        interfaces,
        explanation,
        tuple(filter(None, (untraceable, legacy))),
    )
    if attempt is None:
        return report
    again = not report.passed and attempt.reached is Reached.CONNECTED
    text = f"{attempt_text(attempt)}{', by a packet that was sent again' if again else ''}"
    return msgspec.structs.replace(report, connection=text)


def _chains(events: Sequence[TraceEvent], place: Place) -> dict[tuple[str, str], FilterChain]:
    """Every chain that the events name, with the text of its rules."""
    socket = NftablesSocket()
    try:
        reader = ChainReader(socket, family_of(place.address))
        bases = {(chain.table, chain.name): chain for chain in reader.base_chains(ignored_table="")}
        named = dict.fromkeys((event.table, event.chain) for event in events if not event.ours)
        return {
            (table, name): msgspec.structs.replace(
                bases.get((table, name), FilterChain(table, name)), rules=tuple(reader.rules(table, name))
            )
            for table, name in named
        }
    finally:
        socket.close()
