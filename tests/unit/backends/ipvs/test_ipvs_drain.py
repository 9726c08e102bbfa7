"""Who may leave, who must wait, and for how long."""

from __future__ import annotations

from tests.factory import packed

from pointsman.backends.ipvs.steps import Draining, RemoveReals, WeighReals
from pointsman.kernel.ipvs_objects import RealKey, RealOf, RealServer, VirtualKey

TCP = VirtualKey(6, packed("10.96.0.1"), 80)
UDP = VirtualKey(17, packed("10.96.0.1"), 53)
ONE, TWO = (RealOf(TCP, RealKey(packed(f"10.244.0.{last}"), 8080)) for last in (1, 2))
STAYS = (WeighReals([], 0), RemoveReals([]))
GOES = (WeighReals([], 0), RemoveReals([ONE]))


def steps(draining: Draining, item: RealOf, now: float, **seen: int) -> tuple[WeighReals, RemoveReals]:
    return draining.plan_steps([item], {item: RealServer(item.real, **seen)}, now)


def test_a_server_without_connections_goes_at_once() -> None:
    draining = Draining(100)
    assert steps(draining, ONE, 0, weight=1) == GOES
    assert len(draining) == 0


def test_a_server_with_connections_stops_getting_new_ones_and_waits() -> None:
    draining = Draining(100)
    assert steps(draining, ONE, 0, weight=1, active=1) == (WeighReals([ONE], 0), RemoveReals([]))
    assert steps(draining, ONE, 60, weight=0, inactive=1) == STAYS
    assert draining.list_reals() == [ONE]
    assert steps(draining, ONE, 61, weight=0) == GOES
    assert len(draining) == 0


def test_the_timeout_counts_from_the_first_sight() -> None:
    draining = Draining(100)
    assert steps(draining, ONE, 10, weight=0, active=5) == STAYS
    assert steps(draining, ONE, 109, weight=0, active=5) == STAYS
    assert steps(draining, ONE, 110, weight=0, active=5) == GOES


def test_udp_does_not_wait() -> None:
    item = RealOf(UDP, ONE.real)
    assert steps(Draining(100), item, 0, weight=1, active=9)[1].items == [item]


def test_weight_zero_left_by_an_earlier_process_is_drained_on() -> None:
    draining = Draining(100)
    assert steps(draining, ONE, 0, weight=0, active=1) == STAYS
    assert ONE in draining


def test_what_the_kernel_no_longer_has_is_removed_from_memory_too() -> None:
    assert Draining(100).plan_steps([ONE], {}, 0) == GOES


def test_one_that_is_wanted_again_or_gone_is_forgotten() -> None:
    draining = Draining(100)
    for item in (ONE, TWO):
        steps(draining, item, 0, weight=1, active=1)
    draining.retain({TCP: {ONE.real: 1, TWO.real: 0}})
    assert draining.list_reals() == [TWO]
    draining.retain({TCP: {}})
    assert len(draining) == 0
    steps(draining, ONE, 2, weight=1, active=1)
    draining.retain({})
    assert len(draining) == 0
