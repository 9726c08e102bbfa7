"""Who keeps a connection when there are too many, and how much is logged about it."""

from __future__ import annotations

import os
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
    now = [0.0]
    connections = Connections(strangers=3, clock=lambda: now[0])
    visitors = admitted(connections, 3)
    connections.began(visitors[0])
    connections.ended(visitors[0])
    now[0] += 2.0
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


def answer(connections: Connections, visitor: Visitor, times: int) -> None:
    for _ in range(times):
        connections.began(visitor)
        connections.ended(visitor)


def test_when_all_are_busy_the_one_that_was_answered_most_makes_room() -> None:
    connections = Connections(strangers=3)
    visitors = admitted(connections, 3)
    for visitor, times in zip(visitors, (1, 3, 2), strict=True):
        answer(connections, visitor, times)
        connections.began(visitor)
    for expected in ([1], [1, 2], [0, 1, 2]):
        (newcomer,) = admitted(connections, 1)
        connections.began(newcomer)
        assert dropped(visitors) == expected
    assert admitted(connections, 1) == [], "none of those who are left was answered yet"


def test_whoever_asks_without_a_pause_makes_room_before_the_idle() -> None:
    now = [0.0]
    connections = Connections(strangers=3, clock=lambda: now[0])
    idle, hasty, patient = visitors = admitted(connections, 3)
    answer(connections, hasty, 20)
    for _ in range(20):
        answer(connections, patient, 1)
        now[0] += 2.0
    admitted(connections, 1)
    assert dropped(visitors) == [1]
    admitted(connections, 1)
    assert dropped(visitors) == [0, 1]
    assert not patient.dropped
    assert idle.dropped


def test_whoever_has_just_come_is_answered_before_it_must_make_room() -> None:
    connections = Connections(strangers=3)
    visitors = admitted(connections, 3)
    for visitor in visitors[1:]:
        answer(connections, visitor, 1)
        connections.began(visitor)
    admitted(connections, 2)
    assert dropped(visitors) == [1, 2]
    admitted(connections, 1)
    assert dropped(visitors) == [0, 1, 2], "nobody is left who was answered"


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


@pytest.mark.parametrize("resident", [True, False])
def test_without_a_single_descriptor_the_newcomer_takes_the_place_of_another(resident: bool) -> None:
    now = [0.0]
    connections = Connections(clock=lambda: now[0])
    visitors = admitted(connections, 80, resident=resident)
    now[0] += 10.0
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        (newcomer,) = admitted(connections, 1, resident=resident)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert visitors[0].dropped
    assert not newcomer.dropped


def test_answers_that_nobody_reads_take_so_much_memory_and_no_more() -> None:
    connections = Connections(strangers=10, most_unread=100)
    visitors = admitted(connections, 4)
    for visitor in visitors[:3]:
        connections.unread(visitor, 40)
    assert dropped(visitors) == [0]
    connections.unread(visitors[1], 0)
    connections.unread(visitors[3], 60)
    assert dropped(visitors) == [0]
    connections.unread(visitors[1], 500)
    assert dropped(visitors) == [0, 2, 3], "the newest may be of any size"


def test_what_strangers_leave_unread_is_not_held_against_clients_on_this_node() -> None:
    connections = Connections(most_unread=100)
    (resident,) = admitted(connections, 1, resident=True)
    connections.unread(resident, 90)
    for visitor in admitted(connections, 5):
        connections.unread(visitor, 90)
    assert not resident.dropped


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
