"""The whole client of an API server with a reader behind it, whose pauses take no time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from tests.fake.apiserver import FakeApiServer
from tests.fake.skipping_clock import SkippingClock
from tests.harness.waiting import async_wait_until

from pointsman.kube.client import ApiClient
from pointsman.kube.timing import Timing
from pointsman.model.objects import Delete, Service, SourceEvent, Upsert
from pointsman.source.api import ApiSource


class Consumer:
    """Everything the source says, kept like a proxy would keep it."""

    def __init__(self, server: FakeApiServer, *, watch_list: bool, patience: float) -> None:
        self.time = SkippingClock()
        self.services: set[str] = set()
        self.client = ApiClient(server.access, qps=0, environ={})
        self.source = ApiSource(
            self.client,
            node_name="n1",
            watch_list=watch_list,
            timing=Timing(
                self.time.clock, self.time.sleep, idle=patience, initial=patience, headers=patience
            ),
        )

    async def run(self) -> None:
        async for event in self.source.events():
            self._take(event)

    def _take(self, event: SourceEvent) -> None:
        match event:
            case Upsert(object=Service() as item):
                self.services.add(item.metadata.key)
            case Delete(kind=kind, key=key) if kind is Service:
                self.services.discard(key)


@contextlib.asynccontextmanager
async def consuming(
    server: FakeApiServer, *, watch_list: bool, patience: float = 30.0
) -> AsyncIterator[Consumer]:
    """Raises whatever the source raises."""
    consumer = Consumer(server, watch_list=watch_list, patience=patience)
    running = asyncio.create_task(consumer.run())
    try:
        yield consumer
        if running.done():
            running.result()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await consumer.client.close()


async def wait_for_services(consumer: Consumer, *names: str) -> None:
    wanted = {f"default/{name}" for name in names}
    await async_wait_until(lambda: wanted <= consumer.services, seconds=60)


async def wait_for_watches(server: FakeApiServer) -> None:
    await async_wait_until(lambda: server.watch_count() >= 4, seconds=60)
