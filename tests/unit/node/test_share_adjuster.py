"""Time and readings into shares: how often, how far, and nothing where nobody asks."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Mapping

from tests.factory import endpoint_slice, packed, service
from tests.fake import virtual_time
from tests.harness.waiting import async_wait_until

from pointsman.daemon_thread import run_in_daemon_thread
from pointsman.errors import KernelError
from pointsman.model.addresses import Family
from pointsman.model.endpoint import Identity
from pointsman.model.service import Protocol, ServicePortName
from pointsman.model.tracker import PortState, Tracker
from pointsman.node.share_adjuster import Counts, ShareAdjuster

NAME = ServicePortName("default", "web", "http", Protocol.TCP)


def tracking(**annotations: str) -> Tracker:
    tracker = Tracker(Family.IPV4, "n1")
    named = {f"pointsman.dev/{name.replace('_', '-')}": value for name, value in annotations.items()}
    tracker.upsert_service(service(metadata={"annotations": named}))
    tracker.upsert_slice(endpoint_slice("10.244.1.1", "10.244.1.2"))
    tracker.take()
    return tracker


def shares(tracker: Tracker) -> list[int]:
    return [endpoint.state.share for endpoint in tracker.states[NAME].endpoints]


def nobody_counts(_family: Family, _states: Mapping[ServicePortName, PortState]) -> Counts:
    raise AssertionError("no Service asked for least-connections")


def test_a_slow_start_takes_its_time_and_at_most_ten_syncs() -> None:
    async def grown() -> list[tuple[float, int]]:
        tracker, curve = tracking(slow_start="30s"), [(0.0, 100)]
        tracker.upsert_slice(endpoint_slice("10.244.2.1", name="web-b"))
        loop = asyncio.get_running_loop()
        adjuster = ShareAdjuster(
            tracker, lambda: curve.append((loop.time(), shares(tracker)[-1])), count=nobody_counts
        )
        adjuster.on_objects_changed()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(60):
                await adjuster.run()
        return curve[1:]

    curve = virtual_time.run(grown())
    assert [share for _, share in curve] == [20, 30, 40, 50, 60, 70, 80, 90, 100]
    assert [round(at) for at, _ in curve] == [6, 9, 12, 15, 18, 21, 24, 27, 30]


def test_without_anybody_asking_nothing_runs() -> None:
    async def idle() -> bool:
        tracker = tracking()
        adjuster = ShareAdjuster(tracker, lambda: None, count=nobody_counts)
        adjuster.on_objects_changed()
        running = asyncio.create_task(adjuster.run())
        await asyncio.sleep(100)
        running.cancel()
        return True

    assert virtual_time.run(idle())


async def test_readings_move_shares_and_a_failed_one_leaves_them() -> None:
    tracker = tracking(scheduler="least-connections")
    busy, idle = (packed("10.244.1.1"), 8080), (packed("10.244.1.2"), 8080)
    readings: Iterator[Mapping[Identity, int] | None] = iter([{busy: 500}, None, {busy: 500}])
    failed, seen, done = asyncio.Event(), [], asyncio.Event()

    def count(_family: Family, states: Mapping[ServicePortName, PortState]) -> Counts:
        reading = next(readings, {busy: 100, idle: 100})
        if reading is None:
            failed.set()
            raise KernelError("not now")
        return dict.fromkeys(states, reading)

    def changed() -> None:
        seen.append(shares(tracker))
        if len(seen) == 2:
            done.set()

    adjuster = ShareAdjuster(tracker, changed, count=count, tick=0.001, count_interval=0.002)
    adjuster.on_objects_changed()
    running = asyncio.create_task(adjuster.run())
    await asyncio.wait_for(done.wait(), 20)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert failed.is_set()
    (first_busy, first_idle), (second_busy, second_idle) = seen
    assert second_busy < first_busy < 100 < first_idle < second_idle


async def test_a_service_that_stops_asking_gets_its_even_shares_back() -> None:
    tracker = tracking(scheduler="least-connections")
    busy = (packed("10.244.1.1"), 8080)
    moved = asyncio.Event()
    adjuster = ShareAdjuster(
        tracker, moved.set, count=lambda _f, states: {n: {busy: 99} for n in states}, tick=0.001
    )
    adjuster.on_objects_changed()
    running = asyncio.create_task(adjuster.run())
    await asyncio.wait_for(moved.wait(), 20)
    tracker.upsert_service(service())
    await async_wait_until(lambda: shares(tracker) == [100, 100])
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_the_end_does_not_wait_for_a_count_that_is_under_way() -> None:
    counting, let_go = threading.Event(), threading.Event()

    def count(_family: Family, _states: Mapping[ServicePortName, PortState]) -> Counts:
        counting.set()
        let_go.wait(20)
        return {}

    async def ended() -> None:
        adjuster = ShareAdjuster(tracking(scheduler="least-connections"), lambda: None, count=count)
        adjuster.on_objects_changed()
        running = asyncio.create_task(adjuster.run())
        assert await run_in_daemon_thread(lambda: counting.wait(20), "waiting")
        running.cancel()

    process_ends = threading.Thread(target=lambda: asyncio.run(ended()))
    process_ends.start()
    process_ends.join(10)
    try:
        assert not process_ends.is_alive()
    finally:
        let_go.set()
        process_ends.join()
