"""Metrics of the watches: how long each has been silent, how often it failed, what it brought that cannot be used."""

from __future__ import annotations

import asyncio
import time

from pointsman.node.surroundings import EventSource
from pointsman.obs.registry import Metrics

READ_SECONDS = 5.0


async def measure_watches(source: EventSource, metrics: Metrics, *, ages: bool) -> None:
    """Until cancelled; a watch that says nothing cannot do it itself.

    Ages are for an API server, which says something every minute. A directory is silent until somebody edits it.
    """
    failures: dict[str, int] = {}
    while True:
        for kind, status in source.statuses.items():
            age = status.age(time.monotonic())
            if ages and age is not None:
                metrics.watch_age.labels(resource=kind).set(age)
            new = status.failures_total - failures.get(kind, 0)
            metrics.watch_failures.labels(resource=kind).inc(max(0, new))
            failures[kind] = status.failures_total
            metrics.objects_unusable.labels(resource=kind).set(status.bad_objects)
        await asyncio.sleep(READ_SECONDS)
