"""The simulation of docs/evidence/scale.md."""

from __future__ import annotations

import random

import pytest
from bench.simulate import (
    CONFIGMAP_SECONDS,
    LISTENING_SECONDS,
    ROLLED_ENDPOINTS,
    ROLLED_PER_SECOND,
    SLICE_ENDPOINTS,
    Costs,
    Request,
    config_map,
    finish_times,
    restart_attempts,
    rolling_service,
    server_restart,
)


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


def test_lists_after_a_new_config_map_queue_only_where_they_come_faster_than_they_are_served() -> None:
    costs = Costs(restart=0.04, ready=4.0, listing=0.04, event=1e-5)
    idle = config_map(10, 2, costs, random.Random(1))
    assert idle["half_s"] == pytest.approx(costs.listing), "served at once"
    nodes = int(4 * CONFIGMAP_SECONDS * 2 / costs.listing)
    busy = config_map(nodes, 2, costs, random.Random(1))
    assert busy["last_s"] == pytest.approx(3 * CONFIGMAP_SECONDS, rel=0.05), "four times the capacity"


def test_changes_of_a_rolling_service_queue_when_all_nodes_cost_more_than_the_cores() -> None:
    one = Costs(restart=0.0, ready=0.0, listing=0.0, event=1e-5)
    each = one.event * SLICE_ENDPOINTS / 10
    few = rolling_service(10, 2, one, random.Random(1))
    assert few["last_s"] == pytest.approx(each * 10 / 2), "served at once"
    nodes = int(2 * 2 / each / ROLLED_PER_SECOND)
    many = rolling_service(nodes, 2, one, random.Random(1))
    took = ROLLED_ENDPOINTS / 10 / ROLLED_PER_SECOND
    assert many["last_s"] == pytest.approx(took, rel=0.05), (
        "twice the capacity, so the last waits as long again"
    )
