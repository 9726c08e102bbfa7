"""Cleanup after syncs, on background threads: stale flows, and leftovers of other modes.

Leftovers are removed only after every family of the new mode has synced once, so that a switch of modes leaves no gap.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from pointsman.conditions import Condition
from pointsman.machine.footprint import trim_heap
from pointsman.model.addresses import Family
from pointsman.obs.log import get_log
from pointsman.sync.flow_cleaner import CleanReport, StaleFlowCleaner
from pointsman.sync.loop import SyncListener
from pointsman.sync.reconcile import SyncOutcome

T = TypeVar("T")

RETRY_SECONDS = 10.0
_MANY_SERVICE_PORTS: Final = 1000
"""A check of that many takes memory worth returning to the system."""

_log = get_log(__name__)


class Background:
    """Threads for work that must not delay a sync: two, so that flows do not wait for leftovers."""

    def __init__(self, retry_seconds: float = RETRY_SECONDS) -> None:
        self._retry_seconds = retry_seconds
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="cleanup")
        self.is_closed = False
        """Running work should end soon."""

    def run(self, work: Callable[[], T], then: Callable[[T], None]) -> None:
        """Run `work` on a thread, then `then` in the event loop, unless closed meanwhile."""
        if self.is_closed:
            return

        def finished(future: asyncio.Future[T]) -> None:
            if not future.cancelled() and not self.is_closed:
                then(future.result())

        asyncio.get_running_loop().run_in_executor(self._threads, work).add_done_callback(finished)

    def call_later(self, work: Callable[[], None], seconds: float | None = None) -> None:
        """Call in the event loop after a pause, by default the one before a retry."""
        pause = self._retry_seconds if seconds is None else seconds
        asyncio.get_running_loop().call_later(pause, work)

    async def close(self) -> None:
        """Wait for running work without blocking the event loop; nothing new starts."""
        self.is_closed = True
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)


class FlowCleanup(SyncListener):
    """Deletes stale flows after every sync that may have left some."""

    def __init__(self, cleaners: Mapping[Family, StaleFlowCleaner], background: Background) -> None:
        self._cleaners = cleaners
        self._background = background
        self._problems: dict[Family, str] = {}
        self._running: set[Family] = set()
        self._backing_off: set[Family] = set()
        """Failed a moment ago: requests wait for the retry, or every sync would add an attempt."""
        self._second_checks: set[Family] = set()

    def on_synced(self, outcome: SyncOutcome) -> None:
        family = outcome.family
        cleaner = self._cleaners[family]
        noted = cleaner.add(outcome.changes, outcome.context)
        if outcome.report.full:
            noted = cleaner.add_everything()
        if noted:
            self._clean(family)

    def on_addresses_changed(self, family: Family, addresses: tuple[bytes, ...]) -> None:
        if self._cleaners[family].set_addresses(addresses):
            self._clean(family)

    def check_everything(self) -> None:
        """Check all flows: rules of another program may have decided about packets up to now."""
        for family, cleaner in self._cleaners.items():
            if cleaner.add_everything():
                self._clean(family)

    def _clean(self, family: Family) -> None:
        if family not in self._running and family not in self._backing_off:
            self._running.add(family)
            self._background.run(self._cleaners[family].run, lambda report: self._on_cleaned(family, report))

    def _on_cleaned(self, family: Family, report: CleanReport) -> None:
        """Continue with what was requested meanwhile; retry what failed after a pause."""
        self._running.discard(family)
        self._problems[family] = report.problem
        cleaner = self._cleaners[family]
        if report.unfinished:
            self._backing_off.add(family)
            self._background.call_later(lambda: self._clean_after(self._backing_off, family))
        elif cleaner.waiting:
            self._clean(family)
        elif cleaner.has_second_checks and family not in self._second_checks:
            self._second_checks.add(family)
            self._background.call_later(
                lambda: self._clean_after(self._second_checks, family), cleaner.second_check_delay
            )
        elif report.checked >= _MANY_SERVICE_PORTS:
            self._background.run(trim_heap, lambda _: None)

    def _clean_after(self, pause: set[Family], family: Family) -> None:
        pause.discard(family)
        self._clean(family)

    def conditions(self) -> Iterator[Condition]:
        found = [f"{family.value}: {problem}" for family, problem in self._problems.items() if problem]
        if found:
            message = (
                f"stale flows could not be deleted, so some clients may get no replies ({'; '.join(found)})"
            )
            yield Condition.false("FlowCleanup", "CleanupFailed", message)
        else:
            yield Condition.true("FlowCleanup")


class CleanupResult(enum.Enum):
    """Result of a cleanup job."""

    NOTHING = "nothing to do"
    CHANGED = "removed something that handled packets"
    UNFINISHED = "incomplete; something may have been removed"


class PostSyncJobs(SyncListener):
    """Runs each job when every family has synced for the first time; one that fails is retried."""

    def __init__(
        self,
        families: Iterable[Family],
        background: Background,
        jobs: Mapping[str, Callable[[], CleanupResult]],
        on_change: Callable[[], None],
    ) -> None:
        """`jobs` are named by what they do, for the log; `on_change` is called in the event loop after a job changed something."""
        self._unsynced = set(families)
        self._background = background
        self._jobs = jobs
        self._on_change = on_change
        self._running: set[str] = set()
        self._requested: set[str] = set()
        """To be run again after the present run."""
        self._backing_off: set[str] = set()

    def on_synced(self, outcome: SyncOutcome) -> None:
        if self._unsynced:
            self._unsynced.discard(outcome.family)
            self.rerun()

    def rerun(self) -> None:
        """Run all jobs again: another proxy has ended, which may have rewritten its rules. Does nothing before the first sync."""
        if not self._unsynced:
            for name in self._jobs:
                self._start(name)

    def _start(self, name: str) -> None:
        """Start a job, or have it run again if it is running: no job runs beside itself."""
        if name in self._running:
            self._requested.add(name)
            return
        self._running.add(name)
        self._background.run(lambda: self._run(name), lambda result: self._on_ended(name, result))

    def _run(self, name: str) -> CleanupResult:
        try:
            return self._jobs[name]()
        except Exception as error:  # noqa: BLE001 leftovers are no reason to stop
            _log.error("Cleanup failed, retrying", job=name, err=error)
            return CleanupResult.UNFINISHED

    def _on_ended(self, name: str, result: CleanupResult) -> None:
        if result is not CleanupResult.NOTHING:
            self._on_change()
        self._running.discard(name)
        if name in self._requested:
            self._requested.discard(name)
            self._start(name)
        elif result is CleanupResult.UNFINISHED and name not in self._backing_off:
            self._backing_off.add(name)
            self._background.call_later(lambda: self._start_after_pause(name))

    def _start_after_pause(self, name: str) -> None:
        self._backing_off.discard(name)
        self._start(name)
