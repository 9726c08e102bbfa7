"""`pointsman top`: who is connected to which Service and endpoint right now.

The kernel is read by this process, with sockets of its own; the proxy is only asked which Services there are. So however
large the table of flows is, no sync waits for it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from typing import Final

from pointsman.backends import mode_named
from pointsman.backends.contract import Counting
from pointsman.cli.arguments import (
    add_live,
    add_output,
    add_services,
    guarded,
    parser,
    print_json,
    services_of,
)
from pointsman.cli.control_client import ask
from pointsman.cli.output import screen
from pointsman.errors import PointsmanError
from pointsman.kernel.conntrack import ConntrackTable, DeadlinePassed
from pointsman.kernel.tracked_flows import Flow
from pointsman.model.addresses import Family
from pointsman.report.service_list import ListQuery, ServiceList
from pointsman.report.traffic import Directory, Reading, TrafficReport, traffic_report, traffic_text
from pointsman.sync.stale_flows import build_flow_queries

_ABOUT = """Show, for each Service and each of its endpoints, new connections per second, active flows and the share of each endpoint,
the busiest first, until Ctrl-C.

New connections are counted by the kernel in ipvs mode, and in nftables mode while the proxy runs with --service-metrics. Otherwise
they are those that were tracked at one reading and not at the one before (shown as >=): shorter ones are missed. Active
flows come from the kernel's connection tracking, filtered there by protocol, or by address and port when few Services are named.

This command reads the kernel itself, so no sync is delayed. Needs root."""

_READ_SECONDS: Final = 5.0
_CLEAR_REST: Final = "\x1b[J"
_HOME: Final = "\x1b[H"
_CLEAR: Final = "\x1b[H\x1b[2J"
_LINES_AROUND: Final = 9
"""Lines of a screen for the heading, the notes and the prompt of the shell."""


def command() -> argparse.ArgumentParser:
    made = parser("top", _ABOUT)
    add_services(made)
    made.add_argument("-n", "--namespace", default="", help="only Services of this namespace")
    made.add_argument(
        "-d", "--delay", type=float, default=2.0, metavar="SECONDS", help="between readings; default 2"
    )
    readings = made.add_mutually_exclusive_group()
    readings.add_argument(
        "--count", type=int, default=0, metavar="N", help="end after N readings; default: run until Ctrl-C"
    )
    readings.add_argument("--once", action="store_true", help="the same as --count 1")
    add_output(made)
    add_live(made)
    return made


def main(argv: Sequence[str]) -> int:
    """Exit status 0, 1 when no Service matches, 2 when the proxy does not answer or the kernel cannot be read."""
    made = command()
    given = made.parse_args(argv)
    if not 0.1 <= given.delay <= 3600:
        made.error("--delay must be between 0.1 and 3600 seconds")
    if given.count < 0:
        made.error("--count must not be negative")
    return guarded("top", lambda: _top(given))


def _top(given: argparse.Namespace) -> int:
    if os.geteuid() != 0:
        raise PointsmanError("reading the kernel's flows needs root: use sudo")
    rounds = 1 if given.once else given.count
    known = _services(given, "")
    if not known.ports and (given.services or given.namespace):
        sys.stderr.write("pointsman top: no Service matches\n")
        return 1
    directory = Directory(known.ports)
    mode = mode_named(known.mode)
    before = read_kernel(directory, mode.counting)
    shown = 0
    while not rounds or shown < rounds:
        time.sleep(given.delay)
        news = _services(given, known.version)
        if not news.unchanged:
            known, directory = news, Directory(news.ports)
            mode = mode_named(known.mode)
        now = read_kernel(directory, mode.counting)
        report = traffic_report(directory, before, now, node=known.node, mode=mode)
        _show(given, report, first=shown == 0, last=shown + 1 == rounds)
        before, shown = now, shown + 1
    return 0


def _services(given: argparse.Namespace, since: str) -> ServiceList:
    query = ListQuery(namespace=given.namespace, names=services_of(given), detailed=True, since=since)
    return ask(given.control_socket, "/list", ServiceList, query)


def read_kernel(directory: Directory, counting: Counting) -> Reading:
    """One reading of counters and flows of every IP family that has Services."""
    deadline = time.monotonic() + _READ_SECONDS
    counts = {}
    flows: dict[str, list[Flow]] = {}
    partial = False
    for family in Family:
        if directory.places(family.value):
            counts[family.value] = counting.read(family)
            flows[family.value] = []
            partial = not _read_flows(directory, family, flows[family.value], deadline) or partial
    return Reading(time.monotonic(), counts, flows, partial)


def _read_flows(directory: Directory, family: Family, into: list[Flow], deadline: float) -> bool:
    """Adds the flows of the family; False when the time did not suffice for all."""
    queries = build_flow_queries(place[1:] for place in directory.places(family.value))
    wanted = directory.hears(family.value)
    try:
        with ConntrackTable(family) as table:
            for query in queries:
                into += table.flows(query, wanted, lambda: time.monotonic() > deadline)
    except DeadlinePassed:
        return False
    return True


def _show(given: argparse.Namespace, report: TrafficReport, *, first: bool, last: bool) -> None:
    if given.output == "json":
        print_json(report)
    else:
        on = screen(given.color)
        redrawn = on.width and not (first and last)
        room = max(5, os.get_terminal_size(sys.stdout.fileno()).lines - _LINES_AROUND) if redrawn else 0
        text = traffic_text(report, on, lines=room)
        if redrawn:
            text = (_CLEAR if first else _HOME) + text.replace("\n", "\x1b[K\n") + _CLEAR_REST
        sys.stdout.write(text)
    sys.stdout.flush()
