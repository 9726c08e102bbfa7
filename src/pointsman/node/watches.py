"""Conditions of the API server, of each watch and of what it delivers; metrics of watches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from pointsman.conditions import Blocks, Condition
from pointsman.kube.status import WatchStatus
from pointsman.node.health import join_first
from pointsman.node.start import EventSource
from pointsman.obs.collectors import Reading
from pointsman.obs.registry import Metrics
from pointsman.wording.findings import render_finding

ANSWER_TIMEOUT_SECONDS = 3.0
"""For the first answer of the API server. A connection attempt takes far longer to fail, and a wrong address is the most
frequent mistake in a new cluster."""

_API_SERVER = "APIServer"
_LABELS = ("resource",)


class WatchConditions:
    """Conditions of one source of objects.

    The API server is unreachable when no watch is connected and the last attempt of one got no answer. A single failed request
    does not count: events are sent over connections of their own.
    """

    def __init__(
        self,
        source: EventSource,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._clock = clock
        self._started = clock()

    def server_conditions(self) -> Iterator[Condition]:
        """Yield the condition of the API server, where the source has one."""
        if self._source.server:
            yield self._build_server_condition()

    def conditions(self) -> Iterator[Condition]:
        """Yield those of each watch and its objects. A watch logs its own failures, and the source each object that cannot be used."""
        is_reachable = all(server.is_true for server in self.server_conditions())
        for kind, status in self._source.statuses.items():
            yield _build_watch_condition(kind, status, is_reachable=is_reachable)
            yield _build_objects_condition(kind, status)

    def _build_server_condition(self) -> Condition:
        statuses = self._source.statuses.values()
        if any(status.connected or status.absent for status in statuses):
            return Condition.true(_API_SERVER, Blocks.SERVICES)
        failures = [status for status in statuses if status.failures]
        if any(status.answered for status in failures):
            return Condition.true(_API_SERVER, Blocks.SERVICES)
        if failures:
            return self._build_unreachable("Unreachable", failures[0].last_error)
        if self._clock() - self._started < ANSWER_TIMEOUT_SECONDS:
            return Condition.unknown(_API_SERVER, "Connecting", "no answer yet", blocks=Blocks.SERVICES)
        return self._build_unreachable("NoAnswer", f"no answer for {ANSWER_TIMEOUT_SECONDS:.0f} s")

    def _build_unreachable(self, reason: str, detail: str) -> Condition:
        """Return the failure, without advice to change an address that worked before."""
        worked = any(status.synced for status in self._source.statuses.values())
        return Condition.false(
            _API_SERVER,
            reason,
            f"cannot reach the API server at {self._source.server}: {detail}",
            "" if worked else self._source.advice,
            blocks=Blocks.SERVICES,
        )


def _build_watch_condition(kind: str, status: WatchStatus, *, is_reachable: bool) -> Condition:
    type_ = f"Watch{kind[0].upper()}{kind[1:]}"
    if status.connected or status.absent or (status.bad_objects and not status.failures):
        return Condition.true(type_, Blocks.SERVICES)
    if not is_reachable:
        message = "the API server cannot be reached"
        return Condition.unknown(type_, "APIServerUnreachable", message, blocks=Blocks.SERVICES)
    if not status.failures:
        return Condition.unknown(type_, "Connecting", "not connected yet", blocks=Blocks.SERVICES)
    return Condition.false(type_, "WatchFailed", status.last_error, blocks=Blocks.SERVICES)


def _build_objects_condition(kind: str, status: WatchStatus) -> Condition:
    """Return whether every object that was delivered can be used."""
    type_ = f"Objects{kind[0].upper()}{kind[1:]}"
    if not status.bad_objects:
        return Condition.true(type_, Blocks.SERVICES)
    found = join_first(map(render_finding, status.rejected.values()), status.bad_objects)
    noun = "object" if status.bad_objects == 1 else "objects"
    message = f"{status.bad_objects} {noun} cannot be used: {found}"
    return Condition.false(type_, "ObjectsRejected", message, blocks=Blocks.SERVICES)


def expose_watches(source: EventSource, metrics: Metrics, *, ages: bool) -> None:
    """Have every scrape read the watches; a watch that is idle cannot report its own age.

    Ages are for an API server, which sends something every minute. A directory is idle until a file is edited.
    """

    def read_as(value: Callable[[WatchStatus], float | None]) -> Reading:
        def read() -> dict[tuple[str, ...], float]:
            values = {(kind,): value(status) for kind, status in source.statuses.items()}
            return {labels: number for labels, number in values.items() if number is not None}

        return read

    if ages:
        metrics.add_scraped_gauge(
            "pointsman_watch_age_seconds",
            "Seconds since the API server last sent anything (events, bookmarks, pages of lists)",
            _LABELS,
            read_as(lambda status: None if status.absent else status.age(time.monotonic())),
        )
    metrics.add_scraped_counter(
        "pointsman_watch_failures_total",
        "Lists and watches that ended with an error",
        _LABELS,
        read_as(lambda status: status.failures_total),
    )
    metrics.add_scraped_gauge(
        "pointsman_objects_unusable",
        "Objects that cannot be used at this moment",
        _LABELS,
        read_as(lambda status: status.bad_objects),
    )
