"""What follows a sync: flows are checked, leftovers of other modes go in the end, and nothing happens after the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Self

import pytest
from tests import factory
from tests.harness.waiting import async_wait_until

from pointsman.backends.contract import SyncReport
from pointsman.errors import Busy, KernelError, NotSupported
from pointsman.kernel.conntrack import DeadlinePassed
from pointsman.kernel.tracked_flows import Flow, FlowQuery, Wanted
from pointsman.model.addresses import Family
from pointsman.model.service import Protocol
from pointsman.node.cleanup import Background, CleanupResult, FlowCleanup, PostSyncJobs
from pointsman.obs.registry import Metrics
from pointsman.sync.flow_cleaner import StaleFlowCleaner
from pointsman.sync.reconcile import PlanChange, SyncOutcome

OWN_ADDRESS, CLIENT, NODE_PORT = b"\x0a\x01\x02\x03", b"\x0a\x01\x02\x99", 30053
DNS = factory.service_port("dns", port=53, protocol=Protocol.UDP, node_port=NODE_PORT)
GONE, HERE = factory.endpoint("10.244.1.1", port=53), factory.endpoint("10.244.1.2", port=53)
STALE = Flow(
    *(Protocol.UDP.value, CLIENT, 4000, OWN_ADDRESS, NODE_PORT),
    *(GONE.address, GONE.port, CLIENT, 4000, b"\0\0\0\1"),
)


def synced(
    family: Family = Family.IPV4, change: PlanChange | None = None, *, full: bool = True
) -> SyncOutcome:
    changes = {} if change is None else {DNS.name: change}
    return SyncOutcome(SyncReport(full=full), changes, {}, factory.context(family), 0.0, first=True)


MOVED = PlanChange(factory.plan(DNS, GONE), factory.plan(DNS, HERE))


class SlowTable:
    """A conntrack table with one flow; a look at it takes as long as a test says."""

    selects = True

    def __init__(self) -> None:
        self.entries = [STALE]
        self.looks = 0
        self.failure: KernelError | None = None
        self.begun, self.go_on = threading.Event(), threading.Event()

    def open(self, _family: Family) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held open."""

    def list_flows(self, query: FlowQuery, wanted: Wanted, expired: Callable[[], bool]) -> list[Flow]:
        self.looks += 1
        self.begun.set()
        while not self.go_on.wait(0.01):
            if expired():
                raise DeadlinePassed("too slow")
        if self.failure:
            raise self.failure
        return [
            entry
            for entry in self.entries
            if query.matches(entry.protocol, entry.destination, entry.destination_port)
            and wanted(entry.destination, entry.destination_port, entry.reply_source, entry.reply_source_port)
        ]

    def filter_unreplied(self, flows: list[Flow]) -> list[Flow]:
        return flows

    def delete(self, flows: list[Flow], _expired: object) -> int:
        self.entries = [entry for entry in self.entries if entry not in flows]
        return len(flows)


def flow_cleanup(
    table: SlowTable,
    background: Background,
    second_check_delay: timedelta = timedelta(hours=1),
) -> FlowCleanup:
    metrics = Metrics("iptables")
    cleaner = StaleFlowCleaner(
        *(Family.IPV4, metrics),
        open_table=table.open,  # type: ignore[arg-type]
        second_check_delay=second_check_delay,
        is_stopping=lambda: background.is_closed,
    )
    cleaner.set_addresses((OWN_ADDRESS,))
    return FlowCleanup({Family.IPV4: cleaner}, background)


@pytest.mark.virtual_time
async def test_leftovers_go_only_after_every_family_and_are_tried_again() -> None:
    attempts: list[int] = []

    def remove() -> CleanupResult:
        attempts.append(1)
        if len(attempts) == 1:
            raise Busy("somebody holds the xtables lock")
        return CleanupResult.UNFINISHED if len(attempts) == 2 else CleanupResult.NOTHING

    background = Background(retry_seconds=0.01)
    jobs = PostSyncJobs([Family.IPV4, Family.IPV6], background, {"remove leftovers": remove}, lambda: None)
    jobs.on_synced(synced(Family.IPV4))
    jobs.on_synced(synced(Family.IPV4))
    await asyncio.sleep(3600)
    assert attempts == []
    jobs.on_synced(synced(Family.IPV6))
    await async_wait_until(lambda: len(attempts) == 3)
    jobs.on_synced(synced(Family.IPV6))
    await asyncio.sleep(3600)
    await background.close()
    assert len(attempts) == 3


