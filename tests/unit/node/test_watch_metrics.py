"""What is told of watches, and what would mean nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping

import pytest

from pointsman.kube.status import WatchStatus
from pointsman.model.source_events import SourceEvent
from pointsman.node.watch_metrics import measure_watches
from pointsman.obs.registry import Metrics


class Source:
    """A source that delivered something once, and two objects that nobody can use."""

    def __init__(self) -> None:
        self._status = WatchStatus(unlisted=2, failures_total=3)
        self._status.heard(time.monotonic())

    @property
    def statuses(self) -> Mapping[str, WatchStatus]:
        return {"Service": self._status}

    @property
    def trouble(self) -> str:
        return ""

    async def events(self) -> AsyncIterator[SourceEvent]:
        await asyncio.Event().wait()
        yield  # type: ignore[misc]

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("ages", [True, False])
async def test_a_watch_has_an_age_and_a_directory_has_none(ages: bool) -> None:
    metrics = Metrics("nftables")
    measuring = asyncio.create_task(measure_watches(Source(), metrics, ages=ages))
    await asyncio.sleep(0)
    measuring.cancel()
    text = metrics.exposition().decode()
    assert ('pointsman_watch_age_seconds{resource="Service"}' in text) is ages
    assert 'pointsman_watch_failures_total{resource="Service"} 3.0' in text
    assert 'pointsman_objects_unusable{resource="Service"} 2.0' in text
