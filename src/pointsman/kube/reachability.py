"""Whether the API server answers at all: one state for all requests, one log line per change.

Before the first answer, silence is reported after seconds, long before a connection attempt is given up: a proxy that
cannot find its API server is the first thing a new cluster shows, and whoever set it up is looking at the log just then.
"""

from __future__ import annotations

import asyncio

from pointsman.kube.access import Access
from pointsman.obs.log import get_log

PATIENCE_SECONDS = 3.0

_log = get_log(__name__)


class Reachability:
    """What the requests of one transport have come to."""

    def __init__(self, access: Access, patience: float = PATIENCE_SECONDS) -> None:
        self._access = access
        self._patience = patience
        self._reason = ""
        self._answers = False
        self._answered_once = False
        self._late: asyncio.TimerHandle | None = None

    @property
    def trouble(self) -> str:
        """The address tried, what happened and what to do; empty while the server answers."""
        if not self._reason:
            return ""
        happened = f"the API server cannot be reached at {self._access.server}: {self._reason}"
        return f"{happened}; {self._advice}" if self._advice else happened

    @property
    def _advice(self) -> str:
        """An address that worked before is the right one."""
        return "" if self._answered_once else self._access.advice

    def asked(self) -> None:
        """A request is on its way."""
        if not self._answers and self._late is None:
            loop = asyncio.get_running_loop()
            self._late = loop.call_later(self._patience, self._silent)

    def answered(self) -> None:
        """Whatever the answer was."""
        self.close()
        self._answers = self._answered_once = True
        if self._reason:
            self._reason = ""
            _log.info("The API server can be reached", server=self._access.server)

    def failed(self, reason: str) -> None:
        """No answer came."""
        self.close()
        self._answers = False
        self._unreachable(reason)

    def close(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _silent(self) -> None:
        self._unreachable(f"no answer for {self._patience:.0f} s")

    def _unreachable(self, reason: str) -> None:
        if not self._reason:
            server, advice = self._access.server, self._advice or None
            _log.error("The API server cannot be reached", server=server, err=reason, advice=advice)
        self._reason = reason
