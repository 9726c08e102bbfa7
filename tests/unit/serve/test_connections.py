"""Who keeps a connection when there are too many, and how much is logged about it."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from pointsman.serve.connections import RESERVE, Connections
from pointsman.serve.troubles import LOG_SECONDS, Trouble, Troubles


class Visitor:
    """A connection without a socket."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self.dropped = False

    def drop(self) -> None:
        self.dropped = True
        self._connections.left(self)


def admitted(connections: Connections, count: int, *, resident: bool = False) -> list[Visitor]:
    made = [Visitor(connections) for _ in range(count)]
    return [visitor for visitor in made if connections.admit(visitor, resident=resident)]


def dropped(visitors: list[Visitor]) -> list[int]:
    return [number for number, visitor in enumerate(visitors) if visitor.dropped]


def test_the_connection_that_is_idle_for_longest_goes_first() -> None:
    connections = Connections(strangers=3)
    visitors = admitted(connections, 3)
    connections.began(visitors[0])
    connections.ended(visitors[0])
    admitted(connections, 1)
    assert dropped(visitors) == [1]
    admitted(connections, 1)
    assert dropped(visitors) == [1, 2]


def test_busy_connections_are_kept_and_newcomers_refused_when_all_are_busy() -> None:
    seen: list[Trouble] = []
    connections = Connections(Troubles(seen.append), strangers=2)
    visitors = admitted(connections, 2)
    for visitor in visitors:
        connections.began(visitor)
    assert admitted(connections, 1) == []
    assert dropped(visitors) == []
    assert seen == [Trouble.REFUSED]
    connections.left(visitors[0])
    assert len(admitted(connections, 1)) == 1


def test_strangers_never_take_the_place_of_clients_on_this_node() -> None:
    connections = Connections(strangers=2, residents=2)
    residents = admitted(connections, 2, resident=True)
    strangers = admitted(connections, 50)
    assert dropped(residents) == []
    assert dropped(strangers) == list(range(48))
    admitted(connections, 1, resident=True)
    assert dropped(residents) == [0]


def test_descriptors_stay_in_reserve_however_low_the_limit_is() -> None:
    used = sum(1 for _ in Path("/proc/self/fd").iterdir())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + RESERVE + 40, hard))
    try:
        strangers = admitted(connections := Connections(), 100)
        residents = admitted(connections, 100, resident=True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    kept = [visitor for visitor in (*strangers, *residents) if not visitor.dropped]
    assert 30 <= len(kept) <= 40


def test_nobody_new_is_let_in_while_many_are_about_to_be_closed() -> None:
    class Slow(Visitor):
        def drop(self) -> None:
            self.dropped = True

    connections = Connections(strangers=100)
    visitors = [Slow(connections) for _ in range(100)]
    for visitor in visitors:
        connections.admit(visitor, resident=False)
    assert not connections.crowded
    connections.make_room()
    assert connections.crowded
    for visitor in visitors:
        if visitor.dropped:
            connections.left(visitor)
    assert not connections.crowded


def test_each_trouble_is_counted_and_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now, seen = [0.0], list[Trouble]()
    troubles = Troubles(seen.append, lambda: now[0])
    for _ in range(1000):
        troubles.report(Trouble.MALFORMED, client="192.0.2.1")
    troubles.report(Trouble.EVICTED)
    now[0] = LOG_SECONDS
    troubles.report(Trouble.MALFORMED, client="192.0.2.2")
    assert len(seen) == 1002
    fields = [record.__dict__["fields"] for record in caplog.records]
    assert fields == [
        {"times": 1, "client": "192.0.2.1"},
        {"times": 1},
        {"times": 1000, "client": "192.0.2.2"},
    ]
