"""Time of the next sync: bursts of two, then at most one per minSyncPeriod, retries with back-off, a full sync per hour.

Pure functions of a clock value, so that the loop around them can be tested in virtual time.
"""

from __future__ import annotations

import math

import msgspec

from pointsman.waiting import Backoff, TokenBucket

FULL_SYNC_INTERVAL_SECONDS = 3600.0
BURST = 2
FIRST_RETRY_SECONDS = 1.0
MAX_IMMEDIATE_RESTORES = 3
"""How often in a row our rules are restored at once in a conflict with another proxy."""
FIRST_CONFLICT_DELAY_SECONDS = 2.0


class Pace(msgspec.Struct, frozen=True):
    """Periods of the proxy mode, in seconds."""

    min_period: float
    sync_period: float
    drift_period: float = math.inf
    """Interval of drift checks."""
    full_period: float = FULL_SYNC_INTERVAL_SECONDS


class Pacer:
    """A token bucket of `BURST` tokens, refilled one per min_period, and the times of the next retry and full sync."""

    def __init__(self, pace: Pace, now: float) -> None:
        self._bucket = TokenBucket(0.0, BURST, now)
        self._retries = Backoff(FIRST_RETRY_SECONDS, FIRST_RETRY_SECONDS)
        self._conflict_delays = Backoff(FIRST_CONFLICT_DELAY_SECONDS, FIRST_CONFLICT_DELAY_SECONDS)
        self._rewrites = 0
        self._conflict_until = -math.inf
        self.pace = pace
        self._full_due = math.inf
        self._retry_due: float | None = None

    @property
    def pace(self) -> Pace:
        """The current periods; they can be replaced at any time."""
        return self._pace

    @pace.setter
    def pace(self, pace: Pace) -> None:
        self._pace = pace
        self._bucket.rate = 1.0 / pace.min_period if pace.min_period > 0 else 0.0
        self._retries.cap = max(pace.sync_period, FIRST_RETRY_SECONDS)
        self._conflict_delays.cap = max(pace.sync_period, FIRST_CONFLICT_DELAY_SECONDS)

    def compute_delay(self, now: float) -> float:
        """Return the seconds until a requested sync may run; 0 for now."""
        return max(self._bucket.wait(now), self._conflict_until - now)

    def record_start(self, now: float) -> None:
        self._bucket.take(now)

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
