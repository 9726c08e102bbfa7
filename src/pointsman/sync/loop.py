"""The asyncio side of one IP family: coalesce requests, run syncs on the worker thread, retry, watch for drift."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

from pointsman.backends.contract import Drift
from pointsman.errors import KernelError
from pointsman.model.node_context import NodeContext
from pointsman.model.tracker import Tracker
from pointsman.sync.pacing import Pacer
from pointsman.sync.reconcile import Reconciler, SyncOutcome

T = TypeVar("T")
RunBlocking = Callable[[Callable[[], T]], Awaitable[T]]


class SyncHooks:
    """What the rest of the process wants to hear; every method may be overridden."""

    def queued(self) -> None:
        """A change arrived that the kernel does not have yet."""

    def succeeded(self, outcome: SyncOutcome) -> None:
        """The kernel accepted everything taken so far."""

    def failed(self, error: KernelError, retry_in: float) -> None:
        """A sync failed; the old state stands."""

    def unsure(self, error: Exception) -> None:
        """Whether somebody changed what we own cannot be told; a full sync follows to be sure."""

    def drifted(self, drift: Drift) -> None:
        """Somebody else changed what we own; a full sync follows."""


class SyncLoop:
    """Runs the syncs of one IP family; `request` may be called from the event loop at any time."""

    def __init__(
        self,
        tracker: Tracker,
        reconciler: Reconciler,
        pacer: Pacer,
        *,
        context: Callable[[], NodeContext],
        run_blocking: RunBlocking[SyncOutcome | Drift | None],
        hooks: SyncHooks,
        drift_period: float,
    ) -> None:
        self.tracker = tracker
        self.reconciler = reconciler
        self.pacer = pacer
        self.hooks = hooks
        self.drift_period = drift_period
        self._context = context
        self._run_blocking = run_blocking
        self._wake = asyncio.Event()
        self._requested = False
        self._asked_once = False
        self._full_requested = False
        self._doubtful = False
        self._idle = asyncio.Event()
        self._synced_once = asyncio.Event()

    def request(self, *, full: bool = False) -> None:
        """Ask for a sync soon; requests made before it runs are served together."""
        if not self._requested:
            self.hooks.queued()
        self._requested = self._asked_once = True
        self._full_requested |= full
        self._idle.clear()
        self._wake.set()

    async def wait_idle(self) -> None:
        """Until every request made so far has been served by a successful sync."""
        await self._idle.wait()

    async def run(self) -> None:
        """Serve requests until cancelled."""
        loop = asyncio.get_running_loop()
        next_drift_check = loop.time() + self.drift_period
        while True:
            due = min(self._due_unasked(), next_drift_check)
            await self._sleep_until(due)
            now = loop.time()
            if now >= next_drift_check:
                next_drift_check = now + self.drift_period
                await self._check_drift()
            if self._requested or now >= self._due_unasked():
                delay = self.pacer.delay(now)
                if delay > 0:
                    await asyncio.sleep(delay)
                await self._sync_once()

    def _due_unasked(self) -> float:
        """Never before the first request: until all objects are listed, a full sync would take every rule away."""
        return self.pacer.next_due() if self._asked_once else math.inf

    async def _sleep_until(self, due: float) -> None:
        if self._requested and self._wake.is_set():
            self._wake.clear()
            return
        timeout = due - asyncio.get_running_loop().time()
        if timeout > 0:
            try:
                async with asyncio.timeout(timeout):
                    await self._wake.wait()
            except TimeoutError:
                return
        self._wake.clear()

    async def _check_drift(self) -> None:
        if not self._synced_once.is_set() or self._requested or self._full_requested:
            return
        try:
            drift = await self._run_blocking(self.reconciler.backend.drift)
        except Exception as error:  # noqa: BLE001 whatever it was, a full sync is the answer to not knowing
            self.hooks.unsure(error)
            self.request(full=True)
            return
        if isinstance(drift, Drift):
            self.hooks.drifted(drift)
            self.request(full=True)

    async def _sync_once(self) -> None:
        loop = asyncio.get_running_loop()
        full = self._full_requested or self.pacer.full_due(loop.time())
        self._requested = False
        self._full_requested = False
        changes = self.tracker.take_all() if self._doubtful else self.tracker.take()
        context = self._context()
        self.pacer.started(loop.time())
        try:
            outcome = await self._run_blocking(lambda: self.reconciler.sync(changes, context, full=full))
        except KernelError as error:
            self._sync_failed(error)
            return
        except Exception as error:  # noqa: BLE001 a bug met in one sync must not end the process
            self._doubtful = True
            self._sync_failed(KernelError(f"internal error: {error!r}"))
            return
        self._doubtful = False
        assert isinstance(outcome, SyncOutcome)
        self.pacer.succeeded(loop.time(), full=outcome.report.full)
        self.hooks.succeeded(outcome)
        self._synced_once.set()
        if not self._requested:
            self._idle.set()

    def _sync_failed(self, error: KernelError) -> None:
        self._full_requested = True
        self.hooks.failed(error, self.pacer.failed(asyncio.get_running_loop().time()))
