"""How often a server is asked that fails, forgets or asks for time."""

from __future__ import annotations

import pytest
from tests.fake.apiserver import FakeApiServer
from tests.harness.kube_objects import service
from tests.harness.waiting import async_wait_until
from tests.unit.kube.following import following

pytestmark = pytest.mark.usefixtures("protocol")


async def test_server_that_forgets_at_once_again_and_again_is_given_time() -> None:
    async with FakeApiServer() as server:
        server.fail_next(410, watch=True, times=4)
        async with following(server, watch_list=False) as follower:
            await follower.until_watching()
            server.add(service("b"))
            assert await follower.next_text() == "+default/b@101"
            assert follower.time.pauses == pytest.approx([1.2, 2.4, 4.8, 9.6])


async def test_server_away_for_minutes_keeps_state_and_backs_off_up_to_thirty_seconds() -> None:
    async with FakeApiServer() as server:
        server.add(service("a"))
        async with following(server) as follower:
            await follower.until_watching()
            await server.stop()
            await async_wait_until(lambda: follower.status.failures >= 9)
            assert not follower.status.connected
            assert "cannot connect" in follower.status.last_error
            assert follower.status.objects == 1
            assert follower.events.empty()
            await server.start()
            await async_wait_until(lambda: server.watch_count() == 1)
            server.add(service("b"))
            assert await follower.next_text() == "+default/b@102"
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
            await async_wait_until(lambda: server.watch_count() == 1)
            follower.time.now += 60
            server.break_watches()
            await async_wait_until(lambda: len(follower.time.pauses) == 5 and server.watch_count() == 1)
            assert follower.time.pauses[4] == pytest.approx(1.2)
            server.add(service("a"))
            assert await follower.next_text() == "+default/a@101"


async def test_watch_closed_at_once_is_not_reopened_in_a_hot_loop() -> None:
    async with FakeApiServer(watch_list=False) as server:
        server.fail_next(200, watch=True, body=b"", times=3)
        async with following(server, watch_list=False) as follower:
            await follower.until_watching()
            assert follower.time.pauses == pytest.approx([1.2, 2.4, 4.8])
            server.add(service("a"))
            assert await follower.next_text() == "+default/a@101"


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


async def test_a_server_that_forgets_after_every_event_is_asked_for_few_lists() -> None:
    """As kube-proxy: four lists more in the first 20 seconds, then one per half a minute or so."""
    async with FakeApiServer() as server, following(server) as follower:
        await follower.until_synced()
        lists: list[tuple[float, int]] = []
        for number in range(7):
            await async_wait_until(lambda: server.watch_count() == 1)
            server.add(service(f"s{number}"))
            assert await follower.next_text() == f"+default/s{number}@{101 + number}"
            server.send_error("Service", 410, "Expired", "too old resource version")
            await async_wait_until(lambda: follower.status.lists == number + 2)  # noqa: B023  awaited in this turn
            lists.append((follower.time.now - 1000.0, follower.status.lists))
    assert [count for when, count in lists if when <= 20.0][-1] == 5
    assert follower.time.pauses == pytest.approx([1.2, 2.4, 4.8, 9.6, 19.2, 30.0, 30.0])


async def test_calm_makes_the_first_relist_quick_again() -> None:
    async with FakeApiServer() as server, following(server) as follower:
        await follower.until_synced()
        for calm in (0.0, 0.0, 150.0):
            await async_wait_until(lambda: server.watch_count() == 1)
            follower.time.now += calm
            lists = follower.status.lists
            server.send_error("Service", 410, "Expired", "too old resource version")
            await async_wait_until(lambda: follower.status.lists == lists + 1)  # noqa: B023  awaited in this turn
        assert follower.time.pauses == pytest.approx([1.2, 2.4, 1.2])
