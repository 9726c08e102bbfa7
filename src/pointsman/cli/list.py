"""`pointsman list`: Services with their ports, addresses and endpoints, and whether they answer here."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence

import msgspec

from pointsman.cli.arguments import (
    Parser,
    add_colour,
    add_live,
    add_offline,
    add_services,
    guarded,
    parse_offline,
    parser,
    plan_offline,
    print_json,
    services_of,
    warn,
)
from pointsman.cli.control_client import NoProxy, ask
from pointsman.cli.output import screen
from pointsman.explain.service_port import ServicePortReport
from pointsman.model.decision import State
from pointsman.report.labels import selector_from_text
from pointsman.report.service_list import SORTS, ListQuery, ServiceList, build_list, list_text
from pointsman.text import escape, escape_json

_ABOUT = """List the Services that this node serves, one line per port and IP family: its address, how many of its endpoints are
used, its traffic policies, and its state: healthy (every client reaches an endpoint), partial or down. `pointsman explain` gives the
reasons.

Asks the running proxy, or works offline with --manifests; neither reads the kernel nor delays a sync."""

_FORMATS = ("text", "wide", "json", "yaml", "name")
_WATCHED_FORMATS = ("text", "wide", "json")
_LOOK_SECONDS = 1.0

Ask = Callable[[str], ServiceList]
"""The list, without rows when nothing changed since the version given."""


def command() -> Parser:
    made = parser("list", _ABOUT)
    add_services(made)
    made.add_argument("-n", "--namespace", default="", help="only Services of this namespace")
    made.add_argument(
        "-l", "--selector", default="", help="only Services with these labels, such as app=web,tier!=test"
    )
    made.add_argument(
        "--state",
        action="append",
        default=[],
        choices=[state.value for state in State],
        help="only those in this state; may be repeated",
    )
    made.add_argument("-o", "--output", choices=_FORMATS, default="text", help="default text")
    made.add_argument(
        "--sort-by",
        choices=tuple(SORTS),
        default="name",
        help="default name; else the worst state, the most endpoints or unused endpoints first",
    )
    made.add_argument("-w", "--watch", action="store_true", help="keep running, and list changes")
    add_colour(made)
    add_live(made)
    add_offline(made, required=False)
    return made


def main(argv: Sequence[str]) -> int:
    """Return exit status 0, 1 when nothing matches, 2 when the proxy does not answer."""
    made = command()
    given, flags = parse_offline(made, argv)
    if given.watch and given.manifests is not None:
        made.error("--watch follows the running proxy; it cannot be used with --manifests")
    if given.watch and given.output not in _WATCHED_FORMATS:
        made.error(f"--watch can be used with -o {', '.join(_WATCHED_FORMATS)}")
    return guarded("list", lambda: _list(given, flags))


def _list(given: argparse.Namespace, flags: Sequence[str]) -> int:
    query = ListQuery(
        namespace=given.namespace,
        selector=selector_from_text(given.selector),
        names=services_of(given),
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
        sys.stderr.write(f"pointsman list: {_nothing_found(given)}\n")
    if found.ports or given.output == "json":
        _print(given, found)
    if given.watch:
        _watch(given, _ask_live(given, query), found)
    return 0 if found.ports else 1


def _ask_live(given: argparse.Namespace, query: ListQuery) -> Ask:
    return lambda since: ask(
        given.control_socket, "/list", ServiceList, msgspec.structs.replace(query, since=since)
    )


def _nothing_found(given: argparse.Namespace) -> str:
    narrowed = given.services or given.namespace or given.selector or given.state
    return "no Service matches" if narrowed else "there are no Services"


def _print(given: argparse.Namespace, found: ServiceList) -> None:
    if given.output == "json":
        print_json(found)
    elif given.output == "yaml":
        import yaml

        sys.stdout.write(yaml.safe_dump(msgspec.to_builtins(found), sort_keys=False))
    elif given.output == "name":
        names = dict.fromkeys(port.service for port in found.ports)
        sys.stdout.write("".join(f"{escape(name)}\n" for name in names))
    else:
        _print_table(given, found.ports, heading=True)


def _print_table(given: argparse.Namespace, ports: Sequence[ServicePortReport], *, heading: bool) -> None:
    shown = list_text(ports, wide=given.output == "wide", screen=screen(given.color), heading=heading)
    sys.stdout.write(shown)


def _watch(given: argparse.Namespace, asked: Ask, before: ServiceList) -> None:
    """Until interrupted; a proxy that goes away is waited for."""
    known, version = {port.identity: port for port in before.ports}, before.version
    gone = False
    while True:
        sys.stdout.flush()
        time.sleep(_LOOK_SECONDS)
        try:
            now = asked(version)
        except NoProxy as error:
            if not gone:
                warn("list", [str(error)])
            gone, version = True, ""
            continue
        gone, version = False, now.version
        if now.unchanged:
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
            lines = (escape_json(msgspec.json.encode(port).decode()) for port in changed)
            sys.stdout.write("".join(f"{line}\n" for line in lines))
        elif changed:
            _print_table(given, changed, heading=False)
