"""A comparison of everything beside the syncs finds what a mode's own look for foreign changes does not see."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta

import msgspec
import pytest
from tests import factory
from tests.fake.recording import RecordingBackend
from tests.harness.assembled import Assembly, assembled
from tests.harness.waiting import async_wait_until

from pointsman.backends import mode_named
from pointsman.config.mode_table import MODES
from pointsman.config.types import IPTables
from pointsman.errors import KernelError
from pointsman.model.addresses import Family
from pointsman.model.service import ServicePortName
from pointsman.node.family import compare_periodically, repair_differences

AT_ONCE = IPTables(min_sync_period=timedelta(milliseconds=1))
WEB = factory.service_port().name
API = factory.service_port("api").name


class Node:
    """A proxy of one IP family with two Services, and a second look at what it programmed; its own comes after minutes."""

    def __init__(self, assembly: Assembly) -> None:
        self.assembly = assembly
        self.family = assembly.proxy.families[Family.IPV4]
        self.record = assembly.proxy.reporter.statuses[Family.IPV4]

    @property
    def backend(self) -> RecordingBackend:
        return self.assembly.backends[Family.IPV4]

    @property
    def syncs(self) -> list[bool]:
        """Of each, whether it was a full one."""
        return [full for full, _ in self.backend.requests]

    def put(self) -> None:
        addresses = [{"type": "InternalIP", "address": "192.168.1.10"}]
        self.assembly.source.put(
            factory.node("n1", addresses=addresses),
            factory.service(),
            factory.endpoint_slice("10.244.1.5"),
            factory.service("api", clusterIP="10.96.0.11"),
        )
        self.assembly.source.listed()

    def damage(self, *names: ServicePortName) -> None:
        for name in names:
            del self.backend.programmed[name]


@contextlib.asynccontextmanager
async def started() -> AsyncIterator[Node]:
    async with assembled(families=(Family.IPV4,), mode="iptables", iptables=AT_ONCE) as assembly:
        assembly.backends[Family.IPV4].external_changes = None
        yield Node(assembly)


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[Node]:
    async with started() as node:
        node.put()
        await node.assembly.settled()
        assert WEB in node.backend.programmed
        yield node


def test_modes_whose_drift_check_sees_only_part_compare_everything_every_five_minutes_or_after_external_changes() -> (
    None
):
    periods = {name: mode_named(name).compare_seconds for name in MODES}
    assert periods == {"nftables": 1.0, "iptables": 300.0, "ipvs": 300.0}


@pytest.mark.parametrize("fails", [False, True])
async def test_cpu_time_of_other_threads_does_not_count_as_that_of_the_comparison(fails: bool) -> None:
    def burn(clock: Callable[[], float]) -> None:
        started = clock()
        while clock() < started + 0.1:
            pass

    def read() -> None:
        other = threading.Thread(target=burn, args=(time.thread_time,))
        other.start()
        other.join()
        if fails:
            burn(time.thread_time)
            raise KernelError("no buffers")

    async with served() as node:
        node.backend.reading = read
        await repair_differences(node.family)
        assert (node.family.comparing_cpu.total >= 0.1) is fails


async def test_what_others_changed_is_repaired_and_counted() -> None:
    async with served() as node:
        before = len(node.syncs)
        node.damage(WEB, API)
        await repair_differences(node.family)
        await node.assembly.settled()
        assert node.syncs[before:] == [True]
        assert node.record.drift_repaired == 1
        assert {WEB, API} <= node.backend.programmed.keys()


async def test_what_is_in_order_is_left_alone() -> None:
    async with served() as node:
        before = node.syncs
        await repair_differences(node.family)
        assert (node.syncs, node.record.drift_repaired) == (before, 0)


async def test_nothing_is_compared_before_the_first_sync_because_the_rules_may_be_those_of_the_last_process() -> (
    None
):
    async with started() as node:
        node.backend.reading = lambda: 1 / 0
        await repair_differences(node.family)
        assert (node.syncs, node.record.drift_repaired) == ([], 0)


async def test_what_the_kernel_refused_is_not_taken_for_the_work_of_others() -> None:
    async with started() as node:
        node.backend.refuse = {WEB: "no"}
        node.put()
        await node.assembly.settled()
        node.backend.refuse = {}
        before = node.syncs
        await repair_differences(node.family)
        assert (node.syncs, node.record.drift_repaired) == (before, 0)
        node.damage(API)
        await repair_differences(node.family)
        await node.assembly.settled()
        assert node.record.drift_repaired == 1


async def test_a_change_on_its_way_is_not_taken_for_the_work_of_others() -> None:
    async with served() as node:
        loop = asyncio.get_running_loop()

        def changing() -> None:
            node.backend.failures = [KernelError("no buffers")] * 10
            asyncio.run_coroutine_threadsafe(replaced(), loop).result(20)

        async def replaced() -> None:
            node.assembly.source.put(factory.endpoint_slice("10.244.1.99"))
            await async_wait_until(lambda: bool(node.family.loop.unsynced))

        node.backend.reading = changing
        await repair_differences(node.family)
        assert node.record.drift_repaired == 0


async def test_a_look_by_other_settings_than_those_of_the_last_sync_proves_nothing() -> None:
    async with served() as node:
        other = msgspec.structs.replace(node.assembly.proxy.node.context(Family.IPV4), masquerade_all=True)
        node.damage(WEB)
        present, node.family.context = node.family.context, lambda: other
        await repair_differences(node.family)
        assert node.record.drift_repaired == 0
        node.family.context = present
        await repair_differences(node.family)
        assert node.record.drift_repaired == 1


async def test_neither_a_kernel_that_cannot_be_read_nor_a_bug_ends_the_looks() -> None:
    async with served() as node:
        errors = [KernelError("no buffers"), ZeroDivisionError("bug")]

        def fails() -> None:
            if errors:
                raise errors.pop()

        node.backend.reading = fails
        looking = asyncio.create_task(compare_periodically(node.family, 0.001))
        try:
            await async_wait_until(lambda: not errors)
            assert node.record.drift_repaired == 0
            node.damage(WEB)
            await async_wait_until(lambda: node.record.drift_repaired == 1)
        finally:
            looking.cancel()


async def test_where_external_changes_are_counted_each_is_followed_by_one_comparison(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with served() as node:
        changes = polls = comparisons = 0
        failures = [KernelError("no buffers")]

        def poll(_backend: RecordingBackend) -> int:
            nonlocal polls
            polls += 1
            return changes

        def count() -> None:
            nonlocal comparisons
            comparisons += 1
            if failures:
                raise failures.pop()

        async def polled_again() -> None:
            seen = polls
            await async_wait_until(lambda: polls > seen + 2)

        monkeypatch.setattr(RecordingBackend, "external_changes", property(poll))
        node.backend.reading = count
        node.damage(WEB)
        looking = asyncio.create_task(compare_periodically(node.family, 0.001))
        try:
            await polled_again()
            assert comparisons == 0
            changes = 1
            await async_wait_until(lambda: node.record.drift_repaired == 1)
            assert comparisons == 2, "the one that failed is repeated"
            await node.assembly.settled()
            changes = 3
            await async_wait_until(lambda: comparisons == 3)
            await polled_again()
            assert (comparisons, node.record.drift_repaired) == (3, 1)
        finally:
            looking.cancel()
