"""Log lines in bounded measure, for what others can bring about a hundred thousand times."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from pointsman.waiting import TokenBucket

_LINES_AT_ONCE, _LINES_PER_SECOND = 20, 0.1


class LineBudget:
    """Of each subject some lines at once and then one now and then, which says how many it stands for."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: dict[str, TokenBucket] = {}
        self._unmentioned: Counter[str] = Counter()

    def line(self, subject: str) -> dict[str, object] | None:
        """Fields to add to the line that may be written now; None when it is to be left out, and is counted."""
        now = self._clock()
        bucket = self._buckets.setdefault(subject, TokenBucket(_LINES_PER_SECOND, _LINES_AT_ONCE, now))
        if bucket.wait(now):
            self._unmentioned[subject] += 1
            return None
        bucket.take(now)
        unmentioned = self._unmentioned.pop(subject, 0)
        return {"unmentioned": unmentioned} if unmentioned else {}
