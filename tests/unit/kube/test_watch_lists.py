"""The first list of a kind, in one piece or in pages, from servers that can and cannot."""

from __future__ import annotations

import asyncio
import itertools
import json

import pytest
from tests.fake.apiserver import FakeApiServer
from tests.harness.kube_objects import service
from tests.harness.waiting import async_wait_until
from tests.unit.kube.following import both_ways, following, text
from tests.unit.kube.lies import LIES

from pointsman.kube.codec import MAX_JSON_VALUES
from pointsman.model.objects import Service, Upsert

pytestmark = pytest.mark.usefixtures("protocol")


@both_ways
async def test_initial_objects_then_synced_then_changes(watch_list: bool) -> None:
    async with FakeApiServer(watch_list=watch_list) as server:
        server.add(service("a"))
        server.add(service("b"))
        async with following(server) as follower:
            initial = [text(event) for event in await follower.until_synced()]
            assert initial == ["+default/a@101", "+default/b@102", "synced Service"]
            server.add(service("c"))
            assert await follower.next_text() == "+default/c@103"
            server.update(service("a", externalIPs=["192.0.2.1"]))
            changed = await follower.next()
            assert isinstance(changed, Upsert)
            assert isinstance(changed.object, Service)
            assert changed.object.spec.external_ips == ["192.0.2.1"]
            server.delete("Service", "default/b")
            assert await follower.next_text() == "-default/b"
            assert follower.status.connected
            assert follower.status.objects == 2
            assert follower.status.failures_total == 0


@pytest.mark.parametrize("chunk_size", [None, 1, 7])
@pytest.mark.parametrize("compressed", [True, False], ids=["gzip", "identity"])
async def test_a_streamed_list_continues_as_the_watch(compressed: bool, chunk_size: int | None) -> None:
    """Servers compress all of it, in members that end anywhere in the pieces that arrive, or none of it."""
    async with FakeApiServer() as server:
        server.compresses_watches, server.chunk_size = compressed, chunk_size
        for number in range(20):
            server.add(service(f"s{number}"))
        async with following(server) as follower:
            assert len(await follower.until_synced()) == 21
            assert follower.status.connected
            server.update(service("s1", type="NodePort"))
            assert await follower.next_text() == "+default/s1@121"
            server.delete("Service", "default/s2")
            assert await follower.next_text() == "-default/s2"
            (request,) = server.requests
            assert "gzip" in request.headers["Accept-Encoding"]
            server.end_watches()
            server.add(service("zulu"))
            assert await follower.next_text() == "+default/zulu@123"
            assert follower.status.lists == 1
            assert follower.status.failures_total == 0


async def test_an_expired_version_in_the_stream_of_a_list_leads_to_another_streamed_list() -> None:
    async with FakeApiServer() as server:
        server.add(service("a"))
        async with following(server) as follower:
            await follower.until_synced()
            server.send_error("Service", 410, "Expired")
            await async_wait_until(lambda: follower.status.lists == 2)
            assert all("sendInitialEvents" in seen.query for seen in server.requests)


async def test_server_without_watch_list_is_asked_once_and_then_in_pages() -> None:
    async with FakeApiServer(watch_list=False) as server:
        for number in range(7):
            server.add(service(f"s{number}"))
        async with following(server, page_limit=3) as follower:
            assert len(await follower.until_synced()) == 8
            server.compact()
            server.end_watches()
            server.add(service("zulu"))
            assert await follower.next_text() == "+default/zulu@109"
    streamed = [seen for seen in server.requests if "sendInitialEvents" in seen.query]
    pages = [seen.query for seen in server.requests if not seen.is_watch]
    assert len(streamed) == 1
    assert [page["limit"] for page in pages] == ["3"] * 6
    assert ["continue" in page for page in pages] == [False, True, True] * 2


async def test_error_event_instead_of_initial_events_falls_back_to_pages() -> None:
    """A server over an old etcd answers 200 and then an ERROR event."""

    async with FakeApiServer() as server:
        server.add(service("a"))
        error = {
            "type": "ERROR",
            "object": {"kind": "Status", "code": 500, "message": "progress is disabled"},
        }
        server.fail_next(200, watch=True, body=json.dumps(error).encode() + b"\n")
        async with following(server) as follower:
            assert len(await follower.until_synced()) == 2
            assert follower.status.failures_total == 0
            assert follower.time.pauses == []


async def test_initial_events_without_an_end_fall_back_to_pages() -> None:
    async with FakeApiServer() as server:
        server.add(service("a"))
        added = {"type": "ADDED", "object": server.store.get("Service", "default/a")}
        server.fail_next(200, watch=True, body=json.dumps(added).encode() + b"\n")
        async with following(server) as follower:
            assert [text(event) for event in await follower.until_synced()] == [
                "+default/a@101",
                "synced Service",
            ]


