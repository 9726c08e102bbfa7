"""When to sync: bursts of two, then at most one per minSyncPeriod, a retry after failure, a full one hourly.

Pure decisions over a clock value, so that the loop around it can be tested in virtual time.
"""

from __future__ import annotations

import math

import msgspec

from pointsman.waiting import Backoff, TokenBucket

FULL_SYNC_PERIOD = 3600.0
BURST = 2
FIRST_RETRY = 1.0
PATIENCE = 3
"""How often in a row our rules are restored at once although another proxy rewrites them."""
FIRST_RETREAT = 2.0


class Pace(msgspec.Struct, frozen=True):
    """The periods of the chosen mode, in seconds."""

    min_period: float
    sync_period: float
    drift_period: float = math.inf
    """How often to look whether someone else changed our rules."""
    full_period: float = FULL_SYNC_PERIOD


class Pacer:
    """A token bucket of `BURST` tokens refilled one per min_period, and the dates of retry and full sync."""

    def __init__(self, pace: Pace, now: float) -> None:
        self._bucket = TokenBucket(0.0, BURST, now)
        self._retries = Backoff(FIRST_RETRY, FIRST_RETRY)
        self._retreats = Backoff(FIRST_RETREAT, FIRST_RETREAT)
        self._rewrites = 0
        self._held_until = -math.inf
        self.pace = pace
        self._full_due = math.inf
        self._retry_due: float | None = None

    @property
    def pace(self) -> Pace:
        """The periods; new ones count from now on."""
        return self._pace

    @pace.setter
    def pace(self, pace: Pace) -> None:
        self._pace = pace
        self._bucket.rate = 1.0 / pace.min_period if pace.min_period > 0 else 0.0
        self._retries.cap = max(pace.sync_period, FIRST_RETRY)
        self._retreats.cap = max(pace.sync_period, FIRST_RETREAT)

    def delay(self, now: float) -> float:
        """Seconds until a requested sync may run; 0 when now."""
        return max(self._bucket.wait(now), self._held_until - now)

    def started(self, now: float) -> None:
        self._bucket.take(now)

    def succeeded(self, now: float, *, full: bool) -> None:
        self._retry_due = None
        self._retries.reset()
        if full:
            self._full_due = now + self.pace.full_period

    def failed(self, now: float) -> float:
        """Note a failure; returns the seconds until the retry, doubling up to sync_period."""
        wait = self._retries.pause()
        self._retry_due = now + wait
        return wait

    def rewritten(self, now: float) -> float:
        """Another proxy put its rules where ours were; returns the seconds to leave it alone.

        None the first times: it may have been stopped just now. Then doubling up to sync_period, because its rules serve
        meanwhile and nobody wins.
        """
        self._rewrites += 1
        wait = self._retreats.pause() if self._rewrites > PATIENCE else 0.0
        self._held_until = now + wait
        return wait

    def peace(self, now: float) -> bool:
        """Whether another proxy rewrote our rules and has left them alone for two sync periods; says so once."""
        if not self._rewrites or now < self._held_until + 2 * self._retreats.cap:
            return False
        self._rewrites = 0
        self._retreats.reset()
        return True

    def next_due(self) -> float:
        """When a sync must run unasked: the retry (a full sync itself), or the periodic full one.

        Never before the first sync: until all objects are listed, a full sync would take every rule away.
        """
        return self._full_due if self._retry_due is None else self._retry_due

    def full_due(self, now: float) -> bool:
        return now >= self._full_due
