"""The client-side request rate (qps and burst), and the pauses between attempts that failed."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

from pointsman.waiting import Backoff, TokenBucket

Clock = Callable[[], float]
Sleep = Callable[[float], Awaitable[None]]
Uniform = Callable[[float, float], float]

FIRST_PAUSE, LONGEST_PAUSE = 0.8, 30.0


class RateLimit:
    """Allows `burst` requests at once and `rate` per second on average; a rate of 0 or less means no limit."""

    def __init__(
        self, rate: float, burst: int, *, clock: Clock = time.monotonic, sleep: Sleep = asyncio.sleep
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._bucket = TokenBucket(rate, burst, clock())

    def try_take(self) -> bool:
        """Takes a token if there is one."""
        now = self._clock()
        if self._bucket.wait(now):
            return False
        self._bucket.take(now)
        return True

    async def take(self) -> None:
        """Waits for a token: first come, first served."""
        pause = self._bucket.reserve(self._clock())
        if pause:
            await self._sleep(pause)


def server_backoff(uniform: Uniform = random.uniform) -> Backoff:
    """kube-proxy's pauses before it asks a failing API server again: 0.8 s to 30 s, each stretched up to twofold."""
    return Backoff(FIRST_PAUSE, LONGEST_PAUSE, jitter=lambda: uniform(1.0, 2.0))
