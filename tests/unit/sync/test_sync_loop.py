import asyncio
import itertools
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
from tests.factory import context, endpoint_slice, service
from tests.fake.recording import RecordingBackend
from tests.fake.virtual_time import run

from pointsman.backends.contract import PRESENT, Difference, OtherProxy
from pointsman.errors import KernelError
from pointsman.model.addresses import Family
from pointsman.model.plan import ServicePlan
from pointsman.model.service import ServicePortName
from pointsman.model.tracker import Changes, Tracker
from pointsman.sync.loop import SyncListener, SyncLoop
from pointsman.sync.pacing import COST_FACTOR, MAX_PAUSE_SECONDS, Pace, Pacer
from pointsman.sync.reconcile import Reconciler, SyncFailed, SyncOutcome

pytestmark = pytest.mark.virtual_time


class Notes(SyncListener):
    def __init__(self) -> None:
        self.events: list[tuple[str, float]] = []

    def _note(self, what: str) -> None:
        self.events.append((what, round(asyncio.get_running_loop().time(), 6)))

    def on_queued(self, family: Family) -> None:
        self._note("queued")

    def on_synced(self, outcome: SyncOutcome) -> None:
        self._note("full" if outcome.report.full else "partial")

    def on_sync_failed(self, family: Family, failure: SyncFailed, retry_in: float) -> None:
        self._note("failed")

    def on_drift_check_failed(self, family: Family, error: Exception) -> None:
        self._note("unsure")

    def on_drift(self, family: Family, drift: Difference, restored_in: float) -> None:
        self._note(f"drift: {drift}")

    def on_drift_check_passed(self, family: Family) -> None:
        self._note("intact")

    def on_conflict_ended(self, family: Family) -> None:
        self._note("undisputed")

    def times(self, *kinds: str) -> list[float]:
        return [at for what, at in self.events if what in kinds]


class LoopHarness:
    """A loop around a recording backend in virtual time; the "thread" runs inline and may take its time."""

    def __init__(
        self,
        *,
        min_period: float = 1.0,
        drift_period: float = 1e9,
        sync_takes: float = 0.0,
        listener: SyncListener | None = None,
    ) -> None:
        self.backend = RecordingBackend()
        self.tracker = Tracker(Family.IPV4, "n1")
        self.notes = Notes()
        self.sync_takes = sync_takes
        self.loop = SyncLoop(
            self.tracker,
            Reconciler(self.backend),
            Pacer(Pace(min_period, 30.0, drift_period)),
            context=context,
            run_blocking=self._inline,
            listeners=[self.notes, *([listener] if listener is not None else [])],
            read_cpu_time=asyncio.get_running_loop().time,
        )
        self.task = asyncio.create_task(self.loop.run())

    async def _inline(self, call: Callable[[], Any]) -> Any:
        await asyncio.sleep(self.sync_takes)
        return call()

    def change(self, number: int) -> None:
        self.tracker.upsert_service(service(f"s{number}", clusterIP=f"10.96.1.{number}"))
        self.loop.request()

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_a_request_is_served_at_once() -> None:
    harness = LoopHarness()
    harness.change(1)
    await harness.loop.wait_idle()
    assert harness.notes.events == [("queued", 0.0), ("full", 0.0)]
    await harness.stop()


async def test_a_storm_of_changes_is_served_in_few_syncs() -> None:
    harness = LoopHarness()
    for number in range(100):
        harness.change(number)
        await asyncio.sleep(0.05)
    await harness.loop.wait_idle()
    assert len(harness.backend.programmed) == 100
    assert len(harness.notes.times("full", "partial")) <= 2 + 6
    await harness.stop()


BY_COST = 0.0


class Latencies(SyncListener):
    """How long each change took to be programmed."""

    def __init__(self) -> None:
        self.made: dict[str, float] = {}
        self.seconds: list[float] = []

    def on_synced(self, outcome: SyncOutcome) -> None:
        now = asyncio.get_running_loop().time()
        self.seconds += [now - self.made[name.key] for name in outcome.changes]


