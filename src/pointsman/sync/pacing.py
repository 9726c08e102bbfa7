"""When to sync: bursts of two, then at most one per minSyncPeriod, a retry after failure, a full one hourly.

Pure decisions over a clock value, so that the loop around it can be tested in virtual time.
"""

from __future__ import annotations

import msgspec

FULL_SYNC_PERIOD = 3600.0
BURST = 2
FIRST_RETRY = 1.0


class Pace(msgspec.Struct, frozen=True):
    """The periods of the chosen mode, in seconds."""

    min_period: float
    sync_period: float
    full_period: float = FULL_SYNC_PERIOD


class Pacer:
    """A token bucket with `BURST` tokens refilled one per min_period, and the dates of retry and full sync."""

    def __init__(self, pace: Pace, now: float) -> None:
        self.pace = pace
        self._tokens = float(BURST)
        self._filled_at = now
        self._full_due = now + pace.full_period
        self._retry_due: float | None = None
        self._failures = 0

    def delay(self, now: float) -> float:
        """Seconds until a requested sync may run; 0 when now."""
        self._refill(now)
        if self._tokens >= 1.0:
            return 0.0
        return (1.0 - self._tokens) * self.pace.min_period

    def started(self, now: float) -> None:
        self._refill(now)
        self._tokens = max(0.0, self._tokens - 1.0)

    def succeeded(self, now: float, *, full: bool) -> None:
        self._retry_due = None
        self._failures = 0
        if full:
            self._full_due = now + self.pace.full_period

    def failed(self, now: float) -> float:
        """Note a failure; returns the seconds until the retry, doubling up to sync_period."""
        wait = min(FIRST_RETRY * 2.0 ** min(self._failures, 16), max(self.pace.sync_period, FIRST_RETRY))
        self._failures += 1
        self._retry_due = now + wait
        return wait

    def next_due(self) -> float:
        """When a sync must run without anybody asking: the retry (a full sync itself), or the periodic full one."""
        return self._full_due if self._retry_due is None else self._retry_due

    def full_due(self, now: float) -> bool:
        return now >= self._full_due

    def _refill(self, now: float) -> None:
        if self.pace.min_period <= 0:
            self._tokens = float(BURST)
        else:
            gained = max(0.0, now - self._filled_at) / self.pace.min_period
            self._tokens = min(float(BURST), self._tokens + gained)
        self._filled_at = now
