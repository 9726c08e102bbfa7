"""What follows a successful sync, off the sync path: stale flows, and leftovers of other modes.

Leftovers go only after every family of the new mode has synced once, so that a switch leaves no gap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor

from pointsman.kernel.memory import settle
from pointsman.model.addresses import Family
from pointsman.obs.log import get_log
from pointsman.obs.registry import Metrics
from pointsman.sync.reconcile import SyncOutcome
from pointsman.sync.stale import StaleFlowCleaner

RETRY_SECONDS = 10.0

_log = get_log(__name__)


class Aftercare:
    """Hears of every successful sync and works on a thread of its own."""

    def __init__(
        self,
        families: Collection[Family],
        metrics: Metrics,
        remove_leftovers: Callable[[], list[str]],
    ) -> None:
        self._cleaners = {family: StaleFlowCleaner(family, metrics) for family in families}
        self._unsynced = set(families)
        self._remove_leftovers = remove_leftovers
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="aftercare")
        self._busy: set[Family] = set()

    def synced(self, family: Family, outcome: SyncOutcome) -> None:
        if self._unsynced:
            self._unsynced.discard(family)
            if not self._unsynced:
                self._thread.submit(self._clean_up)
        cleaner = self._cleaners[family]
        if cleaner.add(outcome.changes, outcome.context):
            self._schedule(family)

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)

    def _schedule(self, family: Family) -> None:
        if family in self._busy:
            return
        self._busy.add(family)
        loop = asyncio.get_running_loop()
        done = loop.run_in_executor(self._thread, self._cleaners[family].run)
        done.add_done_callback(lambda _: self._finished(loop, family))

    def _finished(self, loop: asyncio.AbstractEventLoop, family: Family) -> None:
        self._busy.discard(family)
        if self._cleaners[family].waiting and not loop.is_closed():
            loop.call_later(RETRY_SECONDS, self._schedule, family)

    def _clean_up(self) -> None:
        settle()
        try:
            for removed in self._remove_leftovers():
                _log.info("Removed what another proxy mode had left", what=removed)
        except Exception as error:  # noqa: BLE001 leftovers are untidy, never a reason to stop
            _log.error("Leftovers of other proxy modes could not be removed", err=error)