async def test_no_job_runs_beside_itself_however_often_it_is_asked_for() -> None:
    running, most, runs = 0, 0, 0
    let_go = threading.Event()

    def remove() -> CleanupResult:
        nonlocal running, most, runs
        running, runs = running + 1, runs + 1
        most = max(most, running)
        let_go.wait(5)
        running -= 1
        return CleanupResult.NOTHING

    background = Background()
    jobs = PostSyncJobs([Family.IPV4], background, {"remove leftovers": remove}, lambda: None)
    jobs.on_synced(synced())
    await async_wait_until(lambda: running == 1)
    jobs.rerun()
    jobs.rerun()
    let_go.set()
    await async_wait_until(lambda: runs == 2 and running == 0)
    await background.close()
    assert (runs, most) == (2, 1)


async def test_nothing_runs_after_the_end_and_the_loop_is_never_blocked() -> None:
    complaints: list[object] = []
    let_go, begun = threading.Event(), threading.Event()

    def remove() -> CleanupResult:
        begun.set()
        let_go.wait(5)
        raise Busy("still held")

    asyncio.get_running_loop().set_exception_handler(lambda _loop, details: complaints.append(details))
    background = Background(retry_seconds=0.01)
    jobs = PostSyncJobs([Family.IPV4], background, {"remove leftovers": remove}, lambda: None)
    jobs.on_synced(synced())
    await async_wait_until(begun.is_set)
    closing = asyncio.create_task(background.close())
    for _ in range(1000):
        await asyncio.sleep(0)
    assert not closing.done()
    let_go.set()
    await closing
    table = SlowTable()
    flow_cleanup(table, background).on_synced(synced(change=MOVED))
    await background.close()
    assert table.looks == 0
    assert complaints == []


async def test_where_node_ports_answer_everywhere_flows_to_any_own_address_are_checked() -> None:
    table, background = SlowTable(), Background()
    table.go_on.set()
    flow_cleanup(table, background).on_synced(synced(change=MOVED))
    await async_wait_until(lambda: table.entries == [])
    await background.close()


async def test_what_came_while_flows_were_checked_is_checked_at_once_afterwards() -> None:
    table, background = SlowTable(), Background(retry_seconds=3600.0)
    cleanup = flow_cleanup(table, background)
    cleanup.on_synced(synced(change=MOVED))
    await async_wait_until(table.begun.is_set)
    first = table.looks
    cleanup.on_synced(synced(change=PlanChange(MOVED.new, None)))
    table.go_on.set()
    await async_wait_until(lambda: table.looks > 2 * first)
    await background.close()


@pytest.mark.parametrize("full", [False, True])
async def test_after_a_full_sync_all_flows_are_checked(full: bool) -> None:
    """Somebody may have taken our rules away, and packets passed untranslated until they came back."""
    table, background = SlowTable(), Background()
    table.go_on.set()
    cleanup = flow_cleanup(table, background)
    cleanup.on_synced(synced(change=MOVED, full=False))
    await async_wait_until(lambda: table.entries == [])
    table.entries = [STALE]
    cleanup.on_synced(synced(full=full))
    if full:
        await async_wait_until(lambda: table.entries == [])
    await background.close()
    assert table.entries == ([] if full else [STALE])


@pytest.mark.parametrize("tidied", list(CleanupResult))
async def test_when_rules_of_another_mode_went_the_flows_they_made_are_checked(tidied: CleanupResult) -> None:
    told: list[str] = []

    def remove() -> CleanupResult:
        told.append("removal")
        return tidied

    background = Background()
    jobs = PostSyncJobs([Family.IPV4], background, {"leftovers": remove}, lambda: told.append("all flows"))
    jobs.on_synced(synced())
    expected = ["removal", *(["all flows"] if tidied is not CleanupResult.NOTHING else [])]
    await async_wait_until(lambda: len(told) == len(expected))
    await background.close()
    assert told == expected


