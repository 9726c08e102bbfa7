"""What follows successful syncs, off their path: stale flows, and once every IP family has synced, tidying up.

Leftovers of other modes go only after every family of the new mode has synced once, so that a switch leaves no gap.
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
_MANY: Final = 1000
"""Service ports; a check of so many takes memory worth giving back."""

_log = get_log(__name__)


class Background:
    """Threads for what must not delay a sync: two, so that flows do not wait for leftovers."""

    def __init__(self, retry_seconds: float = RETRY_SECONDS) -> None:
        self._retry_seconds = retry_seconds
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="aftercare")
        self._closed = False

    @property
    def closed(self) -> bool:
        """The end has come: work that is under way should end soon."""
        return self._closed

    def run(self, work: Callable[[], T], then: Callable[[T], None]) -> None:
        """Run on a thread, then go on in the event loop, unless the end came first."""
        if self._closed:
            return

        def finished(future: asyncio.Future[T]) -> None:
            if not future.cancelled() and not self._closed:
                then(future.result())

        asyncio.get_running_loop().run_in_executor(self._threads, work).add_done_callback(finished)

    def later(self, work: Callable[[], None], seconds: float | None = None) -> None:
        """Call in the event loop after a pause, by default that before another attempt."""
        pause = self._retry_seconds if seconds is None else seconds
        asyncio.get_running_loop().call_later(pause, work)

    async def close(self) -> None:
        """Wait for what is under way, without blocking the event loop; nothing new is begun."""
        self._closed = True
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)


class FlowCare(SyncListener):
    """Has stale flows deleted after every sync that may have left some."""

    def __init__(self, cleaners: Mapping[Family, StaleFlowCleaner], background: Background) -> None:
        self._cleaners = cleaners
        self._background = background
        self._problems: dict[Family, str] = {}
        self._busy: set[Family] = set()
        self._resting: set[Family] = set()
        """Failed a moment ago: what comes meanwhile waits with the rest, or every sync would add an attempt."""
        self._to_look_again: set[Family] = set()

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
        """Other rules than ours may have decided about packets up to now."""
        for family, cleaner in self._cleaners.items():
            if cleaner.add_everything():
                self._clean(family)

    def _clean(self, family: Family) -> None:
        if family not in self._busy and family not in self._resting:
            self._busy.add(family)
            self._background.run(self._cleaners[family].run, lambda report: self._cleaned(family, report))

    def _cleaned(self, family: Family, report: CleanReport) -> None:
        """What came meanwhile is done at once; what failed waits a little."""
        self._busy.discard(family)
        self._problems[family] = report.problem
        cleaner = self._cleaners[family]
        if report.unfinished:
            self._resting.add(family)
            self._background.later(lambda: self._clean_after(self._resting, family))
        elif cleaner.waiting:
            self._clean(family)
        elif cleaner.has_second_checks and family not in self._to_look_again:
            self._to_look_again.add(family)
            self._background.later(
                lambda: self._clean_after(self._to_look_again, family), cleaner.second_check_delay
            )
        elif report.checked >= _MANY:
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


class Tidied(enum.Enum):
    """What a job of tidying up came to."""

    NOTHING = "there was nothing to do"
    CHANGED = "something that took part in handling packets is gone"
    UNFINISHED = "some of it is left; it may have changed something"


class TidyUp(SyncListener):
    """Does each job when every family has synced for the first time; one that fails is tried again."""

    def __init__(
        self,
        families: Iterable[Family],
        background: Background,
        jobs: Mapping[str, Callable[[], Tidied]],
        on_change: Callable[[], None],
    ) -> None:
        """`jobs` are named by what they do, for the log; `on_change` is called in the event loop."""
        self._unsynced = set(families)
        self._background = background
        self._jobs = jobs
        self._on_change = on_change
        self._under_way: set[str] = set()
        self._once_more: set[str] = set()
        self._waiting: set[str] = set()
        """For the next attempt."""

    def on_synced(self, outcome: SyncOutcome) -> None:
        if self._unsynced:
            self._unsynced.discard(outcome.family)
            self.again()

    def again(self) -> None:
        """Another proxy has gone, which may have written its rules anew since; before the first sync it is all to come."""
        if not self._unsynced:
            for name in self._jobs:
                self._begin(name)

    def _begin(self, name: str) -> None:
        """No job ever runs beside itself; what may have come too late for it is what the next run finds."""
        if name in self._under_way:
            self._once_more.add(name)
            return
        self._under_way.add(name)
        self._background.run(lambda: self._done(name), lambda tidied: self._ended(name, tidied))

    def _done(self, name: str) -> Tidied:
        try:
            return self._jobs[name]()
        except Exception as error:  # noqa: BLE001 an untidy node is no reason to stop
            _log.error("Cannot tidy up after the first sync yet; trying again", job=name, err=error)
            return Tidied.UNFINISHED

    def _ended(self, name: str, tidied: Tidied) -> None:
        if tidied is not Tidied.NOTHING:
            self._on_change()
        self._under_way.discard(name)
        if name in self._once_more:
            self._once_more.discard(name)
            self._begin(name)
        elif tidied is Tidied.UNFINISHED and name not in self._waiting:
            self._waiting.add(name)
            self._background.later(lambda: self._begin_after_waiting(name))

    def _begin_after_waiting(self, name: str) -> None:
        self._waiting.discard(name)
        self._begin(name)
