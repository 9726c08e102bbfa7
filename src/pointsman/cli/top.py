"""`pointsman top`: connections to Services and endpoints, now and per second.

The kernel is read by this process, with sockets of its own; the proxy is only asked which Services there are. So however
large the table of flows is, no sync waits for it.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from pointsman.backends import mode_named
from pointsman.cli.arguments import (
    Parser,
    add_live,
    add_no_headers,
    add_output,
    add_selection,
    build_query,
    create_parser,
    is_narrowed,
    parse_seconds,
)
from pointsman.cli.control_client import ask
from pointsman.cli.output import print_answer, run_guarded
from pointsman.errors import PointsmanError
from pointsman.explain.service_port import Explanation, ServicePortReport
from pointsman.explain.target import Question
from pointsman.explain.text import render_explanation
from pointsman.report.service_list import ListQuery, ServiceList
from pointsman.report.traffic import (
    SORTS,
    Directory,
    Reading,
    TrafficReport,
    build_traffic_report,
    read_kernel,
    render_traffic,
    sort_ports,
)
from pointsman.screen import Screen

_ABOUT = """Show, for each Service and each of its endpoints, new connections per second, open connections and the share of each endpoint,
the busiest first. On a terminal it reacts to keys: q quits, / filters, s sorts, Enter explains the selected Service, ? shows all
keys. In a pipe or with --count it prints one table per reading.

New connections are counted by the kernel in ipvs mode, and in nftables mode while the proxy runs with --service-metrics. Otherwise
they are the flows that connection tracking has at one reading and did not have at the one before (shown as >=): shorter ones are
missed. Open connections are established TCP connections and answered UDP flows, from the kernel's connection tracking. Flows that
bypass it, or are tracked in another zone, are not counted.

The command reads the kernel itself and delays no sync. Needs root."""

_MAX_FLOWS: Final = 1_000_000


def build_parser() -> Parser:
    made = create_parser("top", _ABOUT)
    add_selection(made, SORTS)
    made.add_argument(
        "-d",
        "--delay",
        type=parse_seconds,
        default=2.0,
        metavar="SECONDS",
        help="seconds between readings; default 2",
    )
    readings = made.add_mutually_exclusive_group()
    readings.add_argument(
        "--count",
        type=int,
        default=0,
        metavar="N",
        help="stop after N readings; default: run until q or Ctrl-C",
    )
    readings.add_argument("--once", action="store_true", help="the same as --count 1")
    add_output(made)
    add_no_headers(made)
    add_live(made)
    return made


def main(argv: Sequence[str]) -> int:
    """Exit status 0, 1 when no Service matches, 2 when the proxy does not answer or the kernel cannot be read."""
    given = parse_arguments(argv)
    return run_guarded("top", lambda: _run(given))


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    made = build_parser()
    given: argparse.Namespace = made.parse_args(argv)
    if given.count < 0:
        made.error("--count must not be negative")
    given.count = 1 if given.once else given.count
    return given


def _run(given: argparse.Namespace) -> int:
    if os.geteuid() != 0:
        raise PointsmanError("reading the kernel's flows needs root: use sudo")
    reader = TrafficReader(given.control_socket, build_query(given, ListQuery, detailed=True))
    if not reader.finds_services and is_narrowed(given):
        sys.stderr.write("pointsman top: no Service matches\n")
        return 1
    if is_interactive(given):
        from pointsman.cli.interactive_top import run_view

        run_view(given, reader.read, partial(_explain, given.control_socket))
        return 0
    rounds = itertools.count() if not given.count else range(given.count)
    for _ in rounds:
        print_report(given, reader.read(given.delay))
    return 0


def is_interactive(given: argparse.Namespace) -> bool:
    return (
        not given.count
        and not given.no_headers
        and given.output == "text"
        and sys.stdin.isatty()
        and sys.stdout.isatty()
    )


def print_report(given: argparse.Namespace, report: TrafficReport) -> None:
    """Print one report, in the order and the format asked for."""
    report = msgspec.structs.replace(report, ports=sort_ports(report.ports, given.sort_by))
    print_answer(given, report, partial(render_traffic, headings=not given.no_headers))
    sys.stdout.flush()


def _explain(control_socket: Path, port: ServicePortReport) -> Callable[[Screen], str]:
    question = Question(f"{port.name}/{port.protocol.lower()}")
    return partial(render_explanation, ask(control_socket, "/explain", Explanation, question))


class TrafficReader:
    """Readings of the kernel one after the other, for the Services that the proxy names."""

    def __init__(self, control_socket: Path, query: ListQuery) -> None:
        self._socket, self._query = control_socket, query
        self._known = ask(control_socket, "/list", ServiceList, query)
        self._directory = Directory(self._known.ports)
        self._before = self._read_kernel()

    @property
    def finds_services(self) -> bool:
        return bool(self._known.ports)

    def read(self, delay: float) -> TrafficReport:
        """Return what happened since the last reading, which is at least that long ago."""
        time.sleep(delay)
        query = msgspec.structs.replace(self._query, since=self._known.version)
        news = ask(self._socket, "/list", ServiceList, query)
        if not news.unchanged:
            self._known, self._directory = news, Directory(news.ports)
        now, before = self._read_kernel(), self._before
        self._before = now
        return build_traffic_report(
            self._directory, before, now, node=self._known.node, mode=mode_named(self._known.mode)
        )

    def _read_kernel(self) -> Reading:
        return read_kernel(self._directory, mode_named(self._known.mode).counting, _MAX_FLOWS)
