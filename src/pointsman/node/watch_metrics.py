"""Metrics of the watches: how long each has been silent, and how often it failed."""

from __future__ import annotations

import asyncio
import time

from pointsman.node.surroundings import EventSource
from pointsman.obs.registry import Metrics

READ_SECONDS = 5.0


async def measure_watches(source: EventSource, metrics: Metrics) -> None:
    """Until cancelled; a watch that says nothing cannot do it itself."""
    failures: dict[str, int] = {}
    while True:
        for kind, status in source.statuses.items():
            age = status.age(time.monotonic())
            if age is not None:
                metrics.watch_age.labels(resource=kind).set(age)
            new = status.failures_total - failures.get(kind, 0)
            metrics.watch_failures.labels(resource=kind).inc(max(0, new))
            failures[kind] = status.failures_total
        await asyncio.sleep(READ_SECONDS)
