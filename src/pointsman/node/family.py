"""One IP family of the running proxy: its tracker and its loop in the event loop, its backend on a worker thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pointsman.backends.contract import Backend
from pointsman.model.node_context import NodeContext, Situation
from pointsman.model.tracker import Tracker
from pointsman.serve.health import ProxyHealth
from pointsman.sync.loop import SyncListener, SyncLoop
from pointsman.sync.pacing import Pace, Pacer
from pointsman.sync.reconcile import Reconciler, Snapshot

T = TypeVar("T")


class FamilyProxy:
    """Everything that belongs to one IP family while the proxy runs."""

    def __init__(
        self,
        tracker: Tracker,
        backend: Backend,
        pace: Pace,
        situation: Callable[[], Situation],
        listeners: Sequence[SyncListener],
        health: ProxyHealth,
        *,
        count_services: bool = False,
    ) -> None:
        self.family = tracker.family
        self.tracker = tracker
        self.backend = backend
        self._health = health
        self._reconciler = Reconciler(backend, count_services=count_services)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"sync-{self.family.value}")
        self.loop = SyncLoop(
            tracker,
            self._reconciler,
            Pacer(pace, asyncio.get_running_loop().time()),
            situation=situation,
            run_blocking=self.run_blocking,
            listeners=listeners,
        )

    @property
    def pending(self) -> int:
        """Service ports that changed and are not in the kernel yet."""
        return self.tracker.pending + len(self.loop.unsynced)

    async def run_blocking(self, call: Callable[[], T]) -> T:
        """Run on this family's worker thread, where the backend and the plans live."""

        def watched() -> T:
            self._health.busy(self.family)
            try:
                return call()
            finally:
                self._health.idle(self.family)

        return await asyncio.get_running_loop().run_in_executor(self._thread, watched)

    async def snapshot(self, verify_with: NodeContext | None = None) -> Snapshot:
        """A copy of the plans between two syncs; with a context the kernel is compared, or KernelError raised."""
        return await self.run_blocking(lambda: self._reconciler.snapshot(verify_with))

    async def close(self) -> None:
        """Wait for a sync under way, then let go; kernel state stays."""
        await self.run_blocking(self.backend.close)
        self._thread.shutdown()
