"""`pointsman events`: what changed, and when."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import msgspec

from pointsman.cli.arguments import (
    Parser,
    add_live,
    add_no_headers,
    add_output,
    add_selection,
    build_query,
    create_parser,
)
from pointsman.cli.control_client import ask, poll
from pointsman.cli.output import detect_screen, print_answer, print_json_lines, run_guarded
from pointsman.model.history import HistoryEvent
from pointsman.report.history import HistoryQuery, HistoryReport, render_history

_ABOUT = """Show the recent past of the running proxy, the oldest event first: endpoints that were added, removed or changed readiness,
Services that changed or became down, failed syncs, rules that were restored, conditions, and reloads of the configuration.

With names, show only events of these Services. Changes of one Service within a short time share a line. The proxy keeps the last few
hundred events in memory; they are lost when it exits."""


def build_parser() -> Parser:
    made = create_parser("events", _ABOUT)
    add_selection(made)
    made.add_argument(
        "-w",
        "--watch",
        action="store_true",
        help="keep running and show new events; an updated event is shown again",
    )
    add_output(made)
    add_no_headers(made)
    add_live(made)
    return made


def main(argv: Sequence[str]) -> int:
    """Return exit status 0, 1 when nothing matches, 2 when the proxy does not answer."""
    made = build_parser()
    given = made.parse_args(argv)
    if given.watch and given.output == "yaml":
        made.error("--watch cannot be used with -o yaml; -o json prints one object per line")
    return run_guarded("events", lambda: _run(given))


def _run(given: argparse.Namespace) -> int:
    query = build_query(given, HistoryQuery)
    found = _ask(given, query)
    if given.watch:
        _show(given, found.events, heading=not given.no_headers)
        _watch(given, query, found.revision)
    elif found.events or given.output != "text":
        heading = not given.no_headers
        print_answer(
            given, found, lambda answer, screen: render_history(answer.events, screen, heading=heading)
        )
    else:
        sys.stderr.write("pointsman events: no event matches\n")
    return 0 if found.events else 1


def _ask(given: argparse.Namespace, query: HistoryQuery) -> HistoryReport:
    return ask(given.control_socket, "/events", HistoryReport, query)


def _show(given: argparse.Namespace, events: Sequence[HistoryEvent], *, heading: bool) -> None:
    if given.output == "json":
        print_json_lines(events)
    else:
        sys.stdout.write(render_history(events, detect_screen(given.color), heading=heading))
    sys.stdout.flush()


def _watch(given: argparse.Namespace, query: HistoryQuery, since: int) -> None:
    """Show new events until interrupted."""

    def ask_again() -> HistoryReport:
        return _ask(given, msgspec.structs.replace(query, since=since))

    for found in poll("events", ask_again):
        if found is not None:
            since = found.revision
            if found.events:
                _show(given, found.events, heading=False)
