"""The interactive `top`: keys and new figures into the view, its lines onto the screen."""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Callable
from typing import Final

import msgspec

from pointsman.cli.full_screen import FullScreen
from pointsman.cli.output import detect_screen
from pointsman.errors import PointsmanError
from pointsman.explain.service_port import ServicePortReport
from pointsman.report.traffic import TrafficReport
from pointsman.report.traffic_view import Options, Request, TrafficView
from pointsman.screen import Screen

_FIRST_SECONDS: Final = 0.5
"""Between the first two readings."""
_REDRAW_SECONDS: Final = 3600.0
"""Without a key, new figures or a resize."""

Read = Callable[[float], TrafficReport]
"""Waits so long, then reports what happened since the last reading."""
Explain = Callable[[ServicePortReport], Callable[[Screen], str]]
"""Asks about a Service, and returns what renders the answer."""


class _Readings:
    """Reads in the background, so that keys are answered while the kernel or other nodes take their time."""

    def __init__(self, read: Read, delay: float, on_result: Callable[[], None]) -> None:
        self._read, self._delay, self._on_result = read, delay, on_result
        self.latest: TrafficReport | Exception | None = None

    def start(self) -> None:
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        while True:
            try:
                self.latest = self._read(self._delay)
            except Exception as error:  # noqa: BLE001 raised or shown by the thread that draws
                self.latest = error
            self._on_result()


def run_view(given: argparse.Namespace, read: Read, explain: Explain) -> None:
    """Show the traffic until q is pressed."""
    view = TrafficView(read(min(_FIRST_SECONDS, given.delay)), Options(given.sort_by))
    with FullScreen() as terminal:
        readings = _Readings(read, given.delay, terminal.wake)
        readings.start()
        while True:
            screen, height = _measure(given.color)
            terminal.draw(view.render(screen, height))
            for key in terminal.read_keys(_REDRAW_SECONDS):
                request = view.press(key)
                if request is Request.QUIT:
                    return
                if request is Request.EXPLAIN and view.selected is not None:
                    _open_explanation(view, view.selected, explain)
            _take(view, readings)


def _take(view: TrafficView, readings: _Readings) -> None:
    latest, readings.latest = readings.latest, None
    if isinstance(latest, TrafficReport):
        view.update(latest)
    elif isinstance(latest, PointsmanError):
        view.report_error(str(latest))
    elif latest is not None:
        raise latest


def _measure(colour: str) -> tuple[Screen, int]:
    size = os.get_terminal_size(sys.stdout.fileno())
    return msgspec.structs.replace(detect_screen(colour), width=max(1, size.columns)), max(1, size.lines)


def _open_explanation(view: TrafficView, port: ServicePortReport, explain: Explain) -> None:
    try:
        render = explain(port)
    except PointsmanError as error:
        view.report_error(str(error))
    else:
        view.open_text(f"{port.name} {port.protocol}", render)
