"""Slots by weight and by hash: shares, bounds, agreement, and how few clients a change moves."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factory import endpoint

from pointsman.model.balancing import BalancingPlan, Scheduler
from pointsman.model.endpoint import Endpoint
from pointsman.model.slots import (
    EXACT_SLOTS,
    apportion,
    assign_hash_slots,
    assign_slots,
    compute_max_hash_slots,
    compute_max_hashed_endpoints,
    compute_table_size,
    count_slots,
)

weights = st.lists(st.integers(1, 1000), min_size=1, max_size=60)


def pods(count: int, block: int = 1) -> tuple[Endpoint, ...]:
    made = [endpoint(f"10.244.{block}.{number}") for number in range(1, count + 1)]
    return tuple(sorted(made, key=str))


def hashed(endpoints: tuple[Endpoint, ...], size: int = 512, **fields: int) -> tuple[Endpoint, ...]:
    return assign_slots(
        endpoints, BalancingPlan(Scheduler.SOURCE_HASH, seed=fields.get("seed", 1), hash_slots=size)
    )


def moved(before: tuple[Endpoint, ...], after: tuple[Endpoint, ...]) -> float:
    return sum(old != new for old, new in zip(before, after, strict=True)) / len(before)


def test_small_weights_are_met_exactly_with_the_smallest_table() -> None:
    assert count_slots([3, 1]) == [3, 1]
    assert count_slots([30, 10, 20]) == [3, 1, 2]
    assert count_slots([5, 5]) == [1, 1]


@given(weights)
def test_tables_are_bounded_and_nobody_is_left_out(given_weights: list[int]) -> None:
    counts = count_slots(given_weights)
    assert min(counts) >= 1
    assert sum(counts) <= max(EXACT_SLOTS, 1024)
    assert len(counts) == len(given_weights)


@given(weights, st.integers(64, 1024))
def test_apportioned_slots_add_up_and_respect_the_order_of_weights(
    given_weights: list[int], size: int
) -> None:
    counts = apportion(given_weights, size)
    assert sum(counts) == size
    ranked = sorted(zip(given_weights, counts, strict=True))
    assert all(b[1] >= a[1] - 1 for a, b in itertools.pairwise(ranked))


@given(st.lists(st.integers(20, 100), min_size=2, max_size=12))
def test_a_bounded_table_is_close_to_the_weights(given_weights: list[int]) -> None:
    counts = count_slots(given_weights, constant=True)
    size, total = sum(counts), sum(given_weights)
    for count, weight in zip(counts, given_weights, strict=True):
        assert abs(count - size * weight / total) < 2


def test_a_table_whose_weights_change_by_themselves_keeps_its_size() -> None:
    sizes = {sum(count_slots([share, 100, 100], constant=True)) for share in range(1, 101)}
    assert sizes == {64}


@pytest.mark.parametrize("count", [2, 3, 5, 10, 20, 30])
def test_hash_slots_are_spread_within_the_slack(count: int) -> None:
    found = Counter(hashed(pods(count)))
    assert len(found) == count
    assert max(found.values()) <= math.ceil(512 * 1.125 / count)


def test_one_of_ten_endpoints_moves_at_most_a_little_more_than_its_own_clients() -> None:
    for block in range(12):
        ten = pods(10, block)
        table = hashed(ten)
        for gone in ten:
            rest = tuple(one for one in ten if one != gone)
            assert moved(table, hashed(rest)) <= 1.3 / 10


def test_what_goes_and_comes_back_leaves_no_trace() -> None:
    ten = pods(10)
    assert hashed(tuple(reversed(ten))) == hashed(ten)
    assert hashed(ten[:4] + ten[5:]) != hashed(ten)


def test_another_seed_is_another_table() -> None:
    assert moved(hashed(pods(10), seed=1), hashed(pods(10), seed=2)) > 0.5


def test_hash_slots_follow_weights() -> None:
    two = pods(2)
    balance = BalancingPlan(
        Scheduler.SOURCE_HASH,
        {(two[0].address, two[0].port): 3, (two[1].address, two[1].port): 1},
        hash_slots=512,
    )
    found = Counter(assign_slots(two, balance))
    assert 512 * 0.75 * 0.875 <= found[two[0]] <= 512 * 0.75 * 1.125


def test_the_table_grows_in_large_steps_only() -> None:
    assert [compute_table_size(512, count) for count in (1, 2, 32, 33, 128, 129)] == [
        1,
        512,
        512,
        2048,
        2048,
        8192,
    ]


@pytest.mark.parametrize("wanted", [64, 100, 512, 65536])
@pytest.mark.parametrize(("ports", "frontends"), [(1, 1), (1, 3), (2, 40), (100, 1), (1000, 3), (65535, 3)])
def test_nobody_can_ask_for_tables_that_take_long_to_fill_or_to_load(
    wanted: int, ports: int, frontends: int
) -> None:
    limit = compute_max_hashed_endpoints(ports, frontends)
    for count in {count for count in (1, 2, 3, 50, 300, 1000, 2048, limit) if count <= limit}:
        size = compute_table_size(wanted, count, compute_max_hash_slots(count, ports, frontends))
        assert size >= count
        assert size * count * ports <= 1 << 23
        assert size * ports * frontends <= 1 << 18


def test_the_bounds_leave_usual_services_what_they_ask_for() -> None:
    assert compute_max_hashed_endpoints(1, 3) == 2048
    assert compute_table_size(65536, 100, compute_max_hash_slots(100, 1, 3)) == 65536
    assert compute_table_size(512, 32, compute_max_hash_slots(32, 10, 4)) == 512


def test_filling_a_large_table_holds_few_scores_at_a_time() -> None:
    names = tuple(number.to_bytes(6, "big") for number in range(20))
    tracemalloc.start()
    try:
        assign_hash_slots(names, (1,) * len(names), 8192, 1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < len(names) * 8192 * 8


@given(
    st.lists(st.binary(min_size=6, max_size=6), min_size=1, max_size=40, unique=True), st.integers(64, 300)
)
def test_every_slot_has_an_owner(names: list[bytes], size: int) -> None:
    owners = assign_hash_slots(tuple(names), (1,) * len(names), size, 1)
    assert len(owners) == size
    assert set(owners) <= set(range(len(names)))
