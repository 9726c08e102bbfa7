"""The event loop side of one IP family: merge requests, run syncs on the worker thread, retry, check for drift."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from pointsman.backends.contract import Difference
from pointsman.model.addresses import Family
from pointsman.model.node_context import NodeContext
from pointsman.model.service import ServicePortName
from pointsman.model.tracker import Tracker
from pointsman.sync.pacing import Pacer
from pointsman.sync.reconcile import Reconciler, SyncFailed, SyncOutcome

T = TypeVar("T")

MAX_MERGE_STEPS = 100
"""Before a sync: about two seconds of CPU time."""


class RunBlocking(Protocol):
    """Runs a call on the worker thread of the family."""

    def __call__(self, call: Callable[[], T], /) -> Awaitable[T]: ...


class SyncListener:
    """Callbacks about the syncs of one process, called in the event loop; a listener overrides those it needs."""

    def on_queued(self, family: Family) -> None:
        """A change is waiting for the next sync."""

    def on_synced(self, outcome: SyncOutcome) -> None:
        """A sync succeeded; the kernel holds every change taken so far."""

    def on_addresses_changed(self, family: Family, addresses: tuple[bytes, ...]) -> None:
        """The node has these addresses of one family, at the start and after each change, whether or not a rule depends on them."""

    def on_sync_failed(self, family: Family, failure: SyncFailed, retry_in: float) -> None:
        """A sync failed; the previous rules remain."""

    def on_drift_check_failed(self, family: Family, error: Exception) -> None:
        """The drift check failed; a full sync follows."""

    def on_drift(self, family: Family, drift: Difference, restored_in: float) -> None:
        """Our rules were changed externally; a full sync follows, after `restored_in` seconds in a conflict."""

    def on_drift_check_passed(self, family: Family) -> None:
        """The drift check found no difference."""

    def on_conflict_ended(self, family: Family) -> None:
        """Another proxy has stopped rewriting our rules."""


def read_cpu_time() -> float:
    """Return the CPU seconds of this thread and of the programs that this process ran."""
    programs = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.thread_time() + programs.ru_utime + programs.ru_stime


async def merge_in_steps(tracker: Tracker) -> None:
    """Merge what changed, and let others run meanwhile: an object may have any number of ports and endpoints.

    Changes may arrive continuously, so the number of steps is limited; the next reader of the tracker merges the rest.
    """
    for _ in range(MAX_MERGE_STEPS):
        if not tracker.merge_step():
            return
        await asyncio.sleep(0)


class SyncLoop:
    """Runs the syncs of one IP family; `request` may be called from the event loop at any time."""

    def __init__(
        self,
        tracker: Tracker,
        reconciler: Reconciler,
        pacer: Pacer,
        *,
        context: Callable[[], NodeContext],
        run_blocking: RunBlocking,
        listeners: Sequence[SyncListener],
        read_cpu_time: Callable[[], float],
    ) -> None:
        """`read_cpu_time` returns the CPU seconds of the event loop, the worker thread and programs, but of no other thread."""
        self.pacer = pacer
        self.unsynced: frozenset[ServicePortName] = frozenset()
        """Service ports taken from the tracker that the kernel has not accepted yet."""
        self._tracker = tracker
        self.reconciler = reconciler
        self._context = context
        self._run_blocking = run_blocking
        self._listeners = listeners
        self._read_cpu_time = read_cpu_time
        self._full = False
        """The next sync makes the kernel equal to the plans, whatever it holds."""
        self._succeeded = False
        """The last sync succeeded."""
        self._is_filling = False
        """Hash tables wait for the next sync, which is part of the last one."""
        self._requested = asyncio.Event()
        self._idle = asyncio.Event()

    def request(self, *, full: bool = False) -> None:
        """Request a sync; all requests made before it runs are served by one."""
        if not self._requested.is_set():
            for listener in self._listeners:
                listener.on_queued(self._tracker.family)
        if full:
            self._full = True
        self._idle.clear()
        self._requested.set()

    @property
    def is_settled(self) -> bool:
        """Whether the kernel should hold the plans: the last sync succeeded and no full sync is pending.

        Pending changes do not matter: their sync repairs nothing else, and changes may arrive continuously.
        """
        return self._succeeded and not self._full

    def restore(self, drift: Difference) -> None:
        """Restore the rules after a check outside of the loop found an external change."""
        if self.is_settled:
            self._handle_drift(drift)
            self.request(full=True)

    async def wait_idle(self) -> None:
        """Wait until a sync succeeded and no request is left that was made after it began."""
        await self._idle.wait()

    async def run(self) -> None:
        """Serve requests until cancelled."""
        loop = asyncio.get_running_loop()
        checked_at = loop.time()
        while True:
            check_due = checked_at + self.pacer.pace.drift_period
            if not self._is_filling:
                await self._wait_for_request(min(self.pacer.compute_next_due(), check_due))
            if loop.time() >= check_due:
                await self._check_drift()
                checked_at = loop.time()
                check_due = checked_at + self.pacer.pace.drift_period
            now = loop.time()
            if self._is_filling or self._requested.is_set() or now >= self.pacer.compute_next_due():
                delay = self.pacer.compute_delay(now, continues=self._is_filling)
                if now + delay > check_due:
                    await asyncio.sleep(check_due - now)
                    continue
                if delay > 0:
                    await asyncio.sleep(delay)
                started, cpu_time, continues = loop.time(), self._read_cpu_time(), self._is_filling
                await self._sync_once()
                if not continues:
                    self.pacer.record_sync(started, self._read_cpu_time() - cpu_time)

    async def _wait_for_request(self, due: float) -> None:
        timeout = due - asyncio.get_running_loop().time()
        if timeout > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._requested.wait()

    async def _check_drift(self) -> None:
        if not self.is_settled:
            return
        family = self._tracker.family
        try:
            drift = await self._run_blocking(self.reconciler.backend.check)
        except Exception as error:  # noqa: BLE001 whatever the error, a full sync restores the rules
            for listener in self._listeners:
                listener.on_drift_check_failed(family, error)
            self.request(full=True)
            return
        if drift is not None:
            self._handle_drift(drift)
            self.request(full=True)
            return
        for listener in self._listeners:
            listener.on_drift_check_passed(family)
        if self.pacer.end_conflict(asyncio.get_running_loop().time()):
            for listener in self._listeners:
                listener.on_conflict_ended(family)

    def _handle_drift(self, drift: Difference) -> None:
        now = asyncio.get_running_loop().time()
        restored_in = 0.0 if drift.other_proxy is None else self.pacer.record_rewrite(now)
        for listener in self._listeners:
            listener.on_drift(self._tracker.family, drift, restored_in)

    async def _sync_once(self) -> None:
        loop = asyncio.get_running_loop()
        full = self._full or self.pacer.is_full_due(loop.time())
        self._full = False
        self._requested.clear()
        try:
            await merge_in_steps(self._tracker)
            changes = self._tracker.take()
            self.unsynced |= changes.states.keys()
            context = self._context()
            outcome = await self._run_blocking(lambda: self.reconciler.sync(changes, context, full=full))
        except SyncFailed as failure:
            self.unsynced = failure.unsynced
            self._fail(failure)
            return
        except Exception as error:  # noqa: BLE001 a bug in one sync must not end the process
            self._tracker.restart()
            self.reconciler = self.reconciler.build_successor()
            self._fail(SyncFailed(f"internal error: {error!r}", full=full))
            return
        self.unsynced = outcome.waiting
        self._is_filling = bool(outcome.waiting)
        self._succeeded = True
        self.pacer.record_success(loop.time(), full=outcome.report.full)
        for listener in self._listeners:
            listener.on_synced(outcome)
        if outcome.report.drift is not None:
            self._handle_drift(outcome.report.drift)
        if not self._requested.is_set() and not self._is_filling:
            self._idle.set()

    def _fail(self, failure: SyncFailed) -> None:
        self._full = True
        self._succeeded = self._is_filling = False
        self._idle.clear()
        retry_in = self.pacer.record_failure(asyncio.get_running_loop().time())
        for listener in self._listeners:
            listener.on_sync_failed(self._tracker.family, failure, retry_in)
