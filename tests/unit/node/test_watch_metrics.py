"""What is told of watches, and what would mean nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping

import pytest

from pointsman.kube.status import WatchStatus
from pointsman.model.source_events import SourceEvent
from pointsman.node.watch_metrics import expose_watches
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
def test_a_watch_has_an_age_and_a_directory_has_none(ages: bool) -> None:
    metrics = Metrics("nftables")
    expose_watches(Source(), metrics, ages=ages)
    text = metrics.exposition().decode()
    assert ('pointsman_watch_age_seconds{resource="Service"}' in text) is ages
    assert 'pointsman_watch_failures_total{resource="Service"} 3.0' in text
    assert 'pointsman_objects_unusable{resource="Service"} 2.0' in text


def test_a_kind_that_the_server_does_not_have_has_no_age() -> None:
    metrics, source = Metrics("nftables"), Source()
    source.statuses["Service"].absent = True
    expose_watches(source, metrics, ages=True)
    assert "pointsman_watch_age_seconds" not in metrics.exposition().decode()
