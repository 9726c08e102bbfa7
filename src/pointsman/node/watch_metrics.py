"""Metrics of the watches: how long each has been silent, how often it failed, what it brought that cannot be used."""

from __future__ import annotations

import time
from collections.abc import Callable

from pointsman.kube.status import WatchStatus
from pointsman.node.surroundings import EventSource
from pointsman.obs.collectors import Reading
from pointsman.obs.registry import Metrics

_LABELS = ("resource",)


def expose_watches(source: EventSource, metrics: Metrics, *, ages: bool) -> None:
    """Has every scrape read the watches; a watch that says nothing cannot tell it itself.

    Ages are for an API server, which says something every minute. A directory is silent until somebody edits it.
    """

    def reading(value: Callable[[WatchStatus], float | None]) -> Reading:
        def read() -> dict[tuple[str, ...], float]:
            values = {(kind,): value(status) for kind, status in source.statuses.items()}
            return {labels: number for labels, number in values.items() if number is not None}

        return read

    if ages:
        metrics.add_scraped_gauge(
            "pointsman_watch_age_seconds",
            "Seconds since the API server last said anything (events, bookmarks, pages of lists)",
            _LABELS,
            reading(lambda status: None if status.absent else status.age(time.monotonic())),
        )
    metrics.add_scraped_counter(
        "pointsman_watch_failures_total",
        "Lists and watches that ended with an error",
        _LABELS,
        reading(lambda status: status.failures_total),
    )
    metrics.add_scraped_gauge(
        "pointsman_objects_unusable",
        "Objects that cannot be used at this moment",
        _LABELS,
        reading(lambda status: status.bad_objects),
    )
