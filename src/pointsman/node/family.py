"""One IP family of the running proxy: its tracker and its loop in the event loop, its backend on a worker thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import msgspec

from pointsman.backends.contract import Backend, Difference
from pointsman.daemon_thread import run_in_daemon_thread
from pointsman.model.node_context import NodeContext
from pointsman.model.plan import ServicePlan
from pointsman.model.service import ServicePortName
from pointsman.model.tracker import Tracker
from pointsman.node.health import ProxyHealth
from pointsman.sync.loop import SyncListener, SyncLoop
from pointsman.sync.pacing import Pace, Pacer
from pointsman.sync.reconcile import Reconciler, Snapshot

T = TypeVar("T")

_READINGS = 3

Choice = Callable[[Mapping[ServicePortName, ServicePlan]], Collection[ServicePortName] | None]
"""Of all plans, the service ports to compare; None for all of them and whatever else is there."""


class Compared(msgspec.Struct, frozen=True):
    """What the kernel should hold, and how it differs from that."""

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
        self._health = health
        self._looking = asyncio.Lock()
        """One look at the kernel at a time: more of them would only take the processor from syncs."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"sync-{self.family.value}")
        self.loop = SyncLoop(
            tracker,
            Reconciler(backend, count_services=count_services),
            Pacer(pace, asyncio.get_running_loop().time()),
            context=context,
            run_blocking=self.run_blocking,
            listeners=listeners,
        )

    @property
    def pending(self) -> int:
        """Service ports that changed and are not in the kernel yet."""
        return self.tracker.pending + len(self.loop.unsynced)

    def awaits(self, key: str) -> bool:
        """Whether some port of this Service changed and is not in the kernel yet."""
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
        """A copy of the plans between two syncs."""
        return await self.run_blocking(self.loop.reconciler.snapshot)

    async def compared(self, context: NodeContext, choose: Choice) -> Compared:
        """The kernel against the plans, read on a thread of its own while syncs go on; raises KernelError.

        A sync that ran meanwhile makes two things be compared that never belonged together, so it is done again until
        none did, or until no difference is left that every reading has seen.
        """
        async with self._looking:
            agreed: tuple[Difference, ...] = ()
            for reading in range(_READINGS):
                taken = await self.snapshot()
                only = await asyncio.to_thread(choose, taken.plans)
                comparison = await self.run_blocking(
                    partial(self.loop.reconciler.comparison, taken, context, only)
                )
                found = await run_in_daemon_thread(comparison.differences, f"look-{self.family.value}")
                if (await self.snapshot()).syncs == taken.syncs:
                    return Compared(taken, tuple(found))
                seen = frozenset(agreed)
                agreed = tuple(one for one in found if not reading or one in seen)
                if not agreed:
                    break
            return Compared(taken, agreed)

    async def close(self) -> None:
        """Wait for a sync under way, then let go; kernel state stays."""
        await self.run_blocking(self.backend.close)
        self._thread.shutdown()
