"""How new connections of a service port are spread over its endpoints, in words. Pure."""

from __future__ import annotations

from collections import Counter

from pointsman.explain.causes import listed
from pointsman.model.endpoint import Endpoint
from pointsman.model.plan import ServicePlan
from pointsman.model.scheduling import Balance, Scheduler
from pointsman.model.slots import slots_of

_BY = {
    Scheduler.SOURCE_HASH: "by a hash of the client's address",
    Scheduler.SOURCE_PORT_HASH: "by a hash of the client's address and port",
    Scheduler.LEAST_CONNECTIONS: "at random, in shares that follow the open connections",
}


def balancing_words(plan: ServicePlan) -> str:
    """Empty when connections are spread evenly at random."""
    balance = plan.balance
    if balance is None:
        return ""
    how = f"{plan.scheduler}, {_BY.get(balance.scheduler, 'at random')}"
    if balance.adjusted and balance.scheduler is not Scheduler.LEAST_CONNECTIONS:
        how += " while new endpoints start slowly"
    if balance.weights:
        how += f"; shares {listed(_shares(plan.reachable_endpoints, balance))}"
    if balance.scheduler.hashes and plan.port.affinity_seconds:
        how += "; session affinity comes from the hash and has no timeout"
    return how


def _shares(endpoints: tuple[Endpoint, ...], balance: Balance) -> list[str]:
    slots = slots_of(endpoints, balance)
    counts = Counter(str(endpoint) for endpoint in slots)
    return [f"{endpoint} {counts[str(endpoint)] / len(slots):.1%}" for endpoint in endpoints]
