"""What follows a successful sync, off the sync path: stale flows, and leftovers of other modes.

Leftovers go only after every family of the new mode has synced once, so that a switch leaves no gap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec

from pointsman.backends.contract import Fate, Removed
from pointsman.model.addresses import Family
from pointsman.node.footprint import settle
from pointsman.obs.log import get_log
from pointsman.obs.registry import Metrics
from pointsman.sync.reconcile import SyncOutcome
from pointsman.sync.stale import CleanReport, StaleFlowCleaner

T = TypeVar("T")

RETRY_SECONDS = 10.0

_log = get_log(__name__)


class Aftercare:
    """Hears of every successful sync and works on threads of its own: flows do not wait for leftovers."""

    def __init__(
        self,
        families: Collection[Family],
        metrics: Metrics,
        remove_leftovers: Callable[[], list[Removed]],
    ) -> None:
        self._cleaners = {family: StaleFlowCleaner(family, metrics) for family in families}
        self._unsynced = set(families)
        self._remove_leftovers = remove_leftovers
        self._thread = ThreadPoolExecutor(max_workers=2, thread_name_prefix="aftercare")
        self._busy: set[Family] = set()
        self._closed = False

    def synced(self, family: Family, outcome: SyncOutcome, addresses: tuple[bytes, ...] = ()) -> None:
        """`addresses` are the node's own: where node ports answer everywhere, flows to any of them count."""
        if self._closed:
            return
        if self._unsynced:
            self._unsynced.discard(family)
            if not self._unsynced:
                self._thread.submit(settle)
                self._submit(self._clean_up, self._cleaned_up)
        cleaner = self._cleaners[family]
        context = msgspec.structs.replace(outcome.context, local_addresses=addresses)
        if cleaner.add(outcome.changes, context, everything=outcome.report.full):
            self._schedule(family)

    async def close(self) -> None:
        """Wait for what is under way, without blocking the event loop; nothing new is begun."""
        self._closed = True
        await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)

    def _schedule(self, family: Family) -> None:
        if family not in self._busy and not self._closed:
            self._busy.add(family)
            self._submit(self._cleaners[family].run, lambda report: self._finished(family, report))

    def _finished(self, family: Family, report: CleanReport) -> None:
        """What came meanwhile is done at once; what failed waits a little."""
        self._busy.discard(family)
        if self._cleaners[family].waiting:
            if report.problem:
                self._later(lambda: self._schedule(family))
            else:
                self._schedule(family)

    def _clean_up(self) -> bool:
        try:
            done = self._remove_leftovers()
        except Exception as error:  # noqa: BLE001 leftovers are untidy, never a reason to stop
            _log.exception("Leftovers of other proxy modes could not be looked for", err=error)
            return False
        for one in done:
            what = f"{one.count or one.name} {one.kind}"
            if one.fate is Fate.FAILED:
                _log.error(
                    "A leftover of another proxy mode stays for now", what=what, where=one.where, err=one.why
                )
            else:
                _log.info("Leftover of another proxy mode", fate=one.fate.value, what=what, where=one.where)
        return all(one.fate is not Fate.FAILED for one in done)

    def _cleaned_up(self, removed: bool) -> None:
        if not removed:
            self._later(lambda: self._submit(self._clean_up, self._cleaned_up))

    def _submit(self, work: Callable[[], T], then: Callable[[T], None]) -> None:
        """Run on the thread, then go on in the event loop, unless the end came first."""
        if self._closed:
            return

        def finished(future: asyncio.Future[T]) -> None:
            if not future.cancelled() and not self._closed:
                then(future.result())

        asyncio.get_running_loop().run_in_executor(self._thread, work).add_done_callback(finished)

    def _later(self, work: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(RETRY_SECONDS, work)
