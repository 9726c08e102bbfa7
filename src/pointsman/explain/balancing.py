"""How connections of a service port are spread over its endpoints, and end with them, in words. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pointsman.backends.contract import Mode
from pointsman.explain.causes import listed
from pointsman.explain.report import Cause
from pointsman.machine.host_facts import HostFacts
from pointsman.model.balancing import BalancingPlan, Scheduler
from pointsman.model.endpoint import Endpoint
from pointsman.model.plan import ServicePlan
from pointsman.model.slots import assign_slots

_BY = {
    Scheduler.SOURCE_HASH: "by a hash of the client's address",
    Scheduler.SOURCE_PORT_HASH: "by a hash of the client's address and port",
    Scheduler.LEAST_CONNECTIONS: "at random, in shares that follow the open connections",
}


RESET_GONE = "a connection to an endpoint that has left every slice is reset with the client's next packet"


def reset_causes(plan: ServicePlan, host: HostFacts, mode: Mode) -> Iterator[Cause]:
    """Why connections to gone endpoints are not reset although they should be."""
    if plan.resets_gone and mode.capabilities.resets_need_loose_tracking and host.conntrack_loose is False:
        yield Cause(
            "ResetGoneNeedsLooseTracking",
            "net.netfilter.nf_conntrack_tcp_loose is 0: connections to endpoints that are gone are not reset",
            "sysctl -w net.netfilter.nf_conntrack_tcp_loose=1, and in /etc/sysctl.d for the next boot",
            fatal=False,
        )


def balancing_words(plan: ServicePlan) -> str:
    """Empty when connections are spread evenly at random."""
    balance = plan.balancing
    if balance is None:
        return ""
    how = f"{plan.scheduler}, {_BY.get(balance.scheduler, 'at random')}"
    if balance.adjusted and balance.scheduler is not Scheduler.LEAST_CONNECTIONS:
        how += " while new endpoints start slowly"
    if balance.weights:
        how += f"; shares {listed(_shares(plan.endpoints.reachable, balance))}"
    if balance.scheduler.hashes and plan.port.service.affinity_seconds:
        how += "; session affinity comes from the hash and has no timeout"
    return how


def _shares(endpoints: tuple[Endpoint, ...], balance: BalancingPlan) -> list[str]:
    """Of a hash as the weights have it, from which its table differs by a little: to fill one only for this takes long."""
    if balance.scheduler.hashes:
        counts = {str(endpoint): balance.weight(endpoint) for endpoint in endpoints}
    else:
        counts = Counter(str(endpoint) for endpoint in assign_slots(endpoints, balance))
    whole = sum(counts.values())
    return [f"{endpoint} {counts[str(endpoint)] / whole:.1%}" for endpoint in endpoints]
