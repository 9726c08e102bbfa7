"""Shares that change by themselves: the curve of a slow start, and a controller that never swings."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.factory import endpoint_slice, service

from pointsman.model.addresses import Family
from pointsman.model.balancing import BalancingDefaults, Capabilities, Scheduler
from pointsman.model.endpoint import Identity
from pointsman.model.service import Protocol, ServicePortName
from pointsman.model.shares import (
    FIRST_SHARE,
    MAX_SHARE,
    MIN_SHARE,
    ShareMode,
    compute_shares,
    compute_warm_up_share,
)
from pointsman.model.tracker import Tracker

PERIOD = 5.0


def one(number: int) -> Identity:
    return bytes((10, 0, 0, number)), 80


class Fluid:
    """Connections that arrive at a steady rate, by share, and live for a while: the mean of many real ones."""

    def __init__(self, connections: list[float], rate: float, lifetime: float) -> None:
        self.names = [one(number) for number in range(len(connections))]
        self.weights = dict.fromkeys(self.names, 1)
        self.connections = dict(zip(self.names, connections, strict=True))
        self.shares = dict.fromkeys(self.names, 100.0)
        self._rate, self._lifetime = rate, lifetime

    def pass_one_period(self) -> None:
        steps = 50
        for _ in range(steps):
            total = sum(self.shares.values())
            for name in self.names:
                arriving = self._rate * self.shares[name] / total
                leaving = self.connections[name] / self._lifetime
                self.connections[name] += PERIOD / steps * (arriving - leaving)
        counts = {name: round(held) for name, held in self.connections.items()}
        self.shares = compute_shares(self.shares, counts, self.weights)

    @property
    def spread(self) -> float:
        """By how much the fullest exceeds the emptiest, in parts of the mean."""
        held = self.connections.values()
        return (max(held) - min(held)) / (sum(held) / len(held) + 1)


def test_a_newcomer_grows_in_ten_steps_and_never_shrinks() -> None:
    curve = [compute_warm_up_share(second, 30) for second in range(32)]
    assert (curve[0], curve[15], curve[29], curve[30]) == (FIRST_SHARE, 50, 90, 100)
    assert curve == sorted(curve)
    assert len(set(curve)) == 10
    assert compute_warm_up_share(0.0, 0) == 100


def test_equal_loads_leave_shares_alone() -> None:
    weights = {one(1): 1, one(2): 3}
    assert compute_shares({}, {one(1): 100, one(2): 300}, weights) == {one(1): 100.0, one(2): 100.0}
    assert compute_shares({}, {}, weights) == {one(1): 100.0, one(2): 100.0}
    assert compute_shares({}, {one(1): 5}, {}) == {}


@given(
    st.lists(st.integers(0, 100_000), min_size=1, max_size=20),
    st.lists(st.floats(MIN_SHARE, MAX_SHARE), min_size=20, max_size=20),
)
def test_a_step_stays_within_bounds_and_never_passes_its_goal(held: list[int], shares: list[float]) -> None:
    names = [one(number) for number in range(len(held))]
    before = dict(zip(names, shares, strict=False))
    counts, weights = dict(zip(names, held, strict=True)), dict.fromkeys(names, 1)
    after = compute_shares(before, counts, weights)
    again = compute_shares(after, counts, weights)
    for name in names:
        assert MIN_SHARE <= after[name] <= MAX_SHARE
        step, next_step = after[name] - before[name], again[name] - after[name]
        assert step * next_step >= 0, "the same counts never turn the direction"
        assert abs(next_step) <= abs(step) + 1e-9


LIFETIMES = 6
"""Of connections, that a history lasts."""


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0, 500), min_size=2, max_size=12),
    st.floats(0.2, 200.0),
    st.sampled_from([0.2, 1.0, 5.0, 20.0, 60.0, 300.0]),
)
def test_loads_approach_each_other_and_do_not_swing(held: list[float], rate: float, lifetime: float) -> None:
    fluid = Fluid(held, rate, lifetime)
    spreads = [fluid.spread]
    curves: dict[Identity, list[float]] = {name: [100.0] for name in fluid.names}
    for _ in range(round(LIFETIMES * max(lifetime, 30.0) / PERIOD)):
        fluid.pass_one_period()
        spreads.append(fluid.spread)
        for name, share in fluid.shares.items():
            curves[name].append(share)
    assert max(turns(curve) for curve in curves.values()) <= LIFETIMES, (
        "shares that swing turn with every reading"
    )
    assert spreads[-1] <= max(0.3, spreads[0])
    half = len(spreads) // 2
    assert max(spreads[half:]) <= max(spreads[:half]) + 0.05


def turns(curve: list[float], noise: float = 10.0) -> int:
    """How often a curve changes its direction, ups and downs of a few points apart: whole connections make some."""
    found, direction, extreme = 0, 0, curve[0]
    for value in curve:
        if direction * (value - extreme) >= 0 and direction:
            extreme = value
        elif abs(value - extreme) > noise:
            found += bool(direction)
            direction, extreme = (1 if value > extreme else -1), value
    return found


@pytest.mark.parametrize("lifetime", [60.0, 600.0, 36000.0])
def test_a_fresh_replica_catches_up_sooner_than_by_even_chances(lifetime: float) -> None:
    """The usual complaint: keep-alive clients stay where they are, and a restarted pod idles for days."""

    def periods_to_catch_up(*, adjusting: bool) -> int:
        fluid = Fluid([100.0] * 9 + [0.0], rate=max(900 / lifetime, 1.0), lifetime=lifetime)
        for passed in itertools.count(1):
            fluid.pass_one_period()
            if not adjusting:
                fluid.shares = dict.fromkeys(fluid.names, 100.0)
            held = [*fluid.connections.values()]
            if held[-1] >= 0.8 * sum(held) / len(held) or passed > 100_000:
                return passed
        raise AssertionError

    assert periods_to_catch_up(adjusting=True) * 2 <= periods_to_catch_up(adjusting=False)


NAME = ServicePortName("default", "web", "http", Protocol.TCP)


def tracking(annotations: dict[str, str], **balancing: Any) -> Tracker:
    tracker = Tracker(Family.IPV4, "n1", balancing=BalancingDefaults(**balancing))
    named = {f"pointsman.dev/{name}": value for name, value in annotations.items()}
    tracker.upsert_service(service(metadata={"annotations": named}))
    tracker.upsert_slice(endpoint_slice("10.244.1.1", "10.244.1.2"))
    return tracker


def shares(tracker: Tracker) -> list[int]:
    return [endpoint.state.share for endpoint in tracker.states[NAME].endpoints]


def test_what_is_there_at_the_start_is_not_new() -> None:
    tracker = tracking({"slow-start": "30s"})
    tracker.upsert_slice(endpoint_slice("10.244.2.1", name="web-b"))
    assert shares(tracker) == [100, 100, 100]
    assert tracker.shares.modes == {NAME: ShareMode(slow_start=30)}


def test_an_endpoint_that_becomes_ready_later_begins_small_and_grows_when_told() -> None:
    tracker = tracking({"slow-start": "30s"})
    tracker.take()
    unready = {"addresses": ["10.244.2.1"], "conditions": {"ready": False}}
    tracker.upsert_slice(endpoint_slice(unready, name="web-b"))
    assert shares(tracker) == [100, 100, 100]
    tracker.upsert_slice(endpoint_slice("10.244.2.1", name="web-b"))
    assert shares(tracker) == [100, 100, FIRST_SHARE]
    (newcomer,) = tracker.find_warming_up(NAME)
    tracker.take()
    assert tracker.set_shares(NAME, {newcomer: 60})
    assert not tracker.set_shares(NAME, {newcomer: 60})
    assert shares(tracker) == [100, 100, 60]
    assert tracker.take().states.keys() == {NAME}
    assert tracker.set_shares(NAME, {newcomer: 100}, [newcomer])
    assert (shares(tracker), tracker.find_warming_up(NAME)) == ([100, 100, 100], frozenset())


def test_nobody_starts_slowly_while_nobody_else_serves() -> None:
    tracker = tracking({"slow-start": "30s"})
    tracker.take()
    tracker.upsert_slice(endpoint_slice("10.244.9.1", "10.244.9.2"))
    assert shares(tracker) == [100, 100]


def test_services_that_do_not_ask_have_no_shares_to_adjust() -> None:
    for asked, balancing in (
        ({}, {}),
        ({"slow-start": "30s"}, {"capabilities": Capabilities()}),
        ({"scheduler": "least-connections"}, {"capabilities": Capabilities()}),
        ({"slow-start": "0s"}, {"slow_start": 30}),
    ):
        tracker = tracking(asked, **balancing)
        tracker.take()
        tracker.upsert_slice(endpoint_slice("10.244.2.1", name="web-b"))
        assert (shares(tracker), tracker.shares.modes) == ([100, 100, 100], {})


def test_a_service_that_has_stopped_asking_gets_no_share_from_a_late_count() -> None:
    tracker = tracking({})
    first = tracker.states[NAME].endpoints[0]
    assert not tracker.set_shares(NAME, {(first.address, first.port): 40})
    assert shares(tracker) == [100, 100]


def test_another_wish_begins_with_full_shares() -> None:
    tracker = tracking({"scheduler": "least-connections", "slow-start": "30s"})
    first = tracker.states[NAME].endpoints[0]
    tracker.set_shares(NAME, {(first.address, first.port): 40})
    assert shares(tracker) == [40, 100]
    tracker.upsert_service(service(metadata={"annotations": {"pointsman.dev/slow-start": "30s"}}))
    assert shares(tracker) == [100, 100]


def test_the_configuration_may_ask_for_everybody_and_a_service_may_stop_asking() -> None:
    tracker = tracking({}, scheduler=Scheduler.LEAST_CONNECTIONS, slow_start=10)
    assert tracker.shares.modes == {NAME: ShareMode(10, least_connections=True)}
    tracker.take()
    tracker.upsert_slice(endpoint_slice("10.244.2.1", name="web-b"))
    assert shares(tracker)[-1] == FIRST_SHARE
    tracker.upsert_service(
        service(
            metadata={"annotations": {"pointsman.dev/scheduler": "random", "pointsman.dev/slow-start": "0s"}}
        )
    )
    assert (shares(tracker), tracker.shares.modes) == ([100, 100, 100], {})
    tracker.delete_service("default/web")
    assert NAME not in tracker.states
