"""Limit of all source hash tables of a node together.

Every Service gets tables of the default size. Larger ones, by request or because there are many endpoints, share a budget:
everyone who may annotate Services can request hundreds of large tables, and each costs memory and time. The older Service
has precedence, then the smaller name, so that all nodes decide alike.
"""

from __future__ import annotations

from pointsman.model.balancing import NO_REQUEST, BalancingDefaults, Scheduler
from pointsman.model.service import ServicePort, ServicePortName
from pointsman.model.slots import compute_max_hash_slots, compute_table_size
from pointsman.model.tracker import PortState

MAX_EXTRA_ELEMENTS = 1 << 19
"""Slots beyond the default size at all frontends: 54 MiB of kernel memory, and about 140 MiB of this process."""

_Rank = tuple[str, ServicePortName]


class HashBudget:
    """Service ports with large hash tables, and which of them exceed the budget of the node."""

    def __init__(self, limit: int = MAX_EXTRA_ELEMENTS) -> None:
        self._limit = limit
        self._costs: dict[ServicePortName, tuple[_Rank, int]] = {}
        self._has_changed = False
        self.exceeding: frozenset[ServicePortName] = frozenset()
        """Service ports whose tables must have the default size."""

    def replace(self, name: ServicePortName, state: PortState | None, defaults: BalancingDefaults) -> None:
        """Replace the cost of a service port; None where it does not exist any more."""
        if name not in self._costs and (state is None or not _may_hash(state.port, defaults)):
            return
        cost = _compute_extra_elements(state.port, len(state.endpoints), defaults) if state is not None else 0
        found = ((state.port.service.created, name), cost) if state is not None and cost else None
        if found == self._costs.get(name):
            return
        self._has_changed = True
        if found is not None:
            self._costs[name] = found
        else:
            del self._costs[name]

    def take_affected(self) -> frozenset[ServicePortName]:
        """Distribute the budget again if a cost changed; return the service ports that gain or lose a large table."""
        if not self._has_changed:
            return frozenset()
        self._has_changed = False
        left = self._limit
        exceeding: set[ServicePortName] = set()
        for (_, name), cost in sorted(self._costs.values()):
            if cost <= left:
                left -= cost
            else:
                exceeding.add(name)
        before, self.exceeding = self.exceeding, frozenset(exceeding)
        return before ^ self.exceeding


def _may_hash(port: ServicePort, defaults: BalancingDefaults) -> bool:
    return port.service.balancing is not NO_REQUEST or defaults.scheduler is not Scheduler.RANDOM


def _compute_extra_elements(port: ServicePort, endpoints: int, defaults: BalancingDefaults) -> int:
    request, capabilities = port.service.balancing, defaults.capabilities
    scheduler = request.scheduler or defaults.scheduler
    if not (scheduler.is_hash and capabilities.fills_hash_tables and scheduler in capabilities.schedulers):
        return 0
    if endpoints < 2:
        return 0
    frontends = port.frontend_count
    limit = compute_max_hash_slots(endpoints, port.service.port_count, frontends)
    size = compute_table_size(request.hash_slots or defaults.hash_slots, endpoints, limit)
    return max(0, size - defaults.hash_slots) * frontends
