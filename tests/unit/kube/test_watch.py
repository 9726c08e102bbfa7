"""A watch that breaks, ends, lies or forgets: it goes on where it was, or with a list that yields only differences."""

from __future__ import annotations

import itertools

import pytest
from tests.fake.apiserver import FakeApiServer
from tests.harness.kube_objects import endpoint_slice, service
from tests.harness.waiting import async_wait_until
from tests.unit.kube.following import both_ways, following, text

from pointsman.kube.resources import ENDPOINT_SLICES
from pointsman.model.objects import EndpointSlice, Service, Upsert

pytestmark = pytest.mark.usefixtures("protocol")


@both_ways
async def test_gone_leads_to_a_relist_that_yields_only_differences(watch_list: bool) -> None:
    async with FakeApiServer(watch_list=watch_list) as server:
        for name in ("kept", "changed", "removed"):
            server.add(service(name))
        async with following(server) as follower:
            await follower.until_watching()
            server.break_watches()
            server.store.listeners.clear()
            server.delete("Service", "default/removed")
            server.update(service("changed", type="NodePort"))
            server.add(service("new"))
            server.compact()
            seen = {await follower.next_text(), await follower.next_text(), await follower.next_text()}
            assert seen == {"+default/changed@105", "+default/new@106", "-default/removed"}
            assert follower.status.lists == 2
            assert follower.status.objects == 3


async def test_http_410_on_a_watch_also_leads_to_a_relist() -> None:
    async with FakeApiServer() as server:
        server.add(service("a"))
        server.fail_next(410, watch=True, path="services")
        server.watch_list = False
        async with following(server, watch_list=False) as follower:
            await follower.until_watching()
            server.add(service("b"))
            assert await follower.next_text() == "+default/b@102"
            assert follower.status.lists == 2
            assert follower.time.pauses == pytest.approx([1.2])


async def test_stream_broken_inside_an_object_is_resumed_without_loss_or_repetition(protocol: str) -> None:
    async with FakeApiServer(speaks_protobuf=False) as server:
        server.add(service("a"))
        async with following(server) as follower:
            await follower.until_watching()
            server.add(service("b"))
            assert await follower.next_text() == "+default/b@102"
            server.break_watches(partial=b'{"type":"MODIFIED","object":{"metadata":{"na')
            await async_wait_until(lambda: len(server.requests) == 3 and server.watch_count() == 1)
            server.add(service("c"))
            assert await follower.next_text() == "+default/c@103"
            assert follower.status.lists == 1
            assert follower.status.failures_total == 1
            cause = (
                "the server reset the stream"
                if protocol == "http2"
                else "the connection was closed before the end"
            )
            assert cause in follower.status.last_error
            assert follower.status.connected
    watches = [seen for seen in server.requests if seen.is_watch]
    assert [seen.query.get("resourceVersion") for seen in watches] == [None, "102"]


@pytest.mark.parametrize(
    "garbage", [b"<html>bad gateway</html>\n", b'{"type":5}\n', b"\xff\xfe\n", b'["ADDED"]\n']
)
async def test_garbage_in_a_watch_leads_to_a_relist(garbage: bytes) -> None:
    async with FakeApiServer(speaks_protobuf=False) as server:
        server.add(service("a"))
        async with following(server) as follower:
            await follower.until_watching()
            server.send_raw("Service", garbage)
            await async_wait_until(lambda: follower.status.lists == 2 and server.watch_count() == 1)
            server.add(service("b"))
            assert await follower.next_text() == "+default/b@102"
            assert "unreadable event" in follower.status.last_error


async def test_error_event_other_than_gone_is_followed_by_a_pause_and_a_relist() -> None:
    async with FakeApiServer() as server:
        server.add(service("a"))
        async with following(server) as follower:
            await follower.until_watching()
            server.send_error("Service", 500, "InternalError", "etcd is unwell")
            await async_wait_until(lambda: follower.status.lists == 2 and server.watch_count() == 1)
            server.add(service("b"))
            assert await follower.next_text() == "+default/b@102"
            assert "etcd is unwell" in follower.status.last_error


