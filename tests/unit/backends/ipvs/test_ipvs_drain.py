"""Who may leave, who must wait, and for how long."""

from __future__ import annotations

from tests.factory import packed

from pointsman.backends.ipvs.drain import Departure, Draining
from pointsman.kernel.ipvs_objects import RealKey, RealServer, VirtualKey

TCP = VirtualKey(6, packed("10.96.0.1"), 80)
UDP = VirtualKey(17, packed("10.96.0.1"), 53)
ONE, TWO = RealKey(packed("10.244.0.1"), 8080), RealKey(packed("10.244.0.2"), 8080)


def test_a_server_without_connections_goes_at_once() -> None:
    draining = Draining(100)
    assert draining.verdict(TCP, [ONE], [RealServer(ONE, 1)], now=0) == ([ONE], [])
    assert len(draining) == 0


def test_a_server_with_connections_stops_getting_new_ones_and_waits() -> None:
    draining = Draining(100)
    assert draining.verdict(TCP, [ONE], [RealServer(ONE, 1, active=1)], now=0) == ([], [ONE])
    assert draining.verdict(TCP, [ONE], [RealServer(ONE, 0, inactive=1)], now=60) == ([], [])
    assert draining.servers() == {TCP}
    assert draining.leaving(TCP) == [ONE]
    assert draining.verdict(TCP, [ONE], [RealServer(ONE, 0)], now=61) == ([ONE], [])
    assert len(draining) == 0


def test_patience_counts_from_the_first_sight_and_ends() -> None:
    draining = Draining(100)
    busy = [RealServer(ONE, 0, active=5)]
    assert draining.verdict(TCP, [ONE], busy, now=10).remove == []
    assert draining.verdict(TCP, [ONE], busy, now=109).remove == []
    assert draining.verdict(TCP, [ONE], busy, now=110).remove == [ONE]


def test_udp_waits_for_nobody() -> None:
    assert Draining(100).verdict(UDP, [ONE], [RealServer(ONE, 1, active=9)], now=0).remove == [ONE]


def test_weight_zero_left_by_an_earlier_process_is_drained_on() -> None:
    draining = Draining(100)
    assert draining.verdict(TCP, [ONE], [RealServer(ONE, 0, active=1)], now=0) == ([], [])
    assert Departure(TCP, ONE) in draining


def test_one_that_is_wanted_again_or_gone_is_forgotten() -> None:
    draining = Draining(100)
    busy = [RealServer(ONE, 1, active=1), RealServer(TWO, 1, active=1)]
    draining.verdict(TCP, [ONE, TWO], busy, now=0)
    draining.forget(TCP, ONE)
    assert draining.leaving(TCP) == [TWO]
    draining.verdict(TCP, [TWO], [], now=1)
    assert len(draining) == 0
    draining.verdict(TCP, [ONE, TWO], busy, now=2)
    draining.forget(TCP)
    assert len(draining) == 0
