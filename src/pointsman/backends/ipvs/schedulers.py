"""The scheduler of a Service: the configured one, or the one its annotation requests where the kernel has it. Pure.

Whether the kernel has a scheduler is probed before anything is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from pointsman.model.balancing import IPVS_SCHEDULERS, Scheduler
from pointsman.model.plan import ServicePlan

MAGLEV = "mh"

_CLOSEST = {
    Scheduler.RANDOM: "rr",
    Scheduler.WEIGHTED: "wrr",
    Scheduler.LEAST_CONNECTIONS: "lc",
    Scheduler.SOURCE_HASH: MAGLEV,
    Scheduler.SOURCE_PORT_HASH: MAGLEV,
}
"""The IPVS scheduler that comes closest to each of ours."""


class Choice(NamedTuple):
    """An IPVS scheduler."""

    name: str
    by_port: bool = True
    """With `mh`: the client's port is part of the hash."""


def _find_request(plan: ServicePlan) -> Choice | None:
    """Return what a service port requests: the annotation for this mode has precedence over the one for all modes."""
    settings, balancing = plan.port.service, plan.balancing
    if settings.ipvs_scheduler:
        return Choice(settings.ipvs_scheduler)
    word, scheduler = settings.balancing.requested_name, settings.balancing.scheduler
    if scheduler is None and balancing is not None and balancing.scheduler is Scheduler.WEIGHTED:
        scheduler = Scheduler.WEIGHTED
    if scheduler is None or word in IPVS_SCHEDULERS:
        return Choice(word) if word else None
    name = _CLOSEST[scheduler]
    if scheduler is Scheduler.LEAST_CONNECTIONS and balancing is not None and balancing.weights:
        name = "wlc"
    return Choice(name, by_port=scheduler is not Scheduler.SOURCE_HASH)


class Schedulers(msgspec.Struct, frozen=True):
    """The schedulers of a kernel; those that were not probed are taken to exist."""

    default: str
    """Of Services that request none, and instead of missing ones."""
    probed: Mapping[str, bool] = {}
    """Whether the kernel has them."""

    def probe(self, plans: Iterable[ServicePlan], has_scheduler: Callable[[str], bool]) -> Schedulers:
        """Return the same with everything that plans request; `has_scheduler` asks the kernel, once for each name."""
        requests = (_find_request(plan) for plan in plans)
        requested = {request.name for request in requests if request is not None}
        new = requested - self.probed.keys() - {self.default}
        return Schedulers(self.default, {**self.probed, **{name: has_scheduler(name) for name in new}})

    def choose(self, plan: ServicePlan) -> Choice:
        """Return the requested scheduler, or the default one where the kernel lacks it."""
        request = _find_request(plan) or Choice(self.default)
        if self.probed.get(request.name, True):
            return request
        return Choice(self.default, request.by_port)

    @property
    def missing(self) -> list[str]:
        """Requested schedulers that the kernel lacks, sorted."""
        return sorted(name for name, found in self.probed.items() if not found)
