"""The history of a proxy as data and as text: the answer of `pointsman events`, and the timeline of the page."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import msgspec

from pointsman.model.findings import Severity
from pointsman.model.history import EventKind, HistoryEvent
from pointsman.report.labels import ServiceLabels, ServiceSelection
from pointsman.screen import PLAIN, Screen, Table, Tone, lay_out
from pointsman.wording.history import describe_event

_TONES = {Severity.ERROR: Tone.BAD, Severity.WARNING: Tone.WARNING, Severity.NOTICE: None}


class HistoryQuery(ServiceSelection, frozen=True):
    """Which events to show; without a selection, those of the proxy and its node as well."""

    since: int = 0
    """The revision of an earlier answer: only events that are new or changed since."""


class HistoryReport(msgspec.Struct, frozen=True, rename="camel"):
    """The answer of `events`."""

    node: str
    revision: int
    events: tuple[HistoryEvent, ...]
    """The oldest first."""


def build_history(
    node: str, revision: int, events: Iterable[HistoryEvent], query: HistoryQuery, labels: ServiceLabels
) -> HistoryReport:
    found = (
        event
        for event in events
        if event.revision > query.since
        and (query.is_everything or (event.service and query.matches(event.service, labels)))
    )
    return HistoryReport(node, revision, tuple(map(describe_event, found)))


def render_history(events: Sequence[HistoryEvent], screen: Screen = PLAIN, *, heading: bool = True) -> str:
    """Return a table with one line per event, in local time."""
    rows = [["TIME", "SERVICE", "FAMILY", "EVENT", "MESSAGE"]] if heading else []
    rows += [
        [format_time(event.at), event.service or "-", event.family or "-", event.kind.value, event.message]
        for event in events
    ]
    tones = {kind.value: tone for kind in EventKind if (tone := _TONES[kind.severity]) is not None}
    return lay_out([Table(rows, tones, heading=heading)], screen)


def format_time(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))
