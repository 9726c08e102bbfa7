"""Cleanup after syncs, on background threads: stale flows, and leftovers of other modes.

Leftovers are removed only after every family of the new mode has synced once, so that a switch of modes leaves no gap.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, Generic, TypeVar

from pointsman.conditions import Condition
from pointsman.machine.settings import trim_heap
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

        def on_finished(future: asyncio.Future[T]) -> None:
            if not future.cancelled() and not self.is_closed:
                then(future.result())

        asyncio.get_running_loop().run_in_executor(self._threads, work).add_done_callback(on_finished)

    def call_later(self, work: Callable[[], None], seconds: float | None = None) -> None:
        """Call in the event loop after a pause, by default the one before a retry."""
        pause = self._retry_seconds if seconds is None else seconds
        asyncio.get_running_loop().call_later(pause, work)

    async def close(self) -> None:
        """Wait for running work without blocking the event loop; nothing new starts."""
        self.is_closed = True
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)


class BackgroundJob(Generic[T]):
    """Work that never runs beside itself.

    A request during a run leads to another run; one after a failure waits for the retry, or every sync would add an attempt.
    """

    def __init__(
        self, background: Background, work: Callable[[], T], must_retry: Callable[[T], bool]
    ) -> None:
        """`must_retry` is called in the event loop with the result of each run."""
        self._background, self._work, self._must_retry = background, work, must_retry
        self._is_running = self._is_requested = self._is_backing_off = False

    def request(self) -> None:
        """Run soon."""
        if self._is_running:
            self._is_requested = True
        elif not self._is_backing_off:
            self._is_running, self._is_requested = True, False
            self._background.run(self._work, self._on_ended)

    def _on_ended(self, result: T) -> None:
        self._is_running = False
        if self._must_retry(result):
            self._is_backing_off = True
            self._background.call_later(self._retry)
        elif self._is_requested:
            self.request()

    def _retry(self) -> None:
        self._is_backing_off = False
        self.request()


class FlowCleanup(SyncListener):
    """Deletes stale flows after every sync that may have left some."""

    def __init__(self, cleaners: Mapping[Family, StaleFlowCleaner], background: Background) -> None:
        self._cleaners = cleaners
        self._background = background
        self._jobs = {
            family: BackgroundJob(background, cleaner.run, partial(self._on_cleaned, family))
            for family, cleaner in cleaners.items()
        }
        self._problems: dict[Family, str] = {}
        self._second_checks: set[Family] = set()

    def on_synced(self, outcome: SyncOutcome) -> None:
        cleaner = self._cleaners[outcome.family]
        noted = cleaner.add(outcome.changes, outcome.context)
        if outcome.report.full:
            noted = cleaner.add_everything()
        if noted:
            self._jobs[outcome.family].request()

    def on_addresses_changed(self, family: Family, addresses: tuple[bytes, ...]) -> None:
        if self._cleaners[family].set_addresses(addresses):
            self._jobs[family].request()

    def check_everything(self) -> None:
        """Check all flows: rules of another program may have decided about packets up to now."""
        for family, cleaner in self._cleaners.items():
            if cleaner.add_everything():
                self._jobs[family].request()

    def _on_cleaned(self, family: Family, report: CleanReport) -> bool:
        """Return whether to retry; otherwise continue with what was noted meanwhile, or check a second time later."""
        self._problems[family] = report.problem
        cleaner = self._cleaners[family]
        if report.unfinished:
            return True
        if cleaner.waiting:
            self._jobs[family].request()
        elif cleaner.has_second_checks and family not in self._second_checks:
            self._second_checks.add(family)
            self._background.call_later(partial(self._check_again, family), cleaner.second_check_delay)
        elif report.checked >= _MANY_SERVICE_PORTS:
            self._background.run(trim_heap, lambda _: None)
        return False

    def _check_again(self, family: Family) -> None:
        self._second_checks.discard(family)
        self._jobs[family].request()

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
        self._on_change = on_change
        self._jobs = [
            BackgroundJob(background, partial(_run_job, name, work), self._on_ended)
            for name, work in jobs.items()
        ]

    def on_synced(self, outcome: SyncOutcome) -> None:
        if self._unsynced:
            self._unsynced.discard(outcome.family)
            self.rerun()

    def rerun(self) -> None:
        """Run all jobs again: another proxy has ended, which may have rewritten its rules. Does nothing before the first sync."""
        if not self._unsynced:
            for job in self._jobs:
                job.request()

    def _on_ended(self, result: CleanupResult) -> bool:
        if result is not CleanupResult.NOTHING:
            self._on_change()
        return result is CleanupResult.UNFINISHED


def _run_job(name: str, work: Callable[[], CleanupResult]) -> CleanupResult:
    try:
        return work()
    except Exception as error:  # noqa: BLE001 leftovers are no reason to stop
        _log.error("Cleanup failed, retrying", job=name, err=error)
        return CleanupResult.UNFINISHED