async def measure_latency(*, sync_takes: float, count: int, interval: float) -> tuple[float, list[float]]:
    """Make changes at an interval; return the longest latency and the times of all syncs."""
    latencies = Latencies()
    harness = LoopHarness(min_period=BY_COST, sync_takes=sync_takes, listener=latencies)
    for number in range(count):
        latencies.made[f"default/s{number}"] = asyncio.get_running_loop().time()
        harness.tracker.upsert_service(service(f"s{number}", clusterIP=f"10.96.{number >> 8}.{number & 255}"))
        harness.loop.request()
        await asyncio.sleep(interval)
    await harness.loop.wait_idle()
    await harness.stop()
    assert len(latencies.seconds) == count
    return max(latencies.seconds), harness.notes.times("full", "partial")


async def test_by_cost_changes_that_come_one_by_one_do_not_wait() -> None:
    longest, syncs = await measure_latency(sync_takes=0.001, count=100, interval=0.1)
    assert longest <= 0.001 + 1e-6
    assert len(syncs) == 100


async def test_by_cost_two_hundred_changes_per_second_share_syncs() -> None:
    longest, syncs = await measure_latency(sync_takes=0.001, count=400, interval=0.005)
    assert longest <= 0.001 * (COST_FACTOR + 2) + 1e-6
    assert len(syncs) <= 2 + 2.0 / (0.001 * COST_FACTOR)


async def test_by_cost_a_burst_is_handled_together() -> None:
    harness = LoopHarness(min_period=BY_COST, sync_takes=0.002)
    harness.change(1)
    await harness.loop.wait_idle()
    for number in range(5000):
        harness.tracker.upsert_service(service(f"b{number}", clusterIP=f"10.97.{number >> 8}.{number & 255}"))
        harness.loop.request()
        if not number % 100:
            await asyncio.sleep(0.01)
    await harness.loop.wait_idle()
    assert len(harness.backend.programmed) == 5001
    assert len(harness.notes.times("full", "partial")) <= 1 + 2 + 0.5 / (0.002 * COST_FACTOR) + 1
    await harness.stop()


async def test_by_cost_expensive_syncs_start_once_per_second_and_none_starves() -> None:
    longest, syncs = await measure_latency(sync_takes=0.4, count=50, interval=0.1)
    assert longest <= MAX_PAUSE_SECONDS + 0.4 + 1e-6
    assert all(later - earlier >= 0.999 for earlier, later in itertools.pairwise(syncs[2:]))


async def test_changes_during_a_sync_cause_another_one() -> None:
    harness = LoopHarness(sync_takes=0.5)
    harness.change(1)
    await asyncio.sleep(0.2)
    harness.change(2)
    await harness.loop.wait_idle()
    assert len(harness.backend.programmed) == 2
    assert harness.notes.times("full", "partial") == [0.5, 1.0]
    await harness.stop()


async def test_a_failure_is_retried_with_growing_pauses_and_loses_nothing() -> None:
    harness = LoopHarness()
    harness.backend.failures = [KernelError("no")] * 3
    harness.change(1)
    await harness.loop.wait_idle()
    assert harness.notes.times("failed") == [0.0, 1.0, 3.0]
    assert harness.notes.times("full") == [7.0]
    assert len(harness.backend.programmed) == 1
    await harness.stop()


async def test_hash_tables_that_wait_are_filled_at_once_and_changes_meanwhile_wait_for_one_sync_only() -> (
    None
):
    harness = LoopHarness(sync_takes=0.1)
    harness.change(0)
    await harness.loop.wait_idle()
    annotations = {"pointsman.dev/scheduler": "source-hash", "pointsman.dev/hash-slots": "65536"}
    for number in range(1, 13):
        name = f"hashed-{number}"
        harness.tracker.upsert_service(
            service(name, clusterIP=f"10.96.2.{number}", metadata={"annotations": annotations})
        )
        harness.tracker.upsert_slice(endpoint_slice("10.1.0.1", "10.1.0.2", name=name, service_name=name))
    harness.change(1)
    await asyncio.sleep(0.15)
    assert len(harness.loop.unsynced) > 6
    harness.change(2)
    await asyncio.sleep(0.2)
    assert {"s1", "s2"} <= {name.service for name in harness.backend.programmed}
    await harness.loop.wait_idle()
    assert len(harness.backend.programmed) == 15
    starts = harness.notes.times("full", "partial")
    assert starts[-1] - starts[1] == pytest.approx(0.1 * (len(starts) - 2))
    await harness.stop()


