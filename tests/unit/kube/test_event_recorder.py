"""Events reach the server in moderation, and nothing depends on them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.fake.apiserver import FakeApiServer
from tests.fake.skipping_clock import SkippingClock

from pointsman.kube.client import ApiClient
from pointsman.kube.event_recorder import EventObject, EventRecorder, refer_to_node

pytestmark = pytest.mark.usefixtures("protocol")

NODE = refer_to_node("n1")


@asynccontextmanager
async def recording(server: FakeApiServer, time: SkippingClock) -> AsyncIterator[EventRecorder]:
    client = ApiClient(server.access, qps=0, environ={})
    recorder = EventRecorder(client, node_name="n1", clock=time.clock)
    task = asyncio.create_task(recorder.run())
    try:
        yield recorder
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.close()


def stored(server: FakeApiServer) -> list[dict[str, Any]]:
    return list(server.store.objects["Event"].values())


async def test_event_carries_what_kubectl_shows() -> None:
    async with FakeApiServer() as server, recording(server, SkippingClock()) as recorder:
        recorder.record(NODE, "Starting", "")
        recorder.record(
            EventObject("Service", "web", "shop", "u-1"),
            "FailedToStartServiceHealthcheck",
            "node n1 failed to listen",
            warning=True,
            action="Listen",
        )
        await recorder.flush(10)
        first, second = stored(server)
        assert first["metadata"]["namespace"] == "default"
        assert first["regarding"] == {"kind": "Node", "name": "n1", "uid": "n1"}
        assert (first["type"], first["reason"], first["action"]) == (
            "Normal",
            "Starting",
            "StartKubeProxy",
        )
        assert (first["reportingController"], first["reportingInstance"]) == (
            "kube-proxy",
            "kube-proxy-n1",
        )
        assert first["eventTime"].endswith("Z")
        assert second["metadata"]["namespace"] == "shop"
        assert second["regarding"] == {
            "kind": "Service",
            "name": "web",
            "namespace": "shop",
            "uid": "u-1",
        }
        assert (second["type"], second["action"]) == ("Warning", "Listen")
        assert server.requests[1].path == "/apis/events.k8s.io/v1/namespaces/shop/events"


async def test_repetitions_become_one_series_updated_now_and_then() -> None:
    time = SkippingClock()
    async with FakeApiServer() as server, recording(server, time) as recorder:
        for _ in range(10):
            recorder.record(NODE, "Trouble", "again", warning=True)
        await recorder.flush(10)
        assert [seen.method for seen in server.requests] == ["POST", "PATCH"]
        assert stored(server)[0]["series"]["count"] == 2
        time.now += 120
        recorder.record(NODE, "Trouble", "again", warning=True)
        await recorder.flush(10)
        assert len(stored(server)) == 1
        assert stored(server)[0]["series"]["count"] == 11


async def test_series_whose_event_expired_starts_anew() -> None:
    time = SkippingClock()
    async with FakeApiServer() as server, recording(server, time) as recorder:
        recorder.record(NODE, "Trouble", "one")
        await recorder.flush(10)
        server.store.objects["Event"].clear()
        recorder.record(NODE, "Trouble", "two")
        await recorder.flush(10)
        assert [event["note"] for event in stored(server)] == ["two"]


async def test_flood_of_different_events_is_cut_and_counted() -> None:
    time = SkippingClock()
    async with FakeApiServer() as server, recording(server, time) as recorder:
        for number in range(1000):
            recorder.record(NODE, f"Reason{number}", "x")
        await recorder.flush(10)
        assert len(stored(server)) == 25
        assert recorder.dropped == 975
        time.now += 10
        recorder.record(NODE, "Later", "x")
        await recorder.flush(10)
        assert len(stored(server)) == 26


async def test_refusing_and_absent_servers_do_not_matter() -> None:
    async with FakeApiServer() as server, recording(server, SkippingClock()) as recorder:
        server.fail_next(403, path="events")
        recorder.record(NODE, "Refused", "x")
        await recorder.flush(10)
        await server.stop()
        recorder.record(NODE, "Nobody", "x")
        await recorder.flush(10)
        await server.start()
        recorder.record(NODE, "Back", "x")
        await recorder.flush(10)
        assert [event["reason"] for event in stored(server)] == ["Back"]
        assert recorder.dropped == 2


async def test_long_notes_are_cut_between_characters() -> None:
    async with FakeApiServer() as server, recording(server, SkippingClock()) as recorder:
        recorder.record(NODE, "Long", "ä" * 1000)
        await recorder.flush(10)
        body = json.loads(server.requests[0].body)
        assert len(body["note"].encode()) <= 1024
        assert body["note"].endswith("ä...")


async def test_an_event_that_cannot_be_encoded_does_not_silence_the_later_ones() -> None:
    async with FakeApiServer() as server, recording(server, SkippingClock()) as recorder:
        recorder.record(NODE, "Odd", "a lone surrogate: \ud800")
        recorder.record(NODE, "Starting", "")
        await recorder.flush(10)
        assert [event["reason"] for event in stored(server)] == ["Starting"]
        assert recorder.dropped == 1


async def test_a_name_is_encoded_once_in_the_path() -> None:
    time = SkippingClock()
    async with FakeApiServer() as server, recording(server, time) as recorder:
        for _ in range(2):
            recorder.record(refer_to_node("a:b%c"), "Starting", "")
        await recorder.flush(10)
        patch = server.requests[-1]
        assert patch.method == "PATCH"
        assert patch.path.rpartition("/")[2].startswith("a:b%c.")
        (event,) = stored(server)
        assert event["series"]["count"] == 2
