"""Which scheduler a Service gets: the configured one, or the one its annotation asks for where that can be had.

A bad annotation is ignored: its Service is balanced by the default scheduler, and a note says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from pointsman.model.balancing import IPVS_SCHEDULERS, SCHEDULER_ANNOTATION, Scheduler
from pointsman.model.plan import ServicePlan
from pointsman.model.service import IPVS_SCHEDULER_ANNOTATION

KNOWN = frozenset(IPVS_SCHEDULERS)
MAGLEV = "mh"

_OURS = {
    Scheduler.RANDOM: "rr",
    Scheduler.WEIGHTED: "wrr",
    Scheduler.LEAST_CONNECTIONS: "lc",
    Scheduler.SOURCE_HASH: MAGLEV,
    Scheduler.SOURCE_PORT_HASH: MAGLEV,
}
"""What comes closest to our own words."""


class Choice(NamedTuple):
    """A scheduler, and why it is not the one that was asked for."""

    name: str
    problem: str = ""
    by_port: bool = True
    """With `mh`: the client's port goes into the hash, too."""


class Schedulers:
    """Remembers what the kernel has; `available` asks it, unless it is trusted to have all."""

    def __init__(
        self,
        default: str,
        available: Callable[[str], bool] = KNOWN.__contains__,
        known: Mapping[str, bool] = MappingProxyType({}),
    ) -> None:
        """`known` is what somebody else has asked before."""
        self.default = default
        self._available = available
        self._known = {default: True, **known}

    @property
    def known(self) -> dict[str, bool]:
        """What was asked so far, as a copy."""
        return dict(self._known)

    def choice_for(self, plan: ServicePlan) -> Choice:
        """The scheduler of a service port: the annotation for this mode decides, then the one for all modes."""
        port, balance = plan.port, plan.balancing
        if port.service.ipvs_scheduler:
            return self.choice(port.service.ipvs_scheduler, IPVS_SCHEDULER_ANNOTATION)
        word, asked = port.service.balancing.word, port.service.balancing.scheduler
        if asked is None and balance is not None and balance.scheduler is Scheduler.WEIGHTED:
            asked = Scheduler.WEIGHTED
        if asked is None or word in KNOWN:
            return self.choice(word, SCHEDULER_ANNOTATION)
        wish = _OURS[asked]
        if asked is Scheduler.LEAST_CONNECTIONS and balance is not None and balance.weights:
            wish = "wlc"
        return self.choice(wish, SCHEDULER_ANNOTATION)._replace(by_port=asked is not Scheduler.SOURCE_HASH)

    def choice(self, wish: str, annotation: str) -> Choice:
        """The scheduler for a Service whose annotation has this IPVS word; empty means it has none."""
        if not wish:
            return Choice(self.default)
        if wish not in KNOWN:
            known = ", ".join(sorted(KNOWN))
            return self._refuse(annotation, f"{wish!r} is no IPVS scheduler (known are {known})")
        if wish not in self._known:
            self._known[wish] = self._available(wish)
        if not self._known[wish]:
            return self._refuse(annotation, f"this kernel lacks scheduler {wish} (module ip_vs_{wish})")
        return Choice(wish)

    def _refuse(self, annotation: str, why: str) -> Choice:
        return Choice(self.default, f"annotation {annotation}: {why}; using {self.default}")