async def test_what_the_kernel_has_not_accepted_yet_is_known_meanwhile() -> None:
    harness = LoopHarness(sync_takes=0.5)
    harness.backend.failures = [KernelError("no")]
    harness.change(1)
    await asyncio.sleep(0.2)
    assert {name.service for name in harness.loop.unsynced} == {"s1"}
    harness.change(2)
    await asyncio.sleep(0.4)
    assert {name.service for name in harness.loop.unsynced} == {"s1", "s2"}
    await harness.loop.wait_idle()
    assert harness.loop.unsynced == frozenset()
    await harness.stop()


async def test_a_bug_in_a_sync_does_not_end_the_loop_and_all_is_resent() -> None:
    harness = LoopHarness()
    harness.change(1)
    await harness.loop.wait_idle()
    harness.backend.failures = [ZeroDivisionError()]
    harness.change(2)
    await harness.loop.wait_idle()
    assert len(harness.backend.programmed) == 2
    assert len(harness.notes.times("failed")) == 1
    await harness.stop()


async def test_a_full_sync_runs_every_hour_without_any_change() -> None:
    harness = LoopHarness()
    harness.change(1)
    await asyncio.sleep(2 * 3600 + 10)
    assert harness.notes.times("full") == [0.0, 3600.0, 7200.0]
    await harness.stop()


async def test_drift_is_repaired_by_a_full_sync() -> None:
    harness = LoopHarness(drift_period=1.0)
    harness.change(1)
    await harness.loop.wait_idle()
    harness.backend.programmed.clear()
    harness.backend.drifts = [Difference("table", PRESENT)]
    await asyncio.sleep(1.5)
    assert ("drift: table: deleted", 1.0) in harness.notes.events
    assert len(harness.backend.programmed) == 1
    await harness.stop()


async def test_the_backend_maintains_its_state_before_every_drift_check() -> None:
    harness = LoopHarness(drift_period=1.0)
    harness.change(1)
    await harness.loop.wait_idle()
    await asyncio.sleep(3.5)
    assert harness.backend.maintained == len(harness.notes.times("intact")) == 3
    await harness.stop()


async def test_drift_is_looked_for_in_time_however_many_changes_arrive() -> None:
    harness = LoopHarness(min_period=5.0, drift_period=1.0, sync_takes=0.05)
    for number in range(100):
        harness.change(number)
        if number == 80:
            harness.backend.drifts = [Difference("table", PRESENT)]
        await asyncio.sleep(0.1)
    assert len(harness.notes.times("intact")) == 7
    (noticed,) = harness.notes.times("drift: table: deleted")
    assert 8.0 < noticed < 9.2
    await harness.loop.wait_idle()
    assert len(harness.notes.times("full")) == 2
    await harness.stop()


async def test_looks_that_take_longer_than_their_period_keep_no_sync_from_running() -> None:
    harness = LoopHarness(drift_period=1.0, sync_takes=2.0)
    for number in range(50):
        harness.change(number)
        await asyncio.sleep(1.0)
    await harness.loop.wait_idle()
    assert len(harness.backend.programmed) == 50
    assert len(harness.notes.times("full", "partial")) >= 10
    await harness.stop()


TAKEN_OVER = Difference("table", "ours", "theirs", other_proxy=OtherProxy.KUBE_PROXY)


