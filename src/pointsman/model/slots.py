"""Which endpoint stands in which slot. Pure: the same endpoints, weights and seed give the same slots on every node.

A connection draws a slot, at random or by a hash of its source. So the share of an endpoint is the number of its slots,
and a client keeps its endpoint for as long as its slot does.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
import struct
from collections.abc import Sequence

from pointsman.model.balancing import HASH_SLOTS_RANGE, BalancingPlan
from pointsman.model.endpoint import Endpoint

EXACT_SLOTS = 256
"""Weights are met exactly as long as so many slots suffice."""
_SLOTS_PER_ENDPOINT = 16
_LEAST_SLOTS, _MOST_SLOTS = 64, 1024

_HASH_SLOTS_PER_ENDPOINT = 16
_HASH_GROWTH = 4
_MOST_SCORES = 1 << 23
"""Endpoints times slots, which is what tables cost to fill, of all ports of a Service: about a second, every time an endpoint
comes or goes."""
_MOST_ELEMENTS = 1 << 18
"""Slots at all frontends of all ports of a Service: about a second to load, and 27 MiB of the kernel's memory."""
_SLOTS_AT_ONCE = 512
"""Scores of all endpoints are in memory for so many slots only."""
_SLACK = 0.125
"""How much more than its share of the hash slots an endpoint may have: less would move more clients at a change."""


def assign_slots(endpoints: tuple[Endpoint, ...], balance: BalancingPlan | None) -> tuple[Endpoint, ...]:
    """The endpoint of each slot."""
    if balance is None or not endpoints:
        return endpoints
    if balance.scheduler.hashes:
        weights = tuple(balance.weight(endpoint) for endpoint in endpoints)
        names = tuple(e.address + e.port.to_bytes(2, "big") for e in endpoints)
        size = hash_slots(balance.hash_slots, len(endpoints), balance.max_slots)
        return tuple([endpoints[index] for index in assign_hash_slots(names, weights, size, balance.seed)])
    counts = count_slots([balance.weight(endpoint) for endpoint in endpoints], constant=balance.adjusted)
    return tuple([e for e, count in zip(endpoints, counts, strict=True) for _ in range(count)])


def count_slots(weights: Sequence[int], *, constant: bool = False) -> list[int]:
    """How many slots each endpoint gets; weights are positive, and so are the numbers of slots.

    `constant` asks for a table whose size depends on the number of endpoints alone.
    """
    divisor = math.gcd(*weights)
    exact = [weight // divisor for weight in weights]
    if not constant and sum(exact) <= max(EXACT_SLOTS, len(weights)):
        return exact
    return apportion(weights, _bounded_size(len(weights)))


def _bounded_size(endpoints: int) -> int:
    wanted = min(max(_LEAST_SLOTS, endpoints * _SLOTS_PER_ENDPOINT), _MOST_SLOTS)
    return 1 << (max(wanted, endpoints) - 1).bit_length()


def apportion(weights: Sequence[int], size: int) -> list[int]:
    """`size` slots by weight: at least one for everybody, the rest as close to proportional as whole slots allow."""
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
    """Over how many endpoints a Service with so many ports, and frontends at each, can be hashed.

    Then `compute_max_hash_slots` is at least two slots for each of them, and there is always a table size that fits.
    """
    most = min(math.isqrt(_MOST_SCORES // (2 * ports)), _MOST_ELEMENTS // (2 * ports * frontends))
    return max(1, most)


def compute_max_hash_slots(endpoints: int, ports: int, frontends: int) -> int:
    """The largest table that such a Service may have at each port."""
    by_time = _MOST_SCORES // (ports * max(1, endpoints))
    return min(HASH_SLOTS_RANGE[1], by_time, _MOST_ELEMENTS // (ports * frontends))


def hash_slots(wanted: int, endpoints: int, most: int = HASH_SLOTS_RANGE[1]) -> int:
    """The size of a hash table; it grows in large steps only, because another size moves most clients.

    Anybody may ask for a large table with any number of endpoints: it gets no more than `most` slots, halved as often as it
    takes, and at least one for each endpoint.
    """
    if endpoints == 1:
        return 1
    size = wanted
    while size < endpoints * _HASH_SLOTS_PER_ENDPOINT and size * _HASH_GROWTH <= most:
        size *= _HASH_GROWTH
    while size > most and size // 2 >= endpoints:
        size //= 2
    while size < endpoints:
        size *= 2
    return size


@functools.lru_cache(maxsize=64)
def assign_hash_slots(
    names: tuple[bytes, ...], weights: tuple[int, ...], size: int, seed: int
) -> tuple[int, ...]:
    """For each slot the index of its endpoint.

    Every endpoint has a score for every slot, and a slot goes to the highest scorer that has room left. An endpoint that goes
    frees its own slots and few others; nodes need to know nothing of each other or of the past.
    """
    weighed = len(set(weights)) > 1
    per_weight = size * (1 + _SLACK) / sum(weights)
    room = [max(1, math.ceil(weight * per_weight)) for weight in weights]
    owners: list[int] = []
    for block in range(-(-size // _SLOTS_AT_ONCE)):
        scores: list[Sequence[float]] = [_scores(name, block, seed) for name in names]
        if weighed:
            scores = [
                [math.log((score + 1) / _RANGE) / weight for score in own]
                for own, weight in zip(scores, weights, strict=True)
            ]
        for column in itertools.islice(zip(*scores, strict=True), size - len(owners)):
            index = column.index(max(column))
            if not room[index]:
                index = max((score, other) for other, score in enumerate(column) if room[other])[1]
            room[index] -= 1
            owners.append(index)
    return tuple(owners)


_RANGE = (1 << 32) + 1


def _scores(name: bytes, block: int, seed: int) -> tuple[int, ...]:
    """Of one endpoint for the slots of one block."""
    key = seed.to_bytes(8, "big") + name + block.to_bytes((block.bit_length() + 7) // 8, "big")
    return struct.unpack(f">{_SLOTS_AT_ONCE}I", hashlib.shake_128(key).digest(4 * _SLOTS_AT_ONCE))
