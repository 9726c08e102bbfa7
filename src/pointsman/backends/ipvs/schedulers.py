"""Which scheduler a Service gets: the configured one, or the one its annotation asks for where that can be had.

A bad annotation is ignored: its Service is balanced by the default scheduler, and a note says why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pointsman.model.service import IPVS_SCHEDULER_ANNOTATION

KNOWN = frozenset(
    ("rr", "wrr", "lc", "wlc", "fo", "ovf", "lblc", "lblcr", "dh", "sh", "mh", "sed", "nq", "twos")
)


class Choice(NamedTuple):
    """A scheduler, and why it is not the one that was asked for."""

    name: str
    problem: str = ""


class Schedulers:
    """Remembers what the kernel has; `available` asks it, unless it is trusted to have all."""

    def __init__(self, default: str, available: Callable[[str], bool] = KNOWN.__contains__) -> None:
        self.default = default
        self._available = available
        self._known = {default: True}

    def choice(self, wish: str) -> Choice:
        """The scheduler for a Service with this annotation; empty means it has none."""
        if not wish:
            return Choice(self.default)
        if wish not in KNOWN:
            known = ", ".join(sorted(KNOWN))
            return self._refuse(f"{wish!r} is no IPVS scheduler (known are {known})")
        if wish not in self._known:
            self._known[wish] = self._available(wish)
        if not self._known[wish]:
            return self._refuse(f"this kernel lacks scheduler {wish} (module ip_vs_{wish})")
        return Choice(wish)

    def _refuse(self, why: str) -> Choice:
        return Choice(self.default, f"annotation {IPVS_SCHEDULER_ANNOTATION}: {why}; using {self.default}")
