"""A list-watch against a real HTTP server that fails in every way a real one does."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest
from tests.unit.kube.following import eventually, following, text

from pointsman.kube.resources import ENDPOINT_SLICES, SERVICE_CIDRS, own_node
from pointsman.model.objects import EndpointSlice, Node, Service, ServiceCIDR
from pointsman.model.source_events import Synced, Upsert
from pointsman.testing.apiserver import FakeApiServer
from pointsman.testing.kube_objects import endpoint_slice, node, service, service_cidr


async def given_up(reading: asyncio.Future[str]) -> None:
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)


both_ways = pytest.mark.parametrize("watch_list", [True, False], ids=["watchlist", "paged"])


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


@both_ways
async def test_gone_leads_to_a_relist_that_yields_only_differences(watch_list: bool) -> None:
    async with FakeApiServer(watch_list=watch_list) as server:
        for name in ("kept", "changed", "removed"):
            server.add(service(name))
        async with following(server) as follower:
            await follower.until_synced()
            reading = asyncio.ensure_future(follower.next_text())
            await eventually(lambda: server.watch_count() == 1)
            server.break_watches()
            server.store.listeners.clear()
            server.delete("Service", "default/removed")
            server.update(service("changed", type="NodePort"))
            server.add(service("new"))
            server.compact()
            seen = {await reading, await follower.next_text(), await follower.next_text()}
            assert seen == {"+default/changed@105", "+default/new@106", "-default/removed"}
            assert follower.status.lists == 2
            assert follower.status.objects == 3


async def test_http_410_on_a_watch_also_leads_to_a_relist() -> None:
    async with FakeApiServer() as server:
        server.add(service("a"))
        server.fail_next(410, watch=True, path="services")
        server.watch_list = False
        async with following(server, watch_list=False) as follower:
            await follower.until_synced()
            reading = asyncio.ensure_future(follower.next_text())
            await eventually(lambda: server.watch_count() == 1)
            server.add(service("b"))
            assert await reading == "+default/b@102"
            assert follower.status.lists == 2
            assert follower.time.pauses == pytest.approx([1.2])


async def test_server_that_forgets_at_once_again_and_again_is_given_time() -> None:
    async with FakeApiServer() as server:
        server.fail_next(410, watch=True, times=4)
        async with following(server, watch_list=False) as follower:
            await follower.until_synced()
            reading = asyncio.ensure_future(follower.next_text())
            await eventually(lambda: server.watch_count() == 1)
            server.add(service("b"))
            assert await reading == "+default/b@101"
            assert follower.time.pauses == pytest.approx([1.2, 2.4, 4.8, 9.6])


async def test_stream_broken_inside_an_object_is_resumed_without_loss_or_repetition() -> None:
    async with FakeApiServer(speaks_protobuf=False) as server:
        server.add(service("a"))
        async with following(server) as follower:
            await follower.until_synced()
            reading = asyncio.ensure_future(follower.next_text())
            await eventually(lambda: server.watch_count() == 1)
            server.add(service("b"))
            assert await reading == "+default/b@102"
            reading = asyncio.ensure_future(follower.next_text())
            server.break_watches(partial=b'{"type":"MODIFIED","object":{"metadata":{"na')
            await eventually(lambda: len(server.requests) == 3 and server.watch_count() == 1)
            server.add(service("c"))
            assert await reading == "+default/c@103"
            assert follower.status.lists == 1
            assert follower.status.failures_total == 1
            assert "the connection broke" in follower.status.last_error
            assert follower.status.connected
    assert [seen.query.get("resourceVersion") for seen in server.requests] == [None, "101", "102"]


@pytest.mark.parametrize(
    "garbage", [b"<html>bad gateway</html>\n", b'{"type":5}\n', b"\xff\xfe\n", b'["ADDED"]\n']
)
async def test_garbage_in_a_watch_leads_to_a_relist(garbage: bytes) -> None:
    async with FakeApiServer(speaks_protobuf=False) as server:
        server.add(service("a"))
        async with following(server) as follower:
            await follower.until_synced()
            reading = asyncio.ensure_future(follower.next_text())
            await eventually(lambda: server.watch_count() == 1)
            server.send_raw("Service", garbage)
            await eventually(lambda: follower.status.lists == 2 and server.watch_count() == 1)
            server.add(service("b"))
            assert await reading == "+default/b@102"
            assert "unreadable event" in follower.status.last_error


async def test_garbage_instead_of_a_list_is_retried() -> None:
    async with FakeApiServer(watch_list=False) as server:
        server.add(service("a"))
        server.fail_next(200, body=b"<html>maintenance</html>", watch=False)
        async with following(server) as follower:
            assert len(await follower.until_synced()) == 2
            assert "not readable" in follower.status.last_error
            assert follower.time.pauses == [pytest.approx(1.2)]


async def test_error_event_other_than_gone_is_followed_by_a_pause_and_a_relist() -> None:
    async with FakeApiServer() as server:
        server.add(service("a"))
        async with following(server) as follower:
            await follower.until_synced()
            reading = asyncio.ensure_future(follower.next_text())
            await eventually(lambda: server.watch_count() == 1)
            server.send_error("Service", 500, "InternalError", "etcd is unwell")
            await eventually(lambda: follower.status.lists == 2 and server.watch_count() == 1)
            server.add(service("b"))
            assert await reading == "+default/b@102"
            assert "etcd is unwell" in follower.status.last_error


async def test_server_away_for_minutes_keeps_state_and_backs_off_up_to_thirty_seconds() -> None:
    async with FakeApiServer() as server:
        server.add(service("a"))
        async with following(server) as follower:
            await follower.until_synced()
            reading = asyncio.ensure_future(follower.next_text())
            await eventually(lambda: server.watch_count() == 1)
            await server.stop()
            await eventually(lambda: follower.status.failures >= 9)
            assert not follower.status.connected
            assert "cannot connect" in follower.status.last_error
            assert follower.status.objects == 1
            assert not reading.done()
            await server.start()
            await eventually(lambda: server.watch_count() == 1)
            server.add(service("b"))
            assert await reading == "+default/b@102"
            assert follower.status.connected
            assert follower.status.failures == 0
            assert follower.status.lists == 1
            assert follower.time.pauses[:8] == pytest.approx([1.2, 2.4, 4.8, 9.6, 19.2, 30.0, 30.0, 30.0])


async def test_back_off_starts_small_again_after_a_watch_that_worked() -> None:
    async with FakeApiServer(watch_list=False) as server:
        server.fail_next(500, times=4, watch=False)
        async with following(server, watch_list=False) as follower:
            await follower.until_synced()
            assert follower.time.pauses == pytest.approx([1.2, 2.4, 4.8, 9.6])
            reading = asyncio.ensure_future(follower.next_text())
            await eventually(lambda: server.watch_count() == 1)
            follower.time.now += 60
            server.break_watches()
            await eventually(lambda: len(follower.time.pauses) == 5 and server.watch_count() == 1)
            assert follower.time.pauses[4] == pytest.approx(1.2)
            server.add(service("a"))
            assert await reading == "+default/a@101"


async def test_watch_closed_at_once_is_not_reopened_in_a_hot_loop() -> None:
    async with FakeApiServer(watch_list=False) as server:
        server.fail_next(200, watch=True, body=b"", times=3)
        async with following(server, watch_list=False) as follower:
            await follower.until_synced()
            reading = asyncio.ensure_future(follower.next_text())
            await eventually(lambda: server.watch_count() == 1)
            assert follower.time.pauses == pytest.approx([1.2, 2.4, 4.8])
            server.add(service("a"))
            assert await reading == "+default/a@101"


async def test_throttling_waits_as_long_as_the_server_asks() -> None:
    async with FakeApiServer() as server:
        server.fail_next(429, retry_after=17)
        async with following(server) as follower:
            await follower.until_synced()
            assert follower.time.pauses == [17.0]
            assert len([seen for seen in server.requests if "sendInitialEvents" in seen.query]) == 2


@pytest.mark.parametrize("status", [401, 403, 500, 503])
async def test_refusals_are_visible_and_retried(status: int) -> None:
    async with FakeApiServer(watch_list=False) as server:
        server.fail_next(status, watch=False)
        async with following(server, watch_list=False) as follower:
            await follower.until_synced()
            assert follower.status.failures_total == 1
            assert f"HTTP {status}" in follower.status.last_error


async def test_silent_connection_is_replaced_by_a_new_watch() -> None:
    async with FakeApiServer() as server, following(server, idle=0.2) as follower:
        await follower.until_synced()
        reading = asyncio.ensure_future(follower.next_text())

        def watches() -> int:
            return sum(seen.is_watch and "sendInitialEvents" not in seen.query for seen in server.requests)

        follower.time.now += 100
        await eventually(lambda: watches() >= 2)
        server.add(service("a"))
        assert await reading == "+default/a@101"


async def test_bookmarks_move_the_place_to_resume_from() -> None:
    async with FakeApiServer() as server, following(server) as follower:
        await follower.until_synced()
        reading = asyncio.ensure_future(follower.next_text())
        await eventually(lambda: server.watch_count() == 1)
        server.store.version = 5000
        server.send_bookmark("Service")
        server.end_watches()
        await eventually(lambda: server.requests[-1].query.get("resourceVersion") == "5000")
        await eventually(lambda: server.watch_count() == 1)
        server.add(service("a"))
        assert await reading == "+default/a@5001"
        assert follower.status.lists == 1


async def test_lines_of_any_length_in_pieces_of_any_size() -> None:
    async with FakeApiServer() as server, following(server, ENDPOINT_SLICES) as follower:
        await follower.until_synced()
        reading = asyncio.ensure_future(follower.next())
        await eventually(lambda: server.watch_count() == 1)
        huge = endpoint_slice("huge", *(f"10.1.{n // 250}.{n % 250 + 1}" for n in range(12_000)))
        server.add(huge)
        event = await reading
        assert isinstance(event, Upsert)
        assert isinstance(event.object, EndpointSlice)
        assert len(event.object.endpoints or ()) == 12_000
        server.chunk_size = 7
        server.add(endpoint_slice("small", "10.1.0.1"))
        server.add(endpoint_slice("smaller"))
        assert await follower.next_text() == "+default/small@102"
        assert await follower.next_text() == "+default/smaller@103"


@both_ways
async def test_undecodable_object_is_left_out_by_name_and_the_rest_kept(watch_list: bool) -> None:
    async with FakeApiServer(watch_list=watch_list) as server:
        server.speaks_protobuf = False
        server.add(service("a"))
        server.add(service("bad", ports=[{"port": "eighty"}], namespace="shop"))
        server.add(service("c"))
        async with following(server) as follower:
            texts = [text(event) for event in await follower.until_synced()]
            assert texts == ["+default/a@101", "+default/c@103", "synced Service"]
            (bad,) = follower.bad
            assert (bad.kind, bad.key, bad.reason) == ("Service", "shop/bad", "Undecodable")
            assert "ports[0].port" in bad.message
            assert follower.status.bad_objects == 1
            reading = asyncio.ensure_future(follower.next_text())
            await eventually(lambda: server.watch_count() == 1)
            server.update(service("bad", namespace="shop"))
            assert await reading == "+shop/bad@104"
            assert follower.status.bad_objects == 0


async def test_object_that_becomes_undecodable_keeps_its_last_good_version_until_deleted() -> None:
    async with FakeApiServer() as server:
        server.add(service("a"))
        async with following(server) as follower:
            await follower.until_synced()
            reading = asyncio.ensure_future(follower.next_text())
            await eventually(lambda: server.watch_count() == 1)
            server.update(service("a", clusterIP=17))
            server.compact()
            server.end_watches()
            await eventually(lambda: follower.status.lists == 2)
            assert not reading.done()
            assert [bad.key for bad in follower.bad] == ["default/a"]
            await eventually(lambda: server.watch_count() == 1)
            server.delete("Service", "default/a")
            assert await reading == "-default/a"
            assert follower.status.bad_objects == 0


async def test_selectors_leave_out_what_other_proxies_serve_and_what_is_headless() -> None:
    other = service("other")
    other["metadata"]["labels"] = {"service.kubernetes.io/service-proxy-name": "else"}
    async with FakeApiServer() as server:
        server.add(other)
        server.add(service("headless", "None"))
        server.add(service("mine"))
        async with following(server) as follower:
            assert [text(event) for event in await follower.until_synced()] == [
                "+default/mine@103",
                "synced Service",
            ]
            reading = asyncio.ensure_future(follower.next_text())
            await eventually(lambda: server.watch_count() == 1)
            given_away = service("mine")
            given_away["metadata"]["labels"] = {"service.kubernetes.io/service-proxy-name": "else"}
            server.update(given_away)
            assert await reading == "-default/mine"


async def test_refused_field_selector_is_dropped_when_it_only_saves_traffic() -> None:
    async with FakeApiServer(cluster_ip_field=False) as server:
        server.add(service("headless", "None"))
        async with following(server) as follower:
            assert [text(event) for event in await follower.until_synced()] == [
                "+default/headless@101",
                "synced Service",
            ]
            assert follower.status.failures_total == 0


async def test_only_the_own_node_is_followed() -> None:
    async with FakeApiServer() as server:
        server.add(node("n1"))
        server.add(node("n2"))
        async with following(server, own_node("n2")) as follower:
            events = await follower.until_synced()
            assert [text(event) for event in events] == ["+n2@102", "synced Node"]
            assert isinstance(events[0], Upsert)
            assert isinstance(events[0].object, Node)


@both_ways
async def test_server_without_service_cidrs_counts_as_empty_and_is_asked_again_much_later(
    watch_list: bool,
) -> None:
    absent = frozenset({"ServiceCIDR"})
    async with (
        FakeApiServer(missing_kinds=absent) as server,
        following(server, SERVICE_CIDRS, watch_list=watch_list) as follower,
    ):
        assert await follower.next() == Synced(ServiceCIDR)
        assert follower.status.absent
        assert follower.status.failures_total == 0
        server.missing_kinds = frozenset()
        server.add(service_cidr("kubernetes", "10.96.0.0/12"))
        assert await follower.next_text() == "+kubernetes@101"
        assert follower.time.pauses == [750.0]
        assert not follower.status.absent


async def test_forbidden_service_cidrs_count_as_empty() -> None:
    async with FakeApiServer() as server:
        server.fail_next(403, path="servicecidrs")
        async with following(server, SERVICE_CIDRS) as follower:
            assert await follower.next() == Synced(ServiceCIDR)


async def test_missing_required_kind_is_a_failure_not_an_empty_list() -> None:
    async with FakeApiServer() as server:
        server.fail_next(404, path="endpointslices", times=2)
        server.add(endpoint_slice("web-1", "10.1.0.1"))
        async with following(server, ENDPOINT_SLICES) as follower:
            assert len(await follower.until_synced()) == 2
            assert follower.status.failures_total == 2


async def test_endpoints_of_a_node_share_one_name() -> None:
    async with FakeApiServer() as server:
        server.add(endpoint_slice("web-1", "10.1.0.1", "10.1.0.2", node="a-node-with-a-long-name"))
        server.add(endpoint_slice("web-2", "10.1.0.3", node="a-node-with-a-long-name"))
        async with following(server, ENDPOINT_SLICES) as follower:
            names = {
                id(endpoint.node_name)
                for event in await follower.until_synced()
                if isinstance(event, Upsert) and isinstance(event.object, EndpointSlice)
                for endpoint in event.object.endpoints or ()
            }
            assert len(names) == 1


async def test_a_server_that_forgets_after_every_event_is_asked_for_few_lists() -> None:
    """As kube-proxy: four lists more in the first 20 seconds, then one per half a minute or so."""
    async with FakeApiServer() as server, following(server) as follower:
        await follower.until_synced()
        reading = asyncio.ensure_future(follower.next_text())
        lists: list[tuple[float, int]] = []
        for number in range(7):
            await eventually(lambda: server.watch_count() == 1)
            server.add(service(f"s{number}"))
            assert await reading == f"+default/s{number}@{101 + number}"
            reading = asyncio.ensure_future(follower.next_text())
            server.send_error("Service", 410, "Expired", "too old resource version")
            await eventually(lambda: follower.status.lists == number + 2)  # noqa: B023  awaited in this turn
            lists.append((follower.time.now - 1000.0, follower.status.lists))
        await given_up(reading)
    assert [count for when, count in lists if when <= 20.0][-1] == 5
    assert follower.time.pauses == pytest.approx([1.2, 2.4, 4.8, 9.6, 19.2, 30.0, 30.0])


async def test_calm_makes_the_first_relist_quick_again() -> None:
    async with FakeApiServer() as server, following(server) as follower:
        await follower.until_synced()
        reading = asyncio.ensure_future(follower.next_text())
        for calm in (0.0, 0.0, 150.0):
            await eventually(lambda: server.watch_count() == 1)
            follower.time.now += calm
            lists = follower.status.lists
            server.send_error("Service", 410, "Expired", "too old resource version")
            await eventually(lambda: follower.status.lists == lists + 1)  # noqa: B023  awaited in this turn
        await given_up(reading)
        assert follower.time.pauses == pytest.approx([1.2, 2.4, 1.2])


@pytest.mark.parametrize("status", [400, 404, 414, 422])
async def test_a_place_to_resume_from_that_the_server_refuses_is_given_up_at_once(status: int) -> None:
    """A server restored from a backup, or one that handed out nonsense."""
    async with FakeApiServer(watch_list=False) as server:
        server.fail_next(status, watch=True, path="services")
        async with following(server, watch_list=False) as follower:
            await follower.until_synced()
            reading = asyncio.ensure_future(follower.next_text())
            await eventually(lambda: server.watch_count() == 1)
            assert follower.status.lists == 2
            server.add(service("a"))
            assert await reading == "+default/a@101"


async def test_a_server_that_cannot_resume_three_times_is_asked_for_a_list() -> None:
    """ "Too large resource version" comes as a time-out, again and again."""
    async with FakeApiServer(watch_list=False) as server:
        server.fail_next(504, watch=True, path="services", times=3)
        async with following(server, watch_list=False) as follower:
            await follower.until_synced()
            reading = asyncio.ensure_future(follower.next_text())
            await eventually(lambda: server.watch_count() == 1)
            assert follower.status.lists == 2
            await given_up(reading)


async def test_pages_too_large_to_take_are_asked_for_in_smaller_ones() -> None:
    async with FakeApiServer(watch_list=False) as server:
        for number in range(9):
            server.add(service(f"s{number}", externalName="x" * 1000))
        async with following(server, watch_list=False, page_limit=8, largest_body=5000) as follower:
            assert len(await follower.until_synced()) == 10
            assert follower.status.failures_total == 0
    assert {seen.query["limit"] for seen in server.requests if not seen.is_watch} == {"8", "2"}


async def test_a_list_that_goes_round_in_circles_is_given_up() -> None:
    async with FakeApiServer(watch_list=False) as server:
        circle = {"metadata": {"resourceVersion": "7", "continue": "again"}, "items": []}
        server.fail_next(200, path="services", watch=False, times=2, body=json.dumps(circle).encode())
        async with following(server, watch_list=False) as follower:
            await follower.until_synced()
            assert "in circles" in follower.status.last_error


async def test_a_role_that_is_taken_and_given_back_is_noticed_within_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with FakeApiServer(watch_list=False) as server, following(server, watch_list=False) as follower:
        await follower.until_synced()
        reading = asyncio.ensure_future(follower.next_text())
        await eventually(lambda: server.watch_count() == 1)
        server.fail_next(403, path="services", times=30)
        server.break_watches()
        await eventually(lambda: follower.status.failures_total == 31 and server.watch_count() == 1)
        assert max(follower.time.pauses) <= 10.0
        server.add(service("a"))
        assert await reading == "+default/a@101"
    said = [entry for entry in caplog.records if entry.getMessage() == "The API server answers again"]
    assert len(said) == 1


async def test_an_optional_kind_that_was_hidden_is_looked_for_every_minute_and_its_return_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with FakeApiServer() as server:
        server.add(service_cidr("kubernetes", "10.96.0.0/12"))
        server.fail_next(403, path="servicecidrs", times=3)
        async with following(server, SERVICE_CIDRS) as follower:
            assert await follower.next() == Synced(ServiceCIDR)
            assert await follower.next_text() == "+kubernetes@101"
            assert follower.time.pauses == [45.0, 45.0, 45.0]
    assert "The API server now has this kind" in caplog.text
