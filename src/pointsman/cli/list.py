"""`pointsman list`: Services with their ports, addresses and endpoints, and whether they answer here."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Sequence

import msgspec

from pointsman.cli.arguments import (
    Parser,
    add_live,
    add_no_headers,
    add_offline,
    add_output,
    add_selection,
    build_query,
    create_parser,
    is_narrowed,
    parse_offline,
    plan_offline,
)
from pointsman.cli.control_client import ask, poll
from pointsman.cli.output import detect_screen, print_answer, print_json_lines, run_guarded
from pointsman.explain.service_port import Identity, ServicePortReport
from pointsman.model.decision import State
from pointsman.report.service_list import SORTS, ListQuery, ServiceList, build_list
from pointsman.report.service_table import COLUMNS, WIDE_COLUMNS, Column, ListTable, parse_columns
from pointsman.text import escape

_ABOUT = """List the Services that this node serves, one line per port and IP family: its address, how many of its endpoints are
used, its traffic policies, and its state: healthy (every client reaches an endpoint), partial or down. `pointsman explain` gives the
reasons.

Asks the running proxy, or works offline with --manifests; neither reads the kernel nor delays a sync."""

_CUSTOM = "custom-columns="

Ask = Callable[[str], ServiceList]
"""The list, without rows when nothing changed since the version given."""


def build_parser() -> Parser:
    made = create_parser("list", _ABOUT)
    add_selection(made, SORTS)
    made.add_argument(
        "--state",
        action="append",
        default=[],
        choices=[state.value for state in State],
        help="only service ports in this state; may be repeated",
    )
    add_output(made, "wide", "name", _CUSTOM)
    add_no_headers(made)
    made.add_argument(
        "-w", "--watch", action="store_true", help="keep running and list changes with their time"
    )
    add_live(made)
    add_offline(made, required=False)
    return made


def main(argv: Sequence[str]) -> int:
    """Return exit status 0, 1 when nothing matches, 2 when the proxy does not answer."""
    made = build_parser()
    given, flags = parse_offline(made, argv)
    if given.watch and given.manifests is not None:
        made.error("--watch follows the running proxy; it cannot be used with --manifests")
    if given.watch and given.output == "yaml":
        made.error("--watch cannot be used with -o yaml; -o json prints one object per line")
    return run_guarded("list", lambda: _list(given, flags))


def _list(given: argparse.Namespace, flags: Sequence[str]) -> int:
    query = build_query(
        given,
        ListQuery,
        states=tuple(map(State, given.state)),
        sort=given.sort_by,
        detailed=given.output not in ("text", "name"),
    )
    if given.manifests is not None:
        _, planned = plan_offline("list", given, flags)
        found = build_list(planned.view, planned.labels, query)
    else:
        found = _ask_live(given, query)("")
    if not found.ports:
        narrowed = is_narrowed(given) or given.state
        sys.stderr.write(f"pointsman list: {'no Service matches' if narrowed else 'there are no Services'}\n")
    table = create_table(given)
    if given.watch:
        _watch(given, table, _ask_live(given, query), found)
    elif found.ports or given.output == "json":
        print_answer(given, found, lambda _found, _screen: render_ports(given, table, found.ports))
    return 0 if found.ports else 1


def _ask_live(given: argparse.Namespace, query: ListQuery) -> Ask:
    return lambda since: ask(
        given.control_socket, "/list", ServiceList, msgspec.structs.replace(query, since=since)
    )


def create_table(given: argparse.Namespace) -> ListTable:
    columns: Sequence[Column] = WIDE_COLUMNS if given.output == "wide" else COLUMNS
    if given.output.startswith(_CUSTOM):
        columns = parse_columns(given.output.removeprefix(_CUSTOM))
    if given.watch:
        columns = (Column("TIME", lambda _port: time.strftime("%H:%M:%S")), *columns)
    return ListTable(columns, detect_screen(given.color))


def render_ports(
    given: argparse.Namespace, table: ListTable, ports: Sequence[ServicePortReport], *, heading: bool = True
) -> str:
    if given.output == "name":
        return "".join(f"{escape(name)}\n" for name in dict.fromkeys(port.service for port in ports))
    return table.render(
        ports,
        heading=heading and not given.no_headers,
        keep_empty=given.watch or given.output.startswith(_CUSTOM),
    )


def _watch(given: argparse.Namespace, table: ListTable, asked: Ask, before: ServiceList) -> None:
    """Show what changes until interrupted."""
    known: dict[Identity, ServicePortReport] = {}
    version, heading = "", True

    def ask_again() -> ServiceList:
        return asked(version)

    for now in itertools.chain([before], poll("list", ask_again)):
        version = now.version if now is not None else ""
        if now is None or now.unchanged:
            continue
        current = {port.identity: port for port in now.ports}
        changed = [port for identity, port in current.items() if known.get(identity) != port]
        changed += [
            msgspec.structs.replace(port, deleted=True)
            for identity, port in known.items()
            if identity not in current
        ]
        known = current
        if given.output == "json":
            print_json_lines(changed)
        elif changed or heading:
            sys.stdout.write(render_ports(given, table, changed, heading=heading))
            heading = False
        sys.stdout.flush()
