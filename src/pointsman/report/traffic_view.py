"""The interactive `top`: what is shown, selected and asked for, from keys and reports to lines of a screen. Pure."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence

import msgspec

from pointsman.explain.service_port import Identity, ServicePortReport
from pointsman.model.decision import State
from pointsman.report.traffic import (
    SORTS,
    TrafficReport,
    build_traffic_rows,
    fit_traffic_rows,
    is_idle,
    sort_ports,
)
from pointsman.screen import Screen, Table, Tone, lay_out
from pointsman.text import escape

_REVERSED = 7
_LINES_AROUND = 3
"""Above and below the rows: a title, the heading, the footer."""
_KEYS = (
    ("up, down, page up, page down, home, end", "select a line"),
    ("Enter", "explain the selected Service"),
    ("Esc", "back to the table; remove the filter"),
    ("/", "filter by name, address, pod, node or state"),
    ("s", f"sort by the next of {', '.join(SORTS)}"),
    ("i", "hide or show idle Services"),
    ("space", "pause or continue"),
    ("q", "quit"),
)
_TONES = {State.DOWN: Tone.BAD, State.PARTIAL: Tone.WARNING, State.HEALTHY: Tone.BOLD}


class Request(enum.Enum):
    """Action that a key requests from the caller."""

    QUIT = "quit"
    EXPLAIN = "explain"


class Options(msgspec.Struct, frozen=True):
    """Which Services are shown, and in which order."""

    sort: str = "rate"
    filter: str = ""
    hides_idle: bool = False
    paused: bool = False

    def select(self, ports: Sequence[ServicePortReport]) -> list[ServicePortReport]:
        return [
            port
            for port in sort_ports(ports, self.sort)
            if _contains(port, self.filter) and not (self.hides_idle and is_idle(port.traffic))
        ]

    def describe(self) -> str:
        parts = [f"by {self.sort}", f"filter {self.filter!r}" if self.filter else ""]
        parts += ["idle hidden" if self.hides_idle else "", "paused" if self.paused else ""]
        return ", ".join(filter(None, parts))


class Line(msgspec.Struct, frozen=True):
    """One line of the table: a service port, or one of its endpoints."""

    port: ServicePortReport
    endpoint: str
    """Its address; empty for the service port itself."""
    cells: list[str]

    @property
    def identity(self) -> tuple[Identity, str]:
        return self.port.identity, self.endpoint


class TextView:
    """A text that can be scrolled."""

    def __init__(self, title: str, render: Callable[[Screen], str]) -> None:
        self._title, self._render = title, render
        self._top = 0

    def move(self, step: int) -> None:
        self._top = max(0, self._top + step)

    def render(self, screen: Screen, height: int) -> list[str]:
        lines = self._render(screen).splitlines()
        page = max(1, height - _LINES_AROUND + 1)
        self._top = max(0, min(self._top, len(lines) - page))
        shown = lines[self._top : self._top + page]
        more = f"; line {self._top + 1} of {len(lines)}" if len(lines) > page else ""
        footer = screen.dim(_cut(f"Esc back, up and down scroll{more}", screen))
        return [screen.bold(_cut(self._title, screen)), *shown, *[""] * (page - len(shown)), footer]


class TrafficView:
    """State between two keys. The selection stays with its line when new figures change the order."""

    def __init__(self, report: TrafficReport, options: Options) -> None:
        self._report, self._options = report, options
        self._error = ""
        self._is_typing = False
        self._selected: tuple[Identity, str] | None = None
        self._top, self._page = 0, 1
        self._text: TextView | None = None

    def update(self, report: TrafficReport) -> None:
        """Show new figures, unless paused."""
        self._error = ""
        if not self._options.paused:
            self._report = report

    def report_error(self, text: str) -> None:
        """Show why there are no new figures, until there are."""
        self._error = text

    def open_text(self, title: str, render: Callable[[Screen], str]) -> None:
        """Show a text until Esc is pressed."""
        self._text = TextView(title, render)

    @property
    def selected(self) -> ServicePortReport | None:
        """The Service that Enter is about."""
        lines = self._list_lines(Screen())
        return lines[self._find_selected(lines)].port if lines else None

    def press(self, key: str) -> Request | None:
        """Take a key, by its name or as a character; return what the caller has to do."""
        step = {"up": -1, "down": 1, "page up": -self._page, "page down": self._page}.get(key, 0)
        step = {"home": -(1 << 30), "end": 1 << 30}.get(key, step)
        if self._text is not None:
            self._text.move(step)
            self._text = None if key in ("escape", "q", "left") else self._text
        elif self._is_typing and not step:
            self._edit_filter(key)
        elif step:
            self._move(step)
        else:
            return self._press_command(key)
        return None

    def _press_command(self, key: str) -> Request | None:
        options = self._options
        changed = options
        if key == "s":
            order = list(SORTS)
            changed = msgspec.structs.replace(
                options, sort=order[(order.index(options.sort) + 1) % len(order)]
            )
        elif key == "i":
            changed = msgspec.structs.replace(options, hides_idle=not options.hides_idle)
        elif key == " ":
            changed = msgspec.structs.replace(options, paused=not options.paused)
        elif key == "escape":
            changed = msgspec.structs.replace(options, filter="")
        elif key == "/":
            self._is_typing = True
        elif key == "?":
            notes = [f"! {note}" for note in self._report.notes]
            self.open_text("Keys", lambda screen: lay_out([Table(_KEYS, heading=False), "", *notes], screen))
        self._options = changed
        return {"q": Request.QUIT, "enter": Request.EXPLAIN}.get(key)

    def _edit_filter(self, key: str) -> None:
        text = self._options.filter
        if key == "escape":
            text = ""
        elif key == "backspace":
            text = text[:-1]
        elif len(key) == 1:
            text += key
        self._is_typing = key not in ("enter", "escape")
        self._options = msgspec.structs.replace(self._options, filter=text)

    def _move(self, step: int) -> None:
        lines = self._list_lines(Screen())
        if lines:
            place = max(0, min(self._find_selected(lines) + step, len(lines) - 1))
            self._selected = lines[place].identity

    def render(self, screen: Screen, height: int) -> list[str]:
        """Return at most `height` lines, none wider than the screen."""
        self._page = max(1, height - _LINES_AROUND)
        if self._text is not None:
            return self._text.render(screen, height)
        lines = self._list_lines(screen)
        heading, *rows = fit_traffic_rows((line.cells for line in lines), screen)
        place = self._find_selected(lines)
        self._top = max(0, min(max(self._top, place - self._page + 1), place, len(rows)))
        shown = range(self._top, min(len(rows), self._top + self._page))
        report, options = self._report, self._options
        title = f"{report.node}, {report.mode} mode, over {report.seconds:.1f} s, {options.describe()}"
        footer = self._error or "; ".join(("q quit, ? keys, / filter, s sort, Enter explain", *report.notes))
        if self._is_typing:
            footer = f"Filter: {options.filter}_ (Enter keeps it, Esc removes it)"
        return [
            screen.bold(_cut(title, screen)),
            screen.bold(heading),
            *(_paint(rows[at], lines[at], screen, is_selected=at == place) for at in shown),
            *[""] * (self._page - len(shown)),
            screen.dim(_cut(footer, screen)),
        ]

    def _list_lines(self, screen: Screen) -> list[Line]:
        return [
            Line(port, endpoint, cells)
            for port in self._options.select(self._report.ports)
            for endpoint, cells in build_traffic_rows(port, screen)
        ]

    def _find_selected(self, lines: Sequence[Line]) -> int:
        """Return the place of the selected line; the first one when that is gone."""
        return next((at for at, line in enumerate(lines) if line.identity == self._selected), 0)


def _contains(port: ServicePortReport, text: str) -> bool:
    if text in port.name or text in port.state or text in port.family:
        return True
    shown = (part for one in port.endpoints for part in (one.address, one.pod, one.node))
    return any(text in part for part in (*(f.address for f in port.frontends), *shown))


def _cut(text: str, screen: Screen) -> str:
    shown = screen.to_plain(escape(text))
    return shown[: screen.width] if screen.width else shown


def _paint(row: str, line: Line, screen: Screen, *, is_selected: bool) -> str:
    if is_selected:
        return screen.paint(row.ljust(screen.width), _REVERSED)
    if not line.endpoint:
        return screen.apply_tone(row, _TONES[line.port.state])
    return row
