"""The asyncio side of one IP family: coalesce requests, run syncs on the worker thread, retry, watch for drift."""

from __future__ import annotations

import asyncio
import contextlib
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
        """The node has these addresses of one family, at the start or after a change; no rule may depend on them."""

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
    ) -> None:
        self.pacer = pacer
        self.unsynced: frozenset[ServicePortName] = frozenset()
        """Service ports taken from the tracker that the kernel has not accepted yet."""
        self._tracker = tracker
        self.reconciler = reconciler
        self._context = context
        self._run_blocking = run_blocking
        self._listeners = listeners
        self._full = False
        """The next sync makes the kernel equal to the plans, whatever it holds."""
        self._succeeded = False
        """The last sync."""
        self._asked = asyncio.Event()
        self._idle = asyncio.Event()

    def request(self, *, full: bool = False) -> None:
        """Ask for a sync soon; requests made before it runs are served together."""
        if not self._asked.is_set():
            for listener in self._listeners:
                listener.on_queued(self._tracker.family)
        if full:
            self._full = True
        self._idle.clear()
        self._asked.set()

    @property
    def in_force(self) -> bool:
        """Whether what the kernel should hold is known: the last sync succeeded, and no full one is to follow.

        Changes that wait are no doubt about it: a sync of changes repairs nothing else, and they may arrive for ever.
        """
        return self._succeeded and not self._full

    def damaged(self, drift: Difference) -> None:
        """A look beside the loop found that someone else changed what we own."""
        if self.in_force:
            self._drifted(drift)
            self.request(full=True)

    async def wait_idle(self) -> None:
        """Until a sync succeeded, with no request left that came after it began."""
        await self._idle.wait()

    async def run(self) -> None:
        """Serve requests until cancelled."""
        loop = asyncio.get_running_loop()
        looked_at = loop.time()
        while True:
            look_due = looked_at + self.pacer.pace.drift_period
            await self._asked_or(min(self.pacer.next_due(), look_due))
            if loop.time() >= look_due:
                await self._check_drift()
                looked_at = loop.time()
                look_due = looked_at + self.pacer.pace.drift_period
            now = loop.time()
            if self._asked.is_set() or now >= self.pacer.next_due():
                delay = self.pacer.delay(now)
                if now + delay > look_due:
                    await asyncio.sleep(look_due - now)
                    continue
                if delay > 0:
                    await asyncio.sleep(delay)
                await self._sync_once()

    async def _asked_or(self, due: float) -> None:
        timeout = due - asyncio.get_running_loop().time()
        if timeout > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._asked.wait()

    async def _check_drift(self) -> None:
        if not self.in_force:
            return
        family = self._tracker.family
        try:
            drift = await self._run_blocking(self.reconciler.backend.check)
        except Exception as error:  # noqa: BLE001 whatever it was, a full sync is the answer to not knowing
            for listener in self._listeners:
                listener.on_drift_check_failed(family, error)
            self.request(full=True)
            return
        if drift is not None:
            self._drifted(drift)
            self.request(full=True)
            return
        for listener in self._listeners:
            listener.on_drift_check_passed(family)
        if self.pacer.peace(asyncio.get_running_loop().time()):
            for listener in self._listeners:
                listener.on_conflict_ended(family)

    def _drifted(self, drift: Difference) -> None:
        now = asyncio.get_running_loop().time()
        restored_in = 0.0 if drift.other_proxy is None else self.pacer.rewritten(now)
        for listener in self._listeners:
            listener.on_drift(self._tracker.family, drift, restored_in)

    async def _sync_once(self) -> None:
        loop = asyncio.get_running_loop()
        full = self._full or self.pacer.full_due(loop.time())
        self._full = False
        self._asked.clear()
        self.pacer.started(loop.time())
        try:
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
        self.unsynced = frozenset()
        self._succeeded = True
        self.pacer.succeeded(loop.time(), full=outcome.report.full)
        for listener in self._listeners:
            listener.on_synced(outcome)
        if outcome.report.drift is not None:
            self._drifted(outcome.report.drift)
        if not self._asked.is_set():
            self._idle.set()

    def _fail(self, failure: SyncFailed) -> None:
        self._full = True
        self._succeeded = False
        self._idle.clear()
        retry_in = self.pacer.failed(asyncio.get_running_loop().time())
        for listener in self._listeners:
            listener.on_sync_failed(self._tracker.family, failure, retry_in)
