"""Slots: what stays where it is when endpoints come and go."""

from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as st

from pointsman.backends.nftables.fragment import Pool, Slots, arrange_slots

entries = st.lists(st.integers(0, 20), unique=True).map(lambda ns: tuple(bytes((n,)) for n in ns))


@given(previous=entries, wanted=entries)
def test_every_wanted_entry_has_exactly_one_slot(
    previous: tuple[bytes, ...], wanted: tuple[bytes, ...]
) -> None:
    assert sorted(arrange_slots(previous, wanted)) == sorted(wanted)


@given(previous=entries, wanted=entries)
def test_no_survivor_moves_unless_the_list_became_shorter(
    previous: tuple[bytes, ...], wanted: tuple[bytes, ...]
) -> None:
    after = arrange_slots(previous, wanted)
    moved = [e for i, e in enumerate(previous) if e in wanted and (i >= len(after) or after[i] != e)]
    assert len(moved) <= max(0, len(previous) - len(wanted))
    assert all(previous.index(entry) >= len(wanted) for entry in moved)


@given(wanted=entries)
def test_without_history_the_order_is_kept(wanted: tuple[bytes, ...]) -> None:
    assert arrange_slots((), wanted) == wanted
    assert arrange_slots(wanted, tuple(reversed(wanted))) == wanted


def test_a_removed_slot_is_filled_from_the_end() -> None:
    assert arrange_slots((b"a", b"b", b"c", b"d"), (b"a", b"c", b"d")) == (b"a", b"d", b"c")


def test_a_replacement_takes_the_slot_of_the_replaced() -> None:
    assert arrange_slots((b"a", b"b", b"c"), (b"a", b"c", b"x")) == (b"a", b"x", b"c")


@given(st.lists(st.lists(st.binary(min_size=8, max_size=8), min_size=1, max_size=9), max_size=4))
def test_slots_of_pools_come_back_in_order_with_their_numbers(lists: list[list[bytes]]) -> None:
    pools = [Pool.from_slots("endpoints", bytes((number,)) * 12, slots) for number, slots in enumerate(lists)]
    assert [list(pool.slots) for pool in pools] == lists
    found = Slots(pools)
    expected = [
        (pool.prefix + number.to_bytes(4, sys.byteorder), slot)
        for pool, slots in zip(pools, lists, strict=True)
        for number, slot in enumerate(slots)
    ]
    assert list(found) == expected
    assert len(found) == len(expected)
