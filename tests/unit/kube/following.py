"""A list-watch under test, followed event by event."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.fake.apiserver import FakeApiServer
from tests.fake.skipping_clock import SkippingClock
from tests.harness.waiting import async_wait_until

from pointsman.kube.client import MAX_BODY_BYTES, ApiClient
from pointsman.kube.resources import SERVICES, Resource
from pointsman.kube.status import WatchStatus
from pointsman.kube.timing import Timing
from pointsman.kube.watch import ListWatch
from pointsman.model.findings import Finding
from pointsman.model.objects import Delete, SourceEvent, Synced, Upsert


class Follower:
    """A list-watch under test, with everything it reports."""

    def __init__(
        self,
        server: FakeApiServer,
        resource: Resource[Any],
        *,
        idle: float,
        max_body: int,
        **options: Any,
    ) -> None:
        self._server = server
        self.status = WatchStatus()
        self.time = SkippingClock()
        self.bad: list[Finding] = []
        self.client = ApiClient(server.access, qps=0, environ={}, max_body=max_body)
        self.watch: ListWatch[Any] = ListWatch(
            self.client,
            resource,
            status=self.status,
            on_finding=self.bad.append,
            timing=Timing(self.time.clock, self.time.sleep, _middle, idle=idle),
            **options,
        )
        self.events: asyncio.Queue[SourceEvent] = asyncio.Queue()

    async def next(self) -> SourceEvent:
        async with asyncio.timeout(20):
            return await self.events.get()

    async def until_synced(self) -> list[SourceEvent]:
        seen: list[SourceEvent] = []
        while not seen or not isinstance(seen[-1], Synced):
            seen.append(await self.next())
        return seen

    async def until_watching(self) -> None:
        """Wait for the first list, and for the watch that follows it."""
        await self.until_synced()
        await async_wait_until(lambda: self._server.watch_count() == 1)

    async def next_text(self) -> str:
        return text(await self.next())


def _middle(low: float, high: float) -> float:
    return (low + high) / 2


def text(event: SourceEvent) -> str:
    match event:
        case Upsert(object=item):
            return f"+{item.metadata.key}@{item.metadata.resource_version}"
        case Delete(key=key):
            return f"-{key}"
        case Synced(kind=kind):
            return f"synced {kind.__name__}"


@asynccontextmanager
async def following(
    server: FakeApiServer,
    resource: Resource[Any] = SERVICES,
    *,
    idle: float = 180.0,
    max_body: int = MAX_BODY_BYTES,
    **options: Any,
) -> AsyncIterator[Follower]:
    """Raises whatever the list-watch raises."""
    follower = Follower(server, resource, idle=idle, max_body=max_body, **options)
    running = asyncio.ensure_future(follower.watch.follow(follower.events.put))
    try:
        yield follower
        if running.done():
            running.result()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await follower.client.close()


both_ways = pytest.mark.parametrize("watch_list", [True, False], ids=["watchlist", "paged"])
