"""One IP family of the running proxy: tracker and sync loop in the event loop, backend on a worker thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import msgspec

from pointsman.backends.contract import Backend, Difference
from pointsman.daemon_thread import run_in_daemon_thread
from pointsman.machine.footprint import trim_heap
from pointsman.model.node_context import NodeContext
from pointsman.model.plan import ServicePlan
from pointsman.model.service import ServicePortName
from pointsman.model.tracker import Tracker
from pointsman.node.health import ProxyHealth
from pointsman.node.share_adjuster import ShareAdjuster
from pointsman.obs.log import get_log
from pointsman.sync.loop import SyncListener, SyncLoop
from pointsman.sync.pacing import Pace, Pacer
from pointsman.sync.reconcile import Reconciler, Snapshot

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
    ) -> None:
        self.family = tracker.family
        self.tracker = tracker
        self.backend = backend
        self.context = context
        self._is_active = False
        self._health = health
        self._comparing = asyncio.Lock()
        """One comparison at a time: more of them would take CPU time from syncs."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"sync-{self.family.value}")
        self.loop = SyncLoop(
            tracker,
            Reconciler(backend, count_services=count_services),
            Pacer(pace, asyncio.get_running_loop().time()),
            context=context,
            run_blocking=self.run_blocking,
            listeners=listeners,
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
        return self.tracker.pending + len(self.loop.unsynced)

    def has_pending(self, key: str) -> bool:
        """Return whether some port of this Service changed and is not in the kernel yet."""
        return any(name.key == key for name in self.tracker.pending_names | self.loop.unsynced)

    async def run_blocking(self, call: Callable[[], T]) -> T:
        """Run on this family's worker thread, where the backend and the plans live."""

        def watched() -> T:
            self._health.on_worker_busy(self.family)
            try:
                return call()
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
                    partial(self.loop.reconciler.comparison, taken, context, only)
                )
                found = await run_in_daemon_thread(comparison.differences, f"compare-{self.family.value}")
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


class PeriodicComparison:
    """Compares everything of one IP family with the kernel, where a mode's drift check sees only part of it.

    It does so now and then or, where the backend counts external changes, after each of them.

    A flushed chain, a replaced rule or a real server with another weight would otherwise stay until the next full sync. The kernel is
    read on a thread of its own while syncs continue.
    """

    def __init__(self, family: FamilyProxy) -> None:
        self._family = family

    async def run(self, period: float) -> None:
        """Compare until cancelled, the first time after one period."""
        pause = period
        compared = 0
        while True:
            await asyncio.sleep(pause)
            changes = self._family.backend.external_changes
            if changes is not None and changes == compared:
                pause = period
                continue
            started = time.process_time()
            if await self.compare():
                compared = changes or 0
            pause = max(period, _MIN_PAUSE_FACTOR * (time.process_time() - started))

    async def compare(self) -> bool:
        """Repair what differs from the last sync as drift; return False when no comparison was possible now.

        What service ports lack that the kernel rejected is no drift.
        """
        family = self._family
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