async def test_another_proxy_that_keeps_rewriting_our_rules_is_left_alone_for_longer_and_longer() -> None:
    harness = LoopHarness(drift_period=1.0)
    harness.change(1)
    await harness.loop.wait_idle()
    harness.backend.drifts = [TAKEN_OVER] * 1000
    await asyncio.sleep(200)
    restored = harness.notes.times("full")[1:]
    assert restored[:3] == [1.0, 2.0, 3.0]
    pauses = [round(later - earlier) for earlier, later in itertools.pairwise(restored[2:])]
    assert pauses[:5] == [3, 4, 8, 16, 30]
    assert set(pauses[5:]) == {30}
    await harness.stop()


async def test_changes_made_meanwhile_wait_with_the_rest_and_are_served() -> None:
    harness = LoopHarness(drift_period=1.0)
    harness.change(1)
    await harness.loop.wait_idle()
    harness.backend.drifts = [TAKEN_OVER] * 6
    await asyncio.sleep(13)
    before = len(harness.notes.times("full", "partial"))
    harness.change(2)
    await asyncio.sleep(1)
    assert len(harness.notes.times("full", "partial")) == before
    await harness.loop.wait_idle()
    assert len(harness.backend.programmed) == 2
    await harness.stop()


async def test_when_the_other_proxy_is_gone_for_a_while_all_is_as_before() -> None:
    harness = LoopHarness(drift_period=1.0)
    harness.change(1)
    await harness.loop.wait_idle()
    harness.backend.drifts = [TAKEN_OVER] * 5
    await asyncio.sleep(300)
    assert len(harness.notes.times("undisputed")) == 1
    harness.backend.drifts = [TAKEN_OVER]
    before = harness.notes.times("full")
    await asyncio.sleep(1.5)
    assert len(harness.notes.times("full")) == len(before) + 1
    await harness.stop()


async def test_damage_that_is_no_other_proxys_work_is_repaired_at_once_every_time() -> None:
    harness = LoopHarness(drift_period=1.0)
    harness.change(1)
    await harness.loop.wait_idle()
    harness.backend.drifts = [Difference("table", PRESENT)] * 20
    await asyncio.sleep(21.5)
    assert len(harness.notes.times("full")) == 21
    assert harness.notes.times("undisputed") == []
    await harness.stop()


async def test_a_sync_that_meets_another_proxys_rules_counts_as_a_rewrite_too() -> None:
    harness = LoopHarness()
    harness.backend.met = TAKEN_OVER
    for number in range(8):
        harness.change(number)
        await asyncio.sleep(1.5)
    assert len(harness.notes.times("full", "partial")) < 8
    assert harness.notes.times(f"drift: {TAKEN_OVER}") == harness.notes.times("full", "partial")
    await harness.stop()


async def test_no_drift_check_before_the_first_sync() -> None:
    harness = LoopHarness(drift_period=1.0)
    harness.backend.drifts = [Difference("nothing there yet", PRESENT)]
    await asyncio.sleep(5)
    assert harness.backend.requests == []
    await harness.stop()


async def test_damage_seen_beside_the_loop_is_repaired_while_changes_arrive_during_every_sync() -> None:
    harness = LoopHarness(min_period=0.0, sync_takes=0.5)
    damage = Difference("chain", PRESENT, "something else")
    harness.loop.restore(damage)
    assert harness.notes.events == []
    harness.change(1)
    await harness.loop.wait_idle()
    for number in range(2, 12):
        harness.change(number)
        await asyncio.sleep(0.2)
        if number == 8:
            harness.loop.restore(damage)
    await harness.loop.wait_idle()
    assert len(harness.notes.times(f"drift: {damage}")) == 1
    assert len(harness.notes.times("full")) == 2
    await harness.stop()


async def test_nothing_is_synced_before_the_first_request_however_long_it_takes() -> None:
    harness = LoopHarness(drift_period=1.0)
    await asyncio.sleep(2 * 3600)
    assert harness.notes.events == []
    harness.change(1)
    await harness.loop.wait_idle()
    assert harness.notes.times("full") == [2 * 3600.0]
    await harness.stop()


