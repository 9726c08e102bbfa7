"""The simulation of docs/evidence/scale.md."""

from __future__ import annotations

import random

from bench.simulate import LISTENING_SECONDS, Costs, Request, finish_times, restart_attempts, server_restart


def test_requests_wait_for_a_free_core_in_the_order_of_their_arrival() -> None:
    requests = [Request(1.0, 2.0), Request(0.0, 2.0), Request(0.5, 1.0)]
    assert finish_times(requests, 1) == [5.0, 2.0, 3.0]
    assert finish_times(requests, 2) == [3.5, 2.0, 1.5]


def test_attempts_go_on_until_the_server_listens() -> None:
    *refused, answered = restart_attempts(random.Random(1))
    assert all(at < LISTENING_SECONDS for at in refused)
    assert answered >= LISTENING_SECONDS


def test_a_restart_takes_longer_for_more_nodes() -> None:
    costs = Costs(restart=0.04, ready=4.0, listing=0.04, event=1e-5)
    few, many = (server_restart(nodes, 2, costs, random.Random(1)) for nodes in (10, 1000))
    assert few["last_s"] < many["last_s"]
    assert 0.5 * 1000 * 0.04 / 2 < many["last_s"] < 2 * 1000 * 0.04 / 2
