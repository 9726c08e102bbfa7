"""Time of the next sync: bursts of two, then one per pause, retries with back-off, a full sync per hour.

The pause is minSyncPeriod or, where that is not set, follows from what the last sync cost: cheap syncs follow each other within
milliseconds, expensive ones once per second. The cost is the CPU time of the event loop, of the worker thread and of the programs of
iptables mode. It includes the kernel's work, our own bookkeeping and the decoding of further changes of a burst. It does not grow, as
the duration would, where other processes of the node or background checks of this one take CPU time.

Pure functions of a clock value, so that the loop around them can be tested in virtual time.
"""

from __future__ import annotations

import math

import msgspec

from pointsman.waiting import Backoff

FULL_SYNC_INTERVAL_SECONDS = 3600.0
COST_FACTOR = 25
"""A pause by cost is that many times the CPU time of the last sync: syncs take at most about 4 % of a core."""
MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.005, 1.0
"""Of a pause by cost."""
FIRST_RETRY_SECONDS = 1.0
MAX_IMMEDIATE_RESTORES = 3
"""How often in a row our rules are restored at once in a conflict with another proxy."""
FIRST_CONFLICT_DELAY_SECONDS = 2.0


class Pace(msgspec.Struct, frozen=True):
    """Periods of the proxy mode, in seconds."""

    min_period: float
    """0 for a pause by cost."""
    sync_period: float
    drift_period: float = math.inf
    """Interval of drift checks."""
    full_period: float = FULL_SYNC_INTERVAL_SECONDS


class Pacer:
    """The pause between syncs, and the times of the next retry and full sync."""

    def __init__(self, pace: Pace) -> None:
        self._retries = Backoff(FIRST_RETRY_SECONDS, FIRST_RETRY_SECONDS)
        self._conflict_delays = Backoff(FIRST_CONFLICT_DELAY_SECONDS, FIRST_CONFLICT_DELAY_SECONDS)
        self._rewrites = 0
        self._conflict_until = -math.inf
        self.pace = pace
        self._cost = 0.0
        """CPU seconds of the last sync."""
        self._full_due = math.inf
        self._retry_due: float | None = None

    @property
    def pace(self) -> Pace:
        """The current periods; they can be replaced at any time."""
        return self._pace

    @pace.setter
    def pace(self, pace: Pace) -> None:
        self._pace = pace
        self._paid_until = -math.inf
        """When the pauses of all syncs so far are over."""
        self._retries.cap = max(pace.sync_period, FIRST_RETRY_SECONDS)
        self._conflict_delays.cap = max(pace.sync_period, FIRST_CONFLICT_DELAY_SECONDS)

    @property
    def pause(self) -> float:
        """Seconds from one sync to the next while changes arrive continuously."""
        by_cost = min(max(COST_FACTOR * self._cost, MIN_PAUSE_SECONDS), MAX_PAUSE_SECONDS)
        return self.pace.min_period or by_cost

    def compute_delay(self, now: float, *, continues: bool = False) -> float:
        """Return the seconds until a requested sync may run, or one that `continues` the last; 0 for now.

        A sync may run one pause early, so that two may follow each other after a time without changes.
        """
        delay = 0.0 if continues else self._paid_until - self.pause - now
        return max(delay, self._conflict_until - now, 0.0)

    def record_sync(self, started: float, cost: float) -> None:
        """Record a sync, successful or not, with its CPU seconds."""
        self._cost = cost
        self._paid_until = max(self._paid_until, started) + self.pause

    def record_success(self, now: float, *, full: bool) -> None:
        self._retry_due = None
        self._retries.reset()
        if full:
            self._full_due = now + self.pace.full_period

    def record_failure(self, now: float) -> float:
        """Record a failed sync; return the seconds until the retry, doubling up to sync_period."""
        wait = self._retries.pause()
        self._retry_due = now + wait
        return wait

    def record_rewrite(self, now: float) -> float:
        """Record that another proxy replaced our rules; return the seconds until they may be restored.

        0 the first times: the other proxy may have been stopped meanwhile. Then doubling up to sync_period, because its
        rules serve meanwhile and neither side can win.
        """
        self._rewrites += 1
        wait = self._conflict_delays.pause() if self._rewrites > MAX_IMMEDIATE_RESTORES else 0.0
        self._conflict_until = now + wait
        return wait

    def end_conflict(self, now: float) -> bool:
        """Return True, once per conflict, when our rules have not been replaced for two sync periods."""
        if not self._rewrites or now < self._conflict_until + 2 * self._conflict_delays.cap:
            return False
        self._rewrites = 0
        self._conflict_delays.reset()
        return True

    def compute_next_due(self) -> float:
        """Return when a sync must run without a request: the retry, which is a full sync, or the periodic full sync.

        Never before the first sync: until all objects are listed, a full sync would remove every rule.
        """
        return self._full_due if self._retry_due is None else self._retry_due

    def is_full_due(self, now: float) -> bool:
        return now >= self._full_due
