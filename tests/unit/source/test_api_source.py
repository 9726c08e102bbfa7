"""Four watches as one source."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from typing import Any

import pytest
from tests.fake.apiserver import FakeApiServer
from tests.fake.skipping_clock import SkippingClock
from tests.harness.kube_objects import endpoint_slice, node, service, service_cidr
from tests.harness.waiting import async_wait_until

from pointsman.kube.client import ApiClient
from pointsman.kube.timing import Timing
from pointsman.model.findings import Finding
from pointsman.model.objects import KubeObject, SourceEvent, Synced, Upsert
from pointsman.source.api import ApiSource


def source_for(server: FakeApiServer, **options: Any) -> tuple[ApiClient, ApiSource]:
    client = ApiClient(server.access, qps=0, environ={})
    return client, ApiSource(client, node_name="n1", **options)


async def until_all_synced(stream: Any) -> list[SourceEvent]:
    seen: list[SourceEvent] = []
    async with asyncio.timeout(20):
        while sum(isinstance(event, Synced) for event in seen) < 4:
            seen.append(await anext(stream))
    return seen


async def test_all_kinds_are_delivered_each_before_its_synced() -> None:
    async with FakeApiServer() as server:
        server.add(node("n1"))
        server.add(node("n2"))
        server.add(service_cidr("kubernetes", "10.96.0.0/12"))
        for number in range(300):
            server.add(service(f"s{number}"))
            server.add(endpoint_slice(f"s{number}-1", "10.1.0.1"))
        client, source = source_for(server)
        async with aclosing(source.events()) as stream:
            events = await until_all_synced(stream)
            counts: dict[str, int] = {}
            synced: set[type[KubeObject]] = set()
            for event in events:
                if isinstance(event, Upsert):
                    assert type(event.object) not in synced
                    name = type(event.object).__name__
                    counts[name] = counts.get(name, 0) + 1
                elif isinstance(event, Synced):
                    synced.add(event.kind)
            assert counts == {"Node": 1, "ServiceCIDR": 1, "Service": 300, "EndpointSlice": 300}
            assert {name: status.objects for name, status in source.statuses.items()} == counts
            assert all(status.synced for status in source.statuses.values())
        await client.close()


async def test_one_kind_in_trouble_does_not_hold_up_the_others() -> None:
    time = SkippingClock()
    async with FakeApiServer() as server:
        server.fail_next(500, path="endpointslices", times=5)
        server.add(service("a"))
        server.add(endpoint_slice("a-1", "10.1.0.1"))
        client, source = source_for(server, timing=Timing(time.clock, time.sleep))
        async with aclosing(source.events()) as stream:
            await until_all_synced(stream)
            assert source.statuses["EndpointSlice"].failures_total >= 4
            assert source.statuses["Service"].failures_total == 0
        await client.close()


async def test_bad_objects_are_reported_with_their_kind() -> None:
    bad: list[Finding] = []
    async with FakeApiServer() as server:
        server.add(service("broken", clusterIP=5))
        client, source = source_for(server, on_finding=bad.append)
        async with aclosing(source.events()) as stream:
            await until_all_synced(stream)
        await client.close()
    assert [(entry.object.kind, entry.object.key) for entry in bad] == [("Service", "default/broken")]


async def test_close_ends_the_iteration_and_every_watch() -> None:
    async with FakeApiServer() as server:
        client, source = source_for(server)
        stream = source.events()
        await until_all_synced(stream)
        waiting = asyncio.ensure_future(anext(stream, None))
        await asyncio.sleep(0.05)
        await source.close()
        async with asyncio.timeout(20):
            assert await waiting is None
            while server.watch_count():  # noqa: ASYNC110  the server notices over TCP
                await asyncio.sleep(0.01)
        await client.close()


async def test_fault_of_our_own_reaches_the_consumer() -> None:
    def report(*_: object) -> None:
        raise ZeroDivisionError

    async with FakeApiServer() as server:
        server.add(service("broken", clusterIP=5))
        client, source = source_for(server, on_finding=report)
        with pytest.raises(ZeroDivisionError):
            await until_all_synced(source.events())
        await client.close()


async def test_the_watches_do_not_log_the_recovery_of_an_unreachable_server(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is one condition, logged once for all of them."""
    caplog.set_level(logging.INFO)
    time = SkippingClock()
    async with FakeApiServer() as server:
        client, source = source_for(server, timing=Timing(time.clock, time.sleep))
        async with aclosing(source.events()) as stream:
            await until_all_synced(stream)
            statuses = source.statuses.values()
            await server.stop()
            await async_wait_until(lambda: all(status.failures for status in statuses))
            await server.start()
            await async_wait_until(lambda: all(status.connected for status in statuses))
        await client.close()
    failures = [entry for entry in caplog.records if entry.levelno > logging.INFO]
    assert failures
    assert [entry.getMessage() for entry in caplog.records if entry not in failures] == []
