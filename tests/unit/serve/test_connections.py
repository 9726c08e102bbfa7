"""Which connection is closed when there are too many, and how much is logged about it."""

from __future__ import annotations

import resource

import pytest

from pointsman.serve.connections import LOG_INTERVAL_SECONDS, Connections, ErrorLog, ServingError


class FakeConnection:
    """A connection without a socket."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True
        self._connections.remove(self)


def admit(connections: Connections, count: int, *, is_local: bool = False) -> list[FakeConnection]:
    made = [FakeConnection(connections) for _ in range(count)]
    return [one for one in made if connections.admit(one, is_local=is_local)]


def aborted(made: list[FakeConnection]) -> list[int]:
    return [number for number, one in enumerate(made) if one.aborted]


def test_the_connection_that_is_idle_for_longest_goes_first() -> None:
    connections = Connections(max_remote=3)
    made = admit(connections, 3)
    connections.mark_busy(made[0])
    connections.mark_idle(made[0])
    for expected in ([1], [1, 2], [0, 1, 2]):
        admit(connections, 1)
        assert aborted(made) == expected


def test_busy_connections_are_kept_and_new_ones_refused_when_all_are_busy() -> None:
    seen: list[ServingError] = []
    connections = Connections(ErrorLog(seen.append), max_remote=2)
    made = admit(connections, 2)
    for one in made:
        connections.mark_busy(one)
    assert admit(connections, 1) == []
    assert aborted(made) == []
    assert seen == [ServingError.REFUSED]
    connections.remove(made[0])
    assert len(admit(connections, 1)) == 1


def test_remote_clients_never_replace_clients_on_this_node() -> None:
    connections = Connections(max_remote=2, max_local=2)
    local = admit(connections, 2, is_local=True)
    remote = admit(connections, 50)
    assert aborted(local) == []
    assert aborted(remote) == list(range(48))
    admit(connections, 1, is_local=True)
    assert aborted(local) == [0]


@pytest.mark.parametrize("descriptors", [100, 200, 1024])
def test_most_descriptors_stay_free_however_low_their_limit_is(descriptors: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, hard))
    try:
        connections = Connections()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    made = [*admit(connections, 1000), *admit(connections, 1000, is_local=True)]
    kept = [one for one in made if not one.aborted]
    assert descriptors // 3 <= len(kept) <= descriptors // 2


def test_responses_that_are_not_read_take_so_much_memory_and_no_more() -> None:
    connections = Connections(max_remote=10, max_unsent_bytes=100)
    made = admit(connections, 4)
    for one in made[:3]:
        connections.set_unsent(one, 40)
    assert aborted(made) == [0]
    connections.set_unsent(made[1], 0)
    connections.set_unsent(made[3], 60)
    assert aborted(made) == [0]
    connections.set_unsent(made[1], 500)
    assert aborted(made) == [0, 2, 3], "the newest may be of any size"


def test_unread_responses_of_remote_clients_do_not_count_for_clients_on_this_node() -> None:
    connections = Connections(max_unsent_bytes=100)
    (local,) = admit(connections, 1, is_local=True)
    connections.set_unsent(local, 90)
    for one in admit(connections, 5):
        connections.set_unsent(one, 90)
    assert not local.aborted


def test_each_error_is_counted_and_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now, seen = [0.0], list[ServingError]()
    errors = ErrorLog(seen.append, lambda: now[0])
    for _ in range(1000):
        errors.report(ServingError.MALFORMED, client="192.0.2.1")
    errors.report(ServingError.EVICTED)
    now[0] = LOG_INTERVAL_SECONDS
    errors.report(ServingError.MALFORMED, client="192.0.2.2")
    assert len(seen) == 1002
    fields = [record.__dict__["fields"] for record in caplog.records]
    assert fields == [
        {"times": 1, "client": "192.0.2.1"},
        {"times": 1},
        {"times": 1000, "client": "192.0.2.2"},
    ]
