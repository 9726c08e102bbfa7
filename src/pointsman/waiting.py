"""How long to wait: a token bucket and an exponential back-off. Pure decisions over clock values; nothing sleeps here."""

from __future__ import annotations

from collections.abc import Callable


def compute_pause(cpu_seconds: float, factor: float, shortest: float, longest: float) -> float:
    """Return the seconds until work that took this CPU time is done again: it uses at most one part in `factor` of a core."""
    return min(max(shortest, factor * cpu_seconds), longest)


class TokenBucket:
    """Grants `burst` tokens at once and `rate` per second on average; a rate of 0 or less means no limit."""

    def __init__(self, rate: float, burst: int, now: float) -> None:
        self.rate = rate
        self._burst = float(max(1, burst))
        self._level = self._burst
        self._filled_at = now

    def wait(self, now: float) -> float:
        """Return the seconds until the next token; 0 when there is one."""
        self._refill(now)
        return 0.0 if self.rate <= 0 or self._level >= 1.0 else (1.0 - self._level) / self.rate

    def take(self, now: float) -> None:
        """Take one token, or what is left of one."""
        self._refill(now)
        self._level = max(0.0, self._level - 1.0)

    def reserve(self, now: float) -> float:
        """Take one token, in debt if need be; return the seconds after which it is available."""
        wait = self.wait(now)
        self._level -= 1.0
        return wait

    def _refill(self, now: float) -> None:
        if self.rate <= 0:
            self._level = self._burst
        else:
            self._level = min(self._burst, self._level + max(0.0, now - self._filled_at) * self.rate)
        self._filled_at = now


class Backoff:
    """Exponential back-off from `first` to `cap` seconds; `jitter` is a factor, so that many nodes do not retry together."""

    def __init__(self, first: float, cap: float, *, jitter: Callable[[], float] = lambda: 1.0) -> None:
        self.cap = cap
        self._first = first
        self._jitter = jitter
        self._step = first

    def pause(self) -> float:
        """Return the seconds to wait before the next attempt."""
        pause = min(self.cap, self._step * self._jitter())
        self._step = min(self.cap, self._step * 2.0)
        return pause

    def reset(self) -> None:
        self._step = self._first