async def test_silent_connection_is_replaced_by_a_new_watch_and_silent_watches_by_a_list(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A server sends a bookmark every minute: what holds those back may hold back changes as well."""
    async with FakeApiServer() as server, following(server, idle=0.2) as follower:
        await follower.until_synced()
        status, time = follower.status, follower.time

        async def another_watch() -> None:
            def watches() -> int:
                return sum(
                    seen.is_watch and "sendInitialEvents" not in seen.query for seen in server.requests
                )

            opened = watches()
            await async_wait_until(lambda: watches() > opened and server.watch_count() == 1)

        await another_watch()
        time.now += 0.3
        await another_watch()
        assert (status.lists, status.failures_total) == (1, 0)
        assert status.age(time.now) == pytest.approx(0.3)
        time.now += 0.2
        await another_watch()
        assert (status.lists, status.failures_total) == (2, 1)
        assert status.last_error == "silent watches: no event for 0.5 s"
        assert "Watch failed" in caplog.text
        assert status.connected
        server.send_bookmark("Service")
        server.add(service("a"))
        assert await follower.next_text() == "+default/a@101"


async def test_bookmarks_move_the_place_to_resume_from() -> None:
    async with FakeApiServer() as server, following(server) as follower:
        await follower.until_watching()
        server.store.version = 5000
        server.send_bookmark("Service")
        server.end_watches()
        await async_wait_until(lambda: server.requests[-1].query.get("resourceVersion") == "5000")
        await async_wait_until(lambda: server.watch_count() == 1)
        server.add(service("a"))
        assert await follower.next_text() == "+default/a@5001"
        assert follower.status.lists == 1


async def test_lines_of_any_length_in_pieces_of_any_size() -> None:
    async with FakeApiServer() as server, following(server, ENDPOINT_SLICES) as follower:
        await follower.until_synced()
        await async_wait_until(lambda: server.watch_count() == 1)
        huge = endpoint_slice("huge", *(f"10.1.{n // 250}.{n % 250 + 1}" for n in range(12_000)))
        server.add(huge)
        event = await follower.next()
        assert isinstance(event, Upsert)
        assert isinstance(event.object, EndpointSlice)
        assert len(event.object.endpoints or ()) == 12_000
        server.chunk_size = 7
        server.add(endpoint_slice("small", "10.1.0.1"))
        server.add(endpoint_slice("smaller"))
        assert await follower.next_text() == "+default/small@102"
        assert await follower.next_text() == "+default/smaller@103"


@pytest.mark.parametrize("status", [400, 404, 414, 422])
async def test_a_place_to_resume_from_that_the_server_refuses_is_given_up_at_once(status: int) -> None:
    """A server restored from a backup, or one that handed out nonsense."""
    async with FakeApiServer(watch_list=False) as server:
        server.fail_next(status, watch=True, path="services")
        async with following(server, watch_list=False) as follower:
            await follower.until_watching()
            assert follower.status.lists == 2
            server.add(service("a"))
            assert await follower.next_text() == "+default/a@101"


async def test_a_server_that_cannot_resume_three_times_is_asked_for_a_list() -> None:
    """ "Too large resource version" comes as a time-out, again and again."""
    async with FakeApiServer(watch_list=False) as server:
        server.fail_next(504, watch=True, path="services", times=3)
        async with following(server, watch_list=False) as follower:
            await follower.until_watching()
            assert follower.status.lists == 2


@both_ways
async def test_a_server_that_was_restored_from_a_backup_is_listed_again(watch_list: bool) -> None:
    """It accepts the old place to resume from, and sends nothing before it has come that far again."""
    async with FakeApiServer(watch_list=watch_list) as server:
        server.add(service("a"))
        backup = server.store.backup()
        server.speaks_protobuf = False
        async with following(server, watch_list=watch_list) as follower:
            await follower.until_synced()
            await async_wait_until(lambda: server.watch_count() == 1)
            server.update(service("a", type="NodePort"))
            server.add(service("b"))
            assert [await follower.next_text(), await follower.next_text()] == [
                "+default/a@102",
                "+default/b@103",
            ]
            server.store.restore(backup)
            server.break_watches()
            server.update(service("a", type="LoadBalancer"))
            found = [await follower.next(), await follower.next()]
            assert text(found[1]) == "-default/b"
            assert isinstance(found[0], Upsert)
            assert isinstance(found[0].object, Service)
            assert found[0].object.metadata.resource_version == "102"
            assert found[0].object.spec.type == "LoadBalancer"
            await async_wait_until(lambda: server.watch_count() == 1)
            server.add(service("c"))
            assert await follower.next_text() == "+default/c@103"


async def test_a_watch_that_ends_in_time_costs_no_other_request() -> None:
    async with FakeApiServer() as server:
        server.add(service("a"))
        async with following(server) as follower:
            await follower.until_synced()
            for count in (1, 2, 3):
                await async_wait_until(lambda: server.watch_count() == 1 and len(server.requests) == count)  # noqa: B023
                follower.time.now += 450.0
                server.send_bookmark("Service")
                await async_wait_until(lambda: follower.status.last_event == follower.time.now)
                server.end_watches()
            assert all(seen.is_watch for seen in server.requests)


async def test_changes_during_a_partition_of_ten_minutes_arrive_after_it() -> None:
    async with FakeApiServer() as server:
        for name in ("kept", "changed", "removed"):
            server.add(service(name))
        async with following(server) as follower:
            await follower.until_synced()
            await server.stop()
            server.delete("Service", "default/removed")
            server.update(service("changed", type="NodePort"))
            server.add(service("new"))
            ends = follower.time.now + 600
            await async_wait_until(lambda: follower.time.now > ends)
            assert follower.events.empty()
            assert follower.status.objects == 3
            assert sum(until <= 600 for until in itertools.accumulate(follower.time.pauses)) < 40
            await server.start()
            seen = {await follower.next_text() for _ in range(3)}
            assert seen == {"-default/removed", "+default/changed@105", "+default/new@106"}
            assert follower.status.lists == 1
