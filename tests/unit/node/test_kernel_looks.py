"""Looking at the kernel goes on beside the syncs: neither waits for the other, and no sync is taken for damage."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from tests import factory
from tests.harness.assembled import Assembly, assembled

from pointsman.config.types import NFTables
from pointsman.model.addresses import Family
from pointsman.node.family import FamilyProxy
from pointsman.node.inspector import Inspector
from pointsman.report.status import FamilyVerification, ReloadReport
from pointsman.sync.reconcile import Snapshot

WEB = factory.service()
AT_ONCE = NFTables(min_sync_period=timedelta(milliseconds=1))


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[Assembly]:
    async with assembled(families=(Family.IPV4,), nftables=AT_ONCE) as running:
        addresses = [{"type": "InternalIP", "address": "192.168.1.10"}]
        running.source.put(factory.node("n1", addresses=addresses), WEB, factory.endpoint_slice("10.244.1.5"))
        running.source.listed()
        await running.settled()
        yield running


async def verified(assembly: Assembly) -> FamilyVerification:
    (family,) = (await Inspector(assembly.proxy, ReloadReport).verify()).families
    return family


async def test_a_sync_completes_while_a_verification_is_stuck_in_the_kernel() -> None:
    async with served() as assembly:
        backend = assembly.backends[Family.IPV4]
        stuck, let_go = threading.Event(), threading.Event()

        def reading() -> None:
            stuck.set()
            assert let_go.wait(20)

        backend.reading = reading
        verification = asyncio.create_task(verified(assembly))
        try:
            assert await asyncio.to_thread(stuck.wait, 20)
            assembly.source.put(factory.service("api", clusterIP="10.96.0.11"))
            await assembly.settled()
            assert factory.service_port("api").name in backend.programmed
            assert not verification.done()
        finally:
            let_go.set()
        assert (await verification).differences == ()


@pytest.mark.parametrize(("damaged", "readings"), [(False, 2), (True, 3)])
async def test_what_a_sync_changes_during_the_reading_is_no_difference(damaged: bool, readings: int) -> None:
    async with served() as assembly:
        backend = assembly.backends[Family.IPV4]
        loop = asyncio.get_running_loop()
        done = 0

        async def replaced() -> None:
            assembly.source.put(factory.endpoint_slice(f"10.244.1.{100 + done}"))
            await assembly.settled()

        def reading() -> None:
            nonlocal done
            done += 1
            asyncio.run_coroutine_threadsafe(replaced(), loop).result(20)

        backend.reading = reading
        lost = factory.service_port("lost", cluster_ip="10.96.0.12")
        assembly.source.put(factory.service("lost", clusterIP="10.96.0.12"))
        await assembly.settled()
        if damaged:
            del backend.programmed[lost.name]
        found = await verified(assembly)
        assert done == readings
        assert [difference.owner for difference in found.differences] == ([lost.name] if damaged else [])


async def test_the_status_does_not_wait_for_a_worker_that_is_stuck() -> None:
    async with served() as assembly:
        inspector = Inspector(assembly.proxy, ReloadReport, worker_timeout=0.05)
        known = (await inspector.status()).service_states
        assert sum(known.values()) == 1
        let_go = threading.Event()
        family = assembly.proxy.families[Family.IPV4]
        assembly.source.put(factory.endpoint_slice("10.244.1.6"))
        await assembly.settled()
        stuck = asyncio.create_task(family.run_blocking(lambda: let_go.wait(20)))
        try:
            assert (await inspector.status()).service_states == known
            assert not stuck.done()
        finally:
            let_go.set()
            await stuck


class Counted:
    """A family that counts its snapshots."""

    def __init__(self, family: FamilyProxy) -> None:
        self._family = family
        self.snapshots = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._family, name)

    async def snapshot(self) -> Snapshot:
        self.snapshots += 1
        return await self._family.snapshot()


async def test_many_who_ask_for_the_status_at_once_make_one_count() -> None:
    async with served() as assembly:
        families = assembly.proxy.families
        families[Family.IPV4] = counted = Counted(families[Family.IPV4])  # type: ignore[assignment]
        inspector = Inspector(assembly.proxy, ReloadReport)
        for expected in (1, 2):
            reports = await asyncio.gather(*(inspector.status() for _ in range(50)))
            assert [sum(report.service_states.values()) for report in reports] == [expected] * 50
            assert counted.snapshots == expected
            assembly.source.put(factory.service("api", clusterIP="10.96.0.11"))
            await assembly.settled()
