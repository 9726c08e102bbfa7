"""One IP family of the running proxy: tracker and sync loop in the event loop, backend on a worker thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import msgspec

from pointsman.backends.contract import Backend, Difference
from pointsman.daemon_thread import CpuMeter, run_in_daemon_thread
from pointsman.machine.settings import trim_heap
from pointsman.model.node_context import NodeContext
from pointsman.model.plan import ServicePlan
from pointsman.model.service import ServicePortName
from pointsman.model.tracker import Tracker
from pointsman.node.health import ProxyHealth
from pointsman.node.share_adjuster import ShareAdjuster
from pointsman.obs.log import get_log
from pointsman.sync.loop import SyncListener, SyncLoop, read_cpu_time
from pointsman.sync.pacing import FULL_SYNC_INTERVAL_SECONDS, Pace, Pacer
from pointsman.sync.reconcile import Reconciler, Snapshot
from pointsman.waiting import compute_pause

T = TypeVar("T")

MAX_READINGS = 3

_MIN_PAUSE_FACTOR = 100
"""A comparison is followed by a pause of at least that many times its CPU time: it never takes more than a hundredth of a core."""

_MANY_PLANS = 1000
"""From here on, the memory that a comparison needed is worth returning to the system."""

_log = get_log(__name__)

Choice = Callable[[Mapping[ServicePortName, ServicePlan]], Collection[ServicePortName] | None]
"""Chooses the service ports to compare from all plans; None for all of them and everything else in the kernel."""


class Compared(msgspec.Struct, frozen=True):
    """Differences of the kernel from a snapshot of the plans."""

    taken: Snapshot
    differences: tuple[Difference, ...]


class FamilyProxy:
    """Everything that belongs to one IP family while the proxy runs."""

    def __init__(
        self,
        tracker: Tracker,
        backend: Backend,
        pace: Pace,
        context: Callable[[], NodeContext],
        listeners: Sequence[SyncListener],
        health: ProxyHealth,
        *,
        count_services: bool = False,
        families: int = 1,
    ) -> None:
        self.family = tracker.family
        self.tracker = tracker
        self.backend = backend
        self.context = context
        self._is_active = False
        self._health = health
        self._comparing = asyncio.Lock()
        """One comparison at a time: more of them would take CPU time from syncs."""
        self.comparing_cpu = CpuMeter()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"sync-{self.family.value}")
        self._thread_cpu = CpuMeter()
        self.loop = SyncLoop(
            tracker,
            Reconciler(backend, count_services=count_services, families=families),
            Pacer(pace),
            context=context,
            run_blocking=self.run_blocking,
            listeners=listeners,
            read_cpu_time=lambda: read_cpu_time() + self._thread_cpu.total,
        )
        self.shares = ShareAdjuster(tracker, self.loop.request)

    def activate(self) -> None:
        """Let requests through from now on, and request the first sync."""
        self._is_active = True
        self.request()

    def request(self) -> None:
        """Request a sync, after objects or the node changed."""
        if self._is_active:
            self.loop.request()
            self.shares.on_objects_changed()

    @property
    def pending(self) -> int:
        """Service ports that changed and are not in the kernel yet."""
        return len(self.tracker.pending_names) + len(self.loop.unsynced)

    def has_pending(self, key: str) -> bool:
        """Return whether some port of this Service changed and is not in the kernel yet."""
        return any(name.key == key for name in self.tracker.pending_names | self.loop.unsynced)

    async def run_blocking(self, call: Callable[[], T]) -> T:
        """Run on this family's worker thread, where the backend and the plans live."""

        def watched() -> T:
            self._health.on_worker_busy(self.family)
            try:
                return self._thread_cpu.run(call)
            finally:
                self._health.on_worker_idle(self.family)

        return await asyncio.get_running_loop().run_in_executor(self._thread, watched)

    async def snapshot(self) -> Snapshot:
        """Copy the plans between two syncs."""
        return await self.run_blocking(self.loop.reconciler.snapshot)

    async def compare(self, context: NodeContext, choose: Choice) -> Compared:
        """Compare the kernel with the plans, on a thread of its own while syncs continue. Raises KernelError.

        After a sync that ran meanwhile, the reading belongs to neither state, so it is repeated until none ran, or until no
        difference is left that every reading has seen.
        """
        async with self._comparing:
            agreed: tuple[Difference, ...] = ()
            for reading in range(MAX_READINGS):
                taken = await self.snapshot()
                only = await asyncio.to_thread(choose, taken.plans)
                comparison = await self.run_blocking(
                    partial(self.loop.reconciler.prepare_comparison, taken, context, only)
                )
                read = partial(self.comparing_cpu.run, comparison.differences)
                found = await run_in_daemon_thread(read, f"compare-{self.family.value}")
                if (await self.snapshot()).syncs == taken.syncs:
                    return Compared(taken, tuple(found))
                seen = frozenset(agreed)
                agreed = tuple(one for one in found if not reading or one in seen)
                if not agreed:
                    break
            return Compared(taken, agreed)

    async def close(self) -> None:
        """Wait for a running sync, then close the backend; kernel state stays."""
        await self.run_blocking(self.backend.close)
        self._thread.shutdown()


async def compare_periodically(family: FamilyProxy, period: float) -> None:
    """Compare everything of one IP family with the kernel until cancelled, the first time after one period.

    For modes whose drift check sees only part of it: a flushed chain, a replaced rule or a real server with another weight
    would otherwise stay until the next full sync. Where the backend counts external changes, only after each of them.
    """
    pause = period
    compared = 0
    while True:
        await asyncio.sleep(pause)
        changes = family.backend.external_changes
        if changes is not None and changes == compared:
            pause = period
            continue
        before = family.comparing_cpu.total
        if await repair_differences(family):
            compared = changes or 0
        cost = family.comparing_cpu.total - before
        # After the longest pause a full sync writes everything anyway.
        pause = compute_pause(cost, _MIN_PAUSE_FACTOR, period, FULL_SYNC_INTERVAL_SECONDS)


async def repair_differences(family: FamilyProxy) -> bool:
    """Repair what differs from the last sync as drift; return False when no comparison was possible now.

    What service ports lack that the kernel rejected is no drift.
    """
    if not family.loop.is_settled:
        return False
    context = family.context()
    try:
        compared = await family.compare(context, lambda _plans: None)
    except Exception as error:  # noqa: BLE001 a failed comparison must not end the proxy
        _log.warning("Cannot compare the rules with the kernel", err=error, ipFamily=family.family.value)
        return False
    if len(compared.taken.plans) >= _MANY_PLANS:
        await asyncio.to_thread(trim_heap)
    found = [one for one in compared.differences if one.owner not in compared.taken.rejected]
    as_synced = compared.taken.context == context and not compared.taken.unsynced
    if found and as_synced:
        others = len(found) - 1
        detail = f"{others} more differences" if others > 1 else "one more difference" if others else ""
        family.loop.restore(msgspec.structs.replace(found[0], detail=detail))
    return as_synced
