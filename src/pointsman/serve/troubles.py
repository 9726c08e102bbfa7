"""What clients do to the served ports: counted each time, logged now and then, so that nobody can fill the log."""

from __future__ import annotations

import enum
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from pointsman.obs.log import get_log

LOG_SECONDS: Final = 60.0

_log = get_log(__name__)


class Trouble(enum.Enum):
    """A kind of trouble; the value is its metric label."""

    EVICTED = "evicted"
    REFUSED = "refused"
    MALFORMED = "malformed"
    ACCEPT_FAILED = "accept_failed"
    HANDLER_FAILED = "handler_failed"


_WORDS = {
    Trouble.EVICTED: "Too many connections to the served ports, or answers that nobody reads; closing some",
    Trouble.REFUSED: "Too many busy connections to the served ports; refusing more",
    Trouble.MALFORMED: "Malformed requests at the served ports",
    Trouble.ACCEPT_FAILED: "Cannot accept connections",
    Trouble.HANDLER_FAILED: "Internal error while answering a request",
}


class Troubles:
    """Those of all served ports."""

    def __init__(
        self,
        count: Callable[[Trouble], None] = lambda _trouble: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._count, self._clock = count, clock
        self._since_logged: Counter[Trouble] = Counter()
        self._logged: dict[Trouble, float] = {}

    def report(self, trouble: Trouble, error: BaseException | None = None, **details: object) -> None:
        """Count it, and log it with how often it came, unless its like was logged a moment ago."""
        self._count(trouble)
        self._since_logged[trouble] += 1
        now = self._clock()
        if now - self._logged.get(trouble, float("-inf")) < LOG_SECONDS:
            return
        self._logged[trouble] = now
        details = {"times": self._since_logged.pop(trouble), **details}
        if trouble is Trouble.HANDLER_FAILED and error is not None:
            _log.exception(_WORDS[trouble], err=error, **details)
        else:
            _log.warning(_WORDS[trouble], **({"err": error} if error is not None else {}), **details)
