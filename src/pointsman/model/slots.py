"""Assignment of endpoints to slots: the same endpoints, weights and seed give the same slots on every node.

A connection selects a slot, at random or by a hash of its source. The share of an endpoint is the number of its slots, and
a client keeps its endpoint for as long as the slot does.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
import struct
from array import array
from collections.abc import Sequence

from pointsman.model.balancing import (
    HASH_SLOTS_RANGE,
    NO_REQUEST,
    BalancingDefaults,
    BalancingPlan,
    Scheduler,
)
from pointsman.model.endpoint import Endpoint
from pointsman.model.service import ServicePort, ServicePortName

EXACT_SLOTS = 256
"""Weights are represented exactly up to this number of slots."""
_SLOTS_PER_ENDPOINT = 16
_MIN_SLOTS, _MAX_SLOTS = 64, 1024

_HASH_SLOTS_PER_ENDPOINT = 16
_HASH_GROWTH = 4
_MAX_SCORES = 1 << 23
"""Endpoints times slots of all ports of a Service, the cost of filling its tables: about a second at each change of an
endpoint."""
_MAX_ELEMENTS = 1 << 18
"""Slots at all frontends of all ports of a Service: about a second to load, and 27 MiB of kernel memory."""
MAX_EXTRA_ELEMENTS = 1 << 19
"""Slots beyond the default size at all frontends of a node, whose IP families share them equally: 54 MiB of kernel memory, and about 25 MiB of this process."""
_SLOTS_PER_BLOCK = 512
"""Scores of all endpoints are computed for this number of slots at a time, to limit memory."""
_SLACK = 0.125
"""How far an endpoint may exceed its share of the hash slots: a lower limit would move more clients at each change."""


def assign_slots(endpoints: tuple[Endpoint, ...], balance: BalancingPlan | None) -> tuple[Endpoint, ...]:
    """Return the endpoint of each slot."""
    if balance is None or not endpoints:
        return endpoints
    if balance.scheduler.is_hash:
        weights = tuple(balance.weight(endpoint) for endpoint in endpoints)
        names = tuple(e.address + e.port.to_bytes(2, "big") for e in endpoints)
        size = compute_table_size(balance.hash_slots, len(endpoints), balance.max_slots)
        return tuple([endpoints[index] for index in assign_hash_slots(names, weights, size, balance.seed)])
    counts = count_slots([balance.weight(endpoint) for endpoint in endpoints], constant=balance.adjusted)
    return tuple([e for e, count in zip(endpoints, counts, strict=True) for _ in range(count)])


def count_slots(weights: Sequence[int], *, constant: bool = False) -> list[int]:
    """Return the number of slots of each endpoint; weights are positive, and so are the results.

    With `constant`, the size of the table depends on the number of endpoints alone.
    """
    divisor = math.gcd(*weights)
    exact = [weight // divisor for weight in weights]
    if not constant and sum(exact) <= max(EXACT_SLOTS, len(weights)):
        return exact
    return apportion(weights, _compute_bounded_size(len(weights)))


def _compute_bounded_size(endpoints: int) -> int:
    wanted = min(max(_MIN_SLOTS, endpoints * _SLOTS_PER_ENDPOINT), _MAX_SLOTS)
    return 1 << (max(wanted, endpoints) - 1).bit_length()


def apportion(weights: Sequence[int], size: int) -> list[int]:
    """Distribute `size` slots by weight: at least one each, the rest as close to proportional as possible."""
    total = sum(weights)
    spare = size - len(weights)
    shares = [max(0.0, weight * size / total - 1) for weight in weights]
    scale = spare / sum(shares) if any(shares) else 0.0
    quotas = [share * scale for share in shares]
    counts = [int(quota) for quota in quotas]
    by_remainder = sorted(range(len(weights)), key=lambda index: (counts[index] - quotas[index], index))
    for index in by_remainder[: spare - sum(counts)]:
        counts[index] += 1
    return [count + 1 for count in counts]


def compute_max_hashed_endpoints(ports: int, frontends: int) -> int:
    """Return the maximum number of endpoints of a hashed Service with this number of ports, and of frontends at each.

    `compute_max_hash_slots` is then at least two slots per endpoint, so that a table size always fits.
    """
    limit = min(math.isqrt(_MAX_SCORES // (2 * ports)), _MAX_ELEMENTS // (2 * ports * frontends))
    return max(1, limit)


def estimate_fill_seconds(endpoints: int, frontends: int, balance: BalancingPlan | None) -> float:
    """Return about how long it takes to fill and to load the hash tables of a service port; 0 without one."""
    if balance is None or not balance.scheduler.is_hash or endpoints < 2:
        return 0.0
    size = compute_table_size(balance.hash_slots, endpoints, balance.max_slots)
    return size * endpoints / _MAX_SCORES + size * frontends / _MAX_ELEMENTS


def compute_max_hash_slots(endpoints: int, ports: int, frontends: int) -> int:
    """Return the largest table that such a Service may have at each port."""
    by_time = _MAX_SCORES // (ports * max(1, endpoints))
    return min(HASH_SLOTS_RANGE[1], by_time, _MAX_ELEMENTS // (ports * frontends))


def compute_table_size(requested: int, endpoints: int, limit: int = HASH_SLOTS_RANGE[1]) -> int:
    """Return the size of a hash table; it grows in large steps only, because another size moves most clients.

    A Service may request a large table with any number of endpoints: it gets at most `limit` slots, by halving, and at least
    one per endpoint.
    """
    if endpoints == 1:
        return 1
    size = requested
    while size < endpoints * _HASH_SLOTS_PER_ENDPOINT and size * _HASH_GROWTH <= limit:
        size *= _HASH_GROWTH
    while size > limit and size // 2 >= endpoints:
        size //= 2
    while size < endpoints:
        size *= 2
    return size


@functools.lru_cache(maxsize=64)
def assign_hash_slots(
    names: tuple[bytes, ...], weights: tuple[int, ...], size: int, seed: int
) -> Sequence[int]:
    """Return the index of the endpoint of each slot, in two bytes each: large tables are remembered.

    Every endpoint has a score for every slot, and a slot goes to the highest score with capacity left. Removing an endpoint
    moves its own slots and few others; nodes need neither coordination nor history.
    """
    weighed = len(set(weights)) > 1
    per_weight = size * (1 + _SLACK) / sum(weights)
    capacity = [max(1, math.ceil(weight * per_weight)) for weight in weights]
    owners = array("H")
    for block in range(-(-size // _SLOTS_PER_BLOCK)):
        scores: list[Sequence[float]] = [_compute_scores(name, block, seed) for name in names]
        if weighed:
            scores = [
                [math.log((score + 1) / _RANGE) / weight for score in own]
                for own, weight in zip(scores, weights, strict=True)
            ]
        for column in itertools.islice(zip(*scores, strict=True), size - len(owners)):
            index = column.index(max(column))
            if not capacity[index]:
                index = max((score, other) for other, score in enumerate(column) if capacity[other])[1]
            capacity[index] -= 1
            owners.append(index)
    return owners


_RANGE = (1 << 32) + 1


def _compute_scores(name: bytes, block: int, seed: int) -> tuple[int, ...]:
    """Return the scores of one endpoint for the slots of one block."""
    key = seed.to_bytes(8, "big") + name + block.to_bytes((block.bit_length() + 7) // 8, "big")
    return struct.unpack(f">{_SLOTS_PER_BLOCK}I", hashlib.shake_128(key).digest(4 * _SLOTS_PER_BLOCK))


_Rank = tuple[str, ServicePortName]


class HashBudget:
    """Service ports with large hash tables, and which of them exceed the budget of the node.

    Every Service gets tables of the default size. Larger ones, by request or because there are many endpoints, share the budget:
    everyone who may annotate Services can request hundreds of large tables, and each costs memory and time. The older Service
    has precedence, then the smaller name, so that all nodes decide alike.
    """

    def __init__(self, limit: int = MAX_EXTRA_ELEMENTS) -> None:
        self._limit = limit
        self._costs: dict[ServicePortName, tuple[_Rank, int]] = {}
        self._has_changed = False
        self.exceeding: frozenset[ServicePortName] = frozenset()
        """Service ports whose tables must have the default size."""

    def replace(
        self, name: ServicePortName, port: ServicePort | None, endpoints: int, defaults: BalancingDefaults
    ) -> None:
        """Replace the cost of a service port with so many endpoints; None where it does not exist any more."""
        if name not in self._costs and (port is None or not _is_hashable(port, defaults)):
            return
        cost = _compute_extra_elements(port, endpoints, defaults) if port is not None else 0
        found = ((port.service.created, name), cost) if port is not None and cost else None
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


def _is_hashable(port: ServicePort, defaults: BalancingDefaults) -> bool:
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
