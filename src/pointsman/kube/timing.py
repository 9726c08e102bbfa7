"""How long a list-watch waits, for what, and by which clock."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass

from pointsman.errors import KubeError, Throttled, Unauthorized
from pointsman.kube.ratelimit import Clock, Sleep, Uniform, server_backoff

_STABLE_AFTER_SECONDS = 5.0
_CALM_AFTER_SECONDS = 120.0
_REFUSED_SECONDS = (5.0, 10.0)
_HIDDEN_RECHECK_SECONDS = (30.0, 60.0)
_ABSENT_RECHECK_SECONDS = (600.0, 900.0)
_WATCH_LASTS_SECONDS = (300.0, 600.0)


@dataclass(frozen=True, slots=True)
class Timing:
    """The clock and the periods; tests bring their own."""

    clock: Clock = time.monotonic
    sleep: Sleep = asyncio.sleep
    uniform: Uniform = random.uniform
    answer: float = 30.0
    """For the first sign of a watch: a server sends the headers at once, however quiet the watch is afterwards."""
    idle: float = 180.0
    """Without a complete event in a watch; servers send a bookmark about once a minute."""
    initial: float = 30.0
    """Without data among initial events, which a server sends as fast as it can."""

    def watch_seconds(self) -> int:
        """Seconds after which the server is asked to end a watch; not the same on all nodes."""
        return int(self.uniform(*_WATCH_LASTS_SECONDS))


class Retries:
    """When to ask again: soon after a single failure, ever later while it goes on failing.

    As kube-proxy does, two things are paced apart. Resuming a watch is cheap, so a watch that had worked for a few
    seconds starts with short pauses again. A list is expensive, so only calm, minutes without another list, does the
    same for lists: a server that keeps forgetting where we stood is not asked for a list each time at once.
    """

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._watches = server_backoff(timing.uniform)
        self._lists = server_backoff(timing.uniform)
        self._opened_at: float | None = None
        self._listed_at: float | None = None

    def listed(self) -> None:
        self._listed_at = self._timing.clock()

    def opened(self) -> None:
        self._opened_at = self._timing.clock()

    def ended(self) -> None:
        """A watch ended as watches do."""
        self._opened_at = None
        self._watches.reset()

    def pause(self, error: KubeError, *, list_due: bool) -> float:
        """Seconds to wait after a failure."""
        now = self._timing.clock()
        opened_at, self._opened_at = self._opened_at, None
        if opened_at is not None and now - opened_at >= _STABLE_AFTER_SECONDS:
            self._watches.reset()
        if self._listed_at is not None and now - self._listed_at >= _CALM_AFTER_SECONDS:
            self._lists.reset()
        pause = (self._lists if list_due else self._watches).pause()
        if isinstance(error, Throttled):
            return max(pause, error.retry_after)
        if isinstance(error, Unauthorized):
            # The server is well and only a role or a token is missing; once that is restored, seconds count.
            return min(pause, self._timing.uniform(*_REFUSED_SECONDS))
        return pause

    def recheck(self, error: KubeError) -> float:
        """Seconds until an optional kind is looked for again: a hidden one may be shown any time, a missing one rarely comes."""
        hidden = isinstance(error, Unauthorized)
        return self._timing.uniform(*(_HIDDEN_RECHECK_SECONDS if hidden else _ABSENT_RECHECK_SECONDS))
