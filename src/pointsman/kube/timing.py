"""Rates, back-off and timeouts of the API client, and its clock."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pointsman.errors import KubeError, Throttled, Unauthorized
from pointsman.waiting import Backoff, TokenBucket

Clock = Callable[[], float]
Sleep = Callable[[float], Awaitable[None]]
Uniform = Callable[[float, float], float]

FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.8, 30.0
_WATCH_STABLE_AFTER_SECONDS = 5.0
_LISTS_CALM_AFTER_SECONDS = 120.0
_UNAUTHORIZED_PAUSE_SECONDS = (5.0, 10.0)
_FORBIDDEN_RECHECK_SECONDS = (30.0, 60.0)
_ABSENT_RECHECK_SECONDS = (600.0, 900.0)
_WATCH_SECONDS = (300.0, 600.0)


@dataclass(frozen=True, slots=True)
class Timing:
    """The clock and the timeouts; tests bring their own."""

    clock: Clock = time.monotonic
    sleep: Sleep = asyncio.sleep
    uniform: Uniform = random.uniform
    headers: float = 30.0
    """For the headers of a watch: a server sends them at once, however quiet the watch is afterwards."""
    idle: float = 180.0
    """Without a complete event in a watch; servers send a bookmark about once a minute."""
    initial: float = 30.0
    """Without data among initial events, which a server sends as fast as it can."""

    def watch_seconds(self) -> int:
        """Return the seconds after which the server shall end a watch, different on each node."""
        return int(self.uniform(*_WATCH_SECONDS))


class Retries:
    """Back-off of lists and watches, paced apart as by kube-proxy.

    Resuming a watch is cheap: one that worked for a few seconds resets its back-off. A list is expensive: only minutes
    without another list reset its back-off, so that a server whose resourceVersions expire at once is not overloaded.
    """

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._watches = make_server_backoff(timing.uniform)
        self._lists = make_server_backoff(timing.uniform)
        self._opened_at: float | None = None
        self._listed_at: float | None = None

    def note_list(self) -> None:
        self._listed_at = self._timing.clock()

    def note_open(self) -> None:
        self._opened_at = self._timing.clock()

    def note_end(self) -> None:
        """Note that a watch ended normally."""
        self._opened_at = None
        self._watches.reset()

    def pause(self, error: KubeError, *, list_due: bool) -> float:
        """Return the seconds to wait after a failure."""
        now = self._timing.clock()
        opened_at, self._opened_at = self._opened_at, None
        if opened_at is not None and now - opened_at >= _WATCH_STABLE_AFTER_SECONDS:
            self._watches.reset()
        if self._listed_at is not None and now - self._listed_at >= _LISTS_CALM_AFTER_SECONDS:
            self._lists.reset()
        pause = (self._lists if list_due else self._watches).pause()
        if isinstance(error, Throttled):
            return max(pause, error.retry_after)
        if isinstance(error, Unauthorized):
            # The server works and only a role or a token is missing: recover within seconds of its return.
            return min(pause, self._timing.uniform(*_UNAUTHORIZED_PAUSE_SECONDS))
        return pause

    def recheck(self, error: KubeError) -> float:
        """Return the seconds until an absent kind is requested again: sooner for a forbidden one than for a missing one."""
        is_forbidden = isinstance(error, Unauthorized)
        return self._timing.uniform(
            *(_FORBIDDEN_RECHECK_SECONDS if is_forbidden else _ABSENT_RECHECK_SECONDS)
        )


class RateLimit:
    """Allows `burst` requests at once and `rate` per second on average; a rate of 0 or less means no limit."""

    def __init__(
        self, rate: float, burst: int, *, clock: Clock = time.monotonic, sleep: Sleep = asyncio.sleep
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._bucket = TokenBucket(rate, burst, clock())

    def try_take(self) -> bool:
        """Take a token if there is one."""
        now = self._clock()
        if self._bucket.wait(now):
            return False
        self._bucket.take(now)
        return True

    async def take(self) -> None:
        """Wait for a token, in order of the calls."""
        pause = self._bucket.reserve(self._clock())
        if pause:
            await self._sleep(pause)


def make_server_backoff(uniform: Uniform = random.uniform) -> Backoff:
    """Return kube-proxy's back-off for a failing API server: 0.8 s to 30 s, each up to twice as long by jitter."""
    return Backoff(FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS, jitter=lambda: uniform(1.0, 2.0))
