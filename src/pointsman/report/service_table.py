"""Lists of service ports as tables: the columns of `list`, and those that a user defines. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from pointsman.errors import PointsmanError
from pointsman.explain.service_port import EndpointReport, ServicePortReport
from pointsman.model.decision import State
from pointsman.model.plan import FrontendKind
from pointsman.screen import PLAIN, Screen, Table, Tone, choose_columns, lay_out, measure_columns
from pointsman.text import join_some

_MAX_ADDRESSES_SHOWN = 10
_TONES = {State.HEALTHY.value: Tone.GOOD, State.PARTIAL.value: Tone.WARNING, State.DOWN.value: Tone.BAD}
_EXTERNAL = frozenset((FrontendKind.EXTERNAL_IP.value, FrontendKind.LOAD_BALANCER_IP.value))
_STEP = re.compile(r"\.?(?P<name>[A-Za-z]\w*)|\[(?P<index>\*|\d+)\]")
_EMPTY = "-"


class BadColumns(PointsmanError):
    """Columns of -o custom-columns cannot be understood; the message shows the form."""


class Column(msgspec.Struct, frozen=True):
    """One column of a table of service ports."""

    heading: str
    render: Callable[[ServicePortReport], str]
    optional: int = 0
    """Left out on a narrow screen, those with a low number first; 0: never."""


def _list_external(port: ServicePortReport) -> str:
    return _join([frontend.ip for frontend in port.frontends if frontend.kind in _EXTERNAL])


def _list_node_port(port: ServicePortReport) -> str:
    return _join([str(f.port) for f in port.frontends if f.kind == FrontendKind.NODE_PORT.value])


def _list_policies(port: ServicePortReport) -> str:
    return "/".join(dict.fromkeys(frontend.policy for frontend in port.frontends if frontend.policy))


def _join(items: Sequence[str]) -> str:
    return join_some(items, _MAX_ADDRESSES_SHOWN)


COLUMNS = (
    Column("SERVICE", lambda port: port.service),
    Column("TYPE", lambda port: port.type, 2),
    Column("PORT", lambda port: port.port_text),
    Column("ADDRESS", lambda port: port.frontends[0].address),
    Column("EXTERNAL", _list_external, 3),
    Column("NODE-PORT", _list_node_port, 4),
    Column("ENDPOINTS", lambda port: f"{port.usable}/{port.total}"),
    Column("POLICY", _list_policies, 1),
    Column("STATE", lambda port: "deleted" if port.deleted else port.state),
)
WIDE_COLUMNS = (
    *(msgspec.structs.replace(column, optional=0) for column in COLUMNS),
    Column("FAMILY", lambda port: port.family),
    Column("LOCAL", lambda port: str(port.local)),
    Column("AFFINITY", lambda port: f"{port.affinity_seconds} s" if port.affinity_seconds else ""),
    Column("TOPOLOGY", lambda port: port.topology),
    Column("SCHEDULER", lambda port: port.scheduler),
    Column("GONE", lambda port: "reset" if port.resets_gone else ""),
    Column(
        "USED",
        lambda port: _join([_describe_endpoint(endpoint) for endpoint in port.endpoints if endpoint.used]),
    ),
    Column(
        "UNUSED",
        lambda port: _join(
            [_describe_endpoint(endpoint) for endpoint in port.endpoints if not endpoint.used]
        ),
    ),
)


def parse_columns(text: str) -> tuple[Column, ...]:
    """Parse `NAME:.service,STATE:.state` as kubectl does; the fields are those of -o json. Raises BadColumns."""
    return tuple(_parse_column(part) for part in text.split(","))


def _parse_column(part: str) -> Column:
    heading, _, path = part.partition(":")
    path = path.strip("{}")
    if not heading or not path or _STEP.sub("", path):
        raise BadColumns(
            f"cannot understand the column {part!r}: write HEADING:.FIELD, such as NAME:.service or "
            "IP:.endpoints[*].address; -o json shows the fields"
        )
    steps = [match["name"] or match["index"] for match in _STEP.finditer(path)]
    return Column(heading, lambda port: _join(list(_select(msgspec.to_builtins(port), steps))))


def _select(value: Any, steps: Sequence[str]) -> Iterator[str]:
    """Yield what is at that place in a document, as text."""
    if not steps:
        yield value if isinstance(value, str) else msgspec.json.encode(value).decode()
        return
    step, rest = steps[0], steps[1:]
    if isinstance(value, dict) and step in value:
        yield from _select(value[step], rest)
    elif isinstance(value, list | tuple) and step == "*":
        for one in value:
            yield from _select(one, rest)
    elif isinstance(value, list | tuple) and step.isdigit() and int(step) < len(value):
        yield from _select(value[int(step)], rest)


class ListTable:
    """A table whose rows may come at different times and stay below their headings."""

    def __init__(self, columns: Sequence[Column], screen: Screen = PLAIN) -> None:
        self._columns, self._screen = tuple(columns), screen
        self._widths: list[int] = []

    def render(
        self, ports: Sequence[ServicePortReport], *, heading: bool = True, keep_empty: bool = False
    ) -> str:
        """Return a line per service port. The first call chooses the columns; empty ones may be kept."""
        headings = [column.heading for column in self._columns]
        rows = [[column.render(port) for column in self._columns] for port in ports]
        if not self._widths:
            ranks = {at: column.optional for at, column in enumerate(self._columns) if column.optional}
            optional = sorted(ranks, key=ranks.__getitem__)
            kept = choose_columns([headings, *rows], optional, self._screen.width, keep_empty=keep_empty)
            self._columns = tuple(self._columns[at] for at in kept)
            headings, *rows = [[row[at] for at in kept] for row in (headings, *rows)]
            self._widths = measure_columns([headings, *rows])
        rows = [[cell or _EMPTY for cell in row] for row in rows]
        rows = [headings, *rows] if heading else rows
        self._widths = list(map(max, self._widths, measure_columns(rows)))
        return lay_out([Table(rows, _TONES, heading=heading, min_widths=self._widths)], self._screen)


def _describe_endpoint(endpoint: EndpointReport) -> str:
    return f"{endpoint.address} ({endpoint.pod})" if endpoint.pod else endpoint.address
