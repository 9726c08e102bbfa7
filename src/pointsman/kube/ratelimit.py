"""Waiting: the client-side request rate (qps and burst) and the pauses between failed attempts."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

Clock = Callable[[], float]
Sleep = Callable[[float], Awaitable[None]]


class TokenBucket:
    """Allows `burst` at once and `rate` per second on average; a rate of 0 or less means no limit."""

    def __init__(
        self, rate: float, burst: int, *, clock: Clock = time.monotonic, sleep: Sleep = asyncio.sleep
    ) -> None:
        self._rate = rate
        self._burst = max(1, burst)
        self._clock = clock
        self._sleep = sleep
        self._level = float(self._burst)
        self._updated = clock()

    def try_take(self) -> bool:
        """Takes one token if there is one."""
        self._refill()
        if self._rate > 0 and self._level < 1:
            return False
        self._level -= 1
        return True

    async def take(self) -> None:
        """Takes one token, in debt if need be, and waits until the debt is paid: first come, first served."""
        if self._rate <= 0:
            return
        self._refill()
        self._level -= 1
        if self._level < 0:
            await self._sleep(-self._level / self._rate)

    def _refill(self) -> None:
        now = self._clock()
        if self._rate > 0:
            self._level = min(self._burst, self._level + (now - self._updated) * self._rate)
        self._updated = now


class Backoff:
    """Pauses that double from `first` to `cap`, with jitter so that a thousand nodes do not return together."""

    def __init__(
        self,
        first: float = 0.8,
        cap: float = 30.0,
        factor: float = 2.0,
        *,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._first = first
        self._cap = cap
        self._factor = factor
        self._uniform = uniform
        self._next = first

    def pause(self) -> float:
        """Seconds to wait before the next attempt: between one and two times the current step, at most `cap`."""
        step = self._next
        self._next = min(self._cap, step * self._factor)
        return min(self._cap, step * self._uniform(1.0, 2.0))

    def reset(self) -> None:
        self._next = self._first
