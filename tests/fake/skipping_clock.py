"""A clock that moves only in its own sleep(): back-off of minutes tested without waiting."""

from __future__ import annotations

import asyncio


class SkippingClock:
    """Provides `clock` and `sleep`; a sleep is recorded and over at once, with the clock moved on."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self.pauses: list[float] = []

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)