async def test_snapshot_expiring_between_pages_restarts_with_one_unpaged_list() -> None:
    async with FakeApiServer(watch_list=False) as server:
        for number in range(5):
            server.add(service(f"s{number}"))
        async with following(server, page_limit=2, watch_list=False) as follower:
            first = await follower.next_text()
            server.expire_pages()
            server.delete("Service", "default/s0")
            rest = [text(event) for event in await follower.until_synced()]
            assert first == "+default/s0@101"
            assert rest == [
                "+default/s1@102",
                "+default/s2@103",
                "+default/s3@104",
                "+default/s4@105",
                "-default/s0",
                "synced Service",
            ]
    assert "limit" not in [seen for seen in server.requests if not seen.is_watch][-1].query


async def test_pages_too_large_to_take_are_asked_for_in_smaller_ones() -> None:
    async with FakeApiServer(watch_list=False) as server:
        for number in range(9):
            server.add(service(f"s{number}", externalName="x" * 1000))
        async with following(server, watch_list=False, page_limit=8, max_body=5000) as follower:
            assert len(await follower.until_synced()) == 10
            assert follower.status.failures_total == 0
    assert {seen.query["limit"] for seen in server.requests if not seen.is_watch} == {"8", "2"}


async def test_pages_too_dense_to_decode_are_requested_in_smaller_ones() -> None:
    dense = {"annotations": {"values": "," * (MAX_JSON_VALUES // 10)}}
    async with FakeApiServer(watch_list=False, speaks_protobuf=False) as server:
        for number in range(12):
            server.add(service(f"s{number}", metadata=dense))
        async with following(server, watch_list=False, page_limit=12) as follower:
            assert len(await follower.until_synced()) == 13
            assert follower.status.failures_total == 0
        limits = [seen.query["limit"] for seen in server.requests if "limit" in seen.query]
    assert limits == ["12", "3", "3", "3", "3"]


async def test_a_page_of_objects_that_cannot_be_used_lets_others_run() -> None:
    items = [{"metadata": {"name": f"s{number}", "namespace": "a"}, "spec": 1} for number in range(5000)]
    page = {"metadata": {"resourceVersion": "7"}, "items": items}
    async with FakeApiServer(watch_list=False) as server:
        server.fail_next(200, path="services", watch=False, body=json.dumps(page).encode())
        async with following(server, watch_list=False) as follower:
            seen: set[int] = {0}
            while not follower.status.synced:
                await asyncio.sleep(0)
                seen.add(follower.status.bad_objects)
    steps = [later - earlier for earlier, later in itertools.pairwise(sorted(seen))]
    assert max(seen) == 5000
    assert max(steps) <= 200


async def test_a_list_too_slow_in_pages_and_too_large_in_one_piece_is_tried_again_after_a_pause() -> None:
    async with FakeApiServer(watch_list=False) as server:
        for number in range(9):
            server.add(service(f"s{number}", externalName="x" * 1000))
        first = {"metadata": {"resourceVersion": "7", "continue": "old"}, "items": []}
        for _ in range(2):
            server.fail_next(200, path="services", watch=False, body=json.dumps(first).encode())
            server.fail_next(410, path="services", watch=False)
            server.fail_next(200, path="services", watch=False, body=b" " * 6000)
        async with following(server, watch_list=False, page_limit=2, max_body=5000) as follower:
            assert len(await follower.until_synced()) == 10
            assert "larger than 0 MiB" in follower.status.last_error
            assert follower.time.pauses == pytest.approx([1.2, 2.4])


async def test_garbage_instead_of_a_list_is_retried() -> None:
    async with FakeApiServer(watch_list=False) as server:
        server.add(service("a"))
        server.fail_next(200, body=b"<html>maintenance</html>", watch=False)
        async with following(server) as follower:
            assert len(await follower.until_synced()) == 2
            assert "unreadable list" in follower.status.last_error
            assert follower.time.pauses == [pytest.approx(1.2)]


@pytest.mark.parametrize("name", ["a list of another kind", "a list of another kind in protobuf"])
async def test_a_list_of_another_kind_deletes_nothing(name: str) -> None:
    (lie,) = (lie for lie in LIES if lie.name == name)
    async with FakeApiServer(watch_list=False) as server:
        server.add(service("a"))
        async with following(server, watch_list=False) as follower:
            await follower.until_watching()
            server.answer_raw(lie.answer, path="services", watch=False)
            server.compact()
            server.send_error("Service", 410, "Expired")
            server.end_watches()
            server.add(service("b"))
            assert await follower.next_text() == "+default/b@103"
            assert "its kind is 'EndpointSliceList', not ServiceList" in follower.status.last_error
