"""A list-watch under test, followed event by event."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from tests.fake.apiserver import FakeApiServer
from tests.fake.skipping_clock import SkippingClock

from pointsman.kube.access import Access
from pointsman.kube.listwatch import ListWatch
from pointsman.kube.resources import SERVICES, Resource
from pointsman.kube.status import WatchStatus
from pointsman.kube.timing import Timing
from pointsman.kube.transport import LARGEST_BODY, Transport
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
        largest_body: int,
        **options: Any,
    ) -> None:
        self.status = WatchStatus()
        self.time = SkippingClock()
        self.bad: list[Finding] = []
        self.transport = Transport(
            Access(server=server.url, origin="test"), qps=0, environ={}, largest_body=largest_body
        )
        self.watch: ListWatch[Any] = ListWatch(
            self.transport,
            resource,
            status=self.status,
            on_finding=self.bad.append,
            timing=Timing(self.time.clock, self.time.sleep, _middle, idle=idle),
            **options,
        )
        self.stream: AsyncGenerator[SourceEvent, None] = self.watch.events()

    async def next(self) -> SourceEvent:
        async with asyncio.timeout(20):
            return await anext(self.stream)

    async def until_synced(self) -> list[SourceEvent]:
        seen: list[SourceEvent] = []
        while not seen or not isinstance(seen[-1], Synced):
            seen.append(await self.next())
        return seen

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
    largest_body: int = LARGEST_BODY,
    **options: Any,
) -> AsyncIterator[Follower]:
    follower = Follower(server, resource, idle=idle, largest_body=largest_body, **options)
    try:
        async with aclosing(follower.stream):
            yield follower
    finally:
        await follower.transport.close()


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  the condition is about HTTP, which signals nothing
            await asyncio.sleep(0.005)


async def given_up(reading: asyncio.Future[str]) -> None:
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)


both_ways = pytest.mark.parametrize("watch_list", [True, False], ids=["watchlist", "paged"])