async def test_an_hourly_sync_that_fails_is_retried_with_growing_pauses_too() -> None:
    harness = LoopHarness(min_period=0.0)
    harness.change(1)
    await harness.loop.wait_idle()
    harness.backend.failures = [KernelError("no")] * 3
    await asyncio.sleep(3600 + 60)
    assert harness.notes.times("failed") == [3600.0, 3601.0, 3603.0]
    assert harness.notes.times("full") == [0.0, 3607.0]
    await harness.stop()


async def test_drift_is_not_looked_for_while_a_full_sync_waits_for_its_retry() -> None:
    harness = LoopHarness(drift_period=0.5)
    harness.change(1)
    await harness.loop.wait_idle()
    harness.backend.failures = [KernelError("no")] * 3
    harness.change(2)
    harness.backend.drifts = [Difference("chain", "", PRESENT)]
    await asyncio.sleep(6.9)
    assert harness.notes.times("failed") == [0.0, 1.0, 3.0]
    assert harness.notes.times("drift: chain: added") == []
    await harness.stop()


async def test_not_being_able_to_look_is_no_drift_but_a_reason_for_a_full_sync() -> None:
    harness = LoopHarness(drift_period=1.0)
    harness.change(1)
    await harness.loop.wait_idle()

    harness.backend.drifts = [KernelError("no buffers")]
    await asyncio.sleep(1.5)
    assert harness.notes.times("unsure") == [1.0]
    assert harness.notes.times("full") == [0.0, 1.0]
    assert not any(what.startswith("drift") for what, _ in harness.notes.events)
    await harness.stop()


class Bug(Exception):
    """Raised in the middle of a sync."""


class Injection:
    """Raises at the nth call of a function that keeps or derives state, while it is installed."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, frame: types.FrameType, event: str, _argument: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and ("/pointsman/model/" in file or file.endswith("/sync/reconcile.py")):
            self.left -= 1
            if not self.left:
                raise Bug(frame.f_code.co_qualname)


class Mirror(SyncListener):
    """The plans in the kernel, as the changes of all syncs tell."""

    def __init__(self) -> None:
        self.plans: dict[ServicePortName, ServicePlan | None] = {}

    def on_synced(self, outcome: SyncOutcome) -> None:
        for name, change in outcome.changes.items():
            assert self.plans.get(name) == change.old
            self.plans[name] = change.new


async def sync_with_error_at(number: int) -> bool:
    """Whether a sync has so many calls; afterwards the next sync must be right."""
    mirror = Mirror()
    harness = LoopHarness(listener=mirror)
    external = {"externalIPs": ["198.51.100.1"]}

    def upsert(name: str, at: int, created: str, **spec: Any) -> None:
        meta = {"creationTimestamp": created}
        harness.tracker.upsert_service(service(name, clusterIP=f"10.96.1.{at}", metadata=meta, **spec))

    for at, name in enumerate(["a", "b", "c", "d"], 1):
        upsert(name, at, f"202{at}", **external)
        harness.tracker.upsert_slice(endpoint_slice(f"10.244.1.{at}", name=name, service_name=name))
    harness.loop.request()
    await harness.loop.wait_idle()
    harness.tracker.delete_service("default/a")
    upsert("b", 9, "2022")
    upsert("e", 5, "2025", **external)
    harness.tracker.upsert_slice(endpoint_slice("10.244.1.7", name="c", service_name="c"))
    before = sys.gettrace()
    injection = Injection(number)
    harness.loop.request()
    sys.settrace(injection)
    try:
        await harness.loop.wait_idle()
    finally:
        sys.settrace(before)
    harness.loop.request()
    await harness.loop.wait_idle()
    fresh = RecordingBackend()
    Reconciler(fresh).sync(Changes(dict(harness.tracker.states)), context())
    assert harness.backend.programmed == fresh.programmed
    assert {name: plan for name, plan in mirror.plans.items() if plan} == fresh.programmed
    assert not harness.loop.unsynced
    await harness.stop()
    return injection.left <= 0


def test_after_an_error_at_any_call_the_next_sync_is_right() -> None:
    number = 1
    while run(sync_with_error_at(number)):
        number += 1
    assert number > 100