async def test_every_flow_can_be_checked_without_a_sync() -> None:
    table, background = SlowTable(), Background()
    table.go_on.set()
    cleanup = flow_cleanup(table, background)
    cleanup.on_synced(synced(change=MOVED, full=False))
    await async_wait_until(lambda: table.entries == [])
    table.entries = [STALE]
    cleanup.check_everything()
    await async_wait_until(lambda: table.entries == [])
    await background.close()


class Pauses(Background):
    """Ends pauses when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.pending: list[Callable[[], None]] = []

    def call_later(self, work: Callable[[], None], seconds: float | None = None) -> None:
        del seconds
        self.pending.append(work)

    def end(self) -> None:
        pending, self.pending = self.pending, []
        for work in pending:
            work()


async def test_a_check_that_fails_is_tried_again_once_however_many_syncs_there_are() -> None:
    table, background = SlowTable(), Pauses()
    table.go_on.set()
    table.failure = Busy("no buffer space")
    cleanup = flow_cleanup(table, background)
    cleanup.on_synced(synced(change=MOVED))
    for attempt in range(1, 4):
        await async_wait_until(lambda: bool(background.pending))
        for _ in range(40):
            cleanup.on_synced(synced(change=MOVED))
            await asyncio.sleep(0.001)
        assert (table.looks, len(background.pending)) == (attempt, 1)
        background.end()
    table.failure = None
    await async_wait_until(lambda: bool(background.pending))
    background.end()
    await async_wait_until(lambda: table.entries == [])
    await background.close()


@pytest.mark.virtual_time
async def test_flows_are_looked_at_again_a_little_later_and_then_no_more() -> None:
    table, background = SlowTable(), Pauses()
    table.go_on.set()
    table.entries = []
    flow_cleanup(table, background, second_check_delay=timedelta(0)).on_synced(synced(change=MOVED))
    await async_wait_until(lambda: bool(background.pending))
    table.entries = [STALE]
    looks = table.looks
    background.end()
    await async_wait_until(lambda: table.looks == 2 * looks and table.entries == [])
    await asyncio.sleep(3600)
    await background.close()
    assert background.pending == []


@pytest.mark.parametrize("failure", [Busy("no buffer space"), NotSupported("the kernel needs CONFIG_X")])
async def test_flows_that_cannot_be_checked_are_a_condition_until_they_can(failure: KernelError) -> None:
    table, background = SlowTable(), Background(retry_seconds=0.01)
    table.go_on.set()
    table.failure = failure
    cleanup = flow_cleanup(table, background)
    cleanup.on_synced(synced(change=MOVED))
    await async_wait_until(lambda: not next(cleanup.conditions()).is_true)
    assert str(failure) in next(cleanup.conditions()).message
    table.failure = None
    cleanup.on_synced(synced(change=MOVED))
    await async_wait_until(lambda: next(cleanup.conditions()).is_true)
    await background.close()


async def test_a_long_look_at_flows_does_not_hold_up_the_end() -> None:
    table, background = SlowTable(), Background()
    flow_cleanup(table, background).on_synced(synced(change=MOVED))
    await async_wait_until(table.begun.is_set)
    async with asyncio.timeout(5):
        await background.close()
    assert table.looks == 1


async def test_flows_to_a_new_address_of_the_node_are_checked_without_a_sync_and_not_forgotten_by_the_next() -> (
    None
):
    """A sync that was under way meanwhile still tells of the addresses before."""
    table, background = SlowTable(), Background()
    table.go_on.set()
    table.entries = []
    cleanup = flow_cleanup(table, background)
    floating = b"\xc0\0\x02\x09"
    to_floating = STALE._replace(destination=floating, reply_source=floating, reply_source_port=NODE_PORT)
    cleanup.on_synced(synced(change=MOVED))
    await async_wait_until(lambda: table.looks > 0)
    table.entries = [to_floating]
    cleanup.on_addresses_changed(Family.IPV4, (OWN_ADDRESS, floating))
    await async_wait_until(lambda: table.entries == [])
    table.entries = [to_floating]
    cleanup.on_synced(synced(full=True))
    await async_wait_until(lambda: table.entries == [])
    await background.close()
