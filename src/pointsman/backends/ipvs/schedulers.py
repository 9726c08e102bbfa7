"""The scheduler of a Service: the configured one, or the one its annotation requests where the kernel has it. Pure.

A bad annotation is ignored: its Service gets the default scheduler, and a note says why. Whether the kernel has a scheduler is
found out before anything is compiled, for those that `requested_schedulers` names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from pointsman.model.balancing import IPVS_SCHEDULERS, SCHEDULER_ANNOTATION, Scheduler
from pointsman.model.plan import ServicePlan
from pointsman.model.service import IPVS_SCHEDULER_ANNOTATION

KNOWN = frozenset(IPVS_SCHEDULERS)
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
    """A scheduler, and why it is not the requested one."""

    name: str
    problem: str = ""
    by_port: bool = True
    """With `mh`: the client's port is part of the hash."""


class _Request(NamedTuple):
    name: str
    annotation: str
    by_port: bool = True


def requested_schedulers(plans: Iterable[ServicePlan]) -> set[str]:
    """Return the IPVS schedulers that plans request; a name that is no scheduler never gets to the kernel."""
    requests = map(_request, plans)
    return {request.name for request in requests if request is not None and request.name in KNOWN}


def _request(plan: ServicePlan) -> _Request | None:
    """Return what a service port requests: the annotation for this mode has precedence over the one for all modes."""
    port, balancing = plan.port, plan.balancing
    if port.service.ipvs_scheduler:
        return _Request(port.service.ipvs_scheduler, IPVS_SCHEDULER_ANNOTATION)
    word, scheduler = port.service.balancing.requested_name, port.service.balancing.scheduler
    if scheduler is None and balancing is not None and balancing.scheduler is Scheduler.WEIGHTED:
        scheduler = Scheduler.WEIGHTED
    if scheduler is None or word in KNOWN:
        return _Request(word, SCHEDULER_ANNOTATION) if word else None
    name = _CLOSEST[scheduler]
    if scheduler is Scheduler.LEAST_CONNECTIONS and balancing is not None and balancing.weights:
        name = "wlc"
    return _Request(name, SCHEDULER_ANNOTATION, by_port=scheduler is not Scheduler.SOURCE_HASH)


class Schedulers:
    """Chooses among the schedulers of a kernel; those that nothing is known about are taken to exist."""

    def __init__(self, default: str, missing: Collection[str] = ()) -> None:
        self.default = default
        self._missing = missing

    def choose(self, plan: ServicePlan) -> Choice:
        """Return the requested scheduler, or the default one and why."""
        request = _request(plan)
        if request is None:
            return Choice(self.default)
        if request.name not in KNOWN:
            known = ", ".join(sorted(KNOWN))
            return self._fall_back(request, f"{request.name!r} is no IPVS scheduler (known are {known})")
        if request.name in self._missing:
            return self._fall_back(
                request, f"this kernel lacks scheduler {request.name} (module ip_vs_{request.name})"
            )
        return Choice(request.name, by_port=request.by_port)

    def _fall_back(self, request: _Request, why: str) -> Choice:
        problem = f"annotation {request.annotation}: {why}; using {self.default}"
        return Choice(self.default, problem, request.by_port)
