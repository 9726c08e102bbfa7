"""The arithmetic behind docs/evidence/scale.md."""

from __future__ import annotations

import math

import pytest
from bench.apiserver import drop_server_fields, find_collection
from bench.fleet_figures import Reading, compute_per_proxy, compute_returns, find_busiest_second, project_rows


def test_a_proxy_is_charged_its_share() -> None:
    before, after = Reading(0.0, 1_000, 2.0, 100.0), Reading(9.0, 41_000, 5.0, 120.0)
    assert compute_per_proxy(before, after, cpu=2.0, shares=20) == {"sent_kb": 2.0, "server_cpu_ms": 100.0}
    assert compute_per_proxy(before, after, cpu=-0.1, shares=20)["server_cpu_ms"] == 0.0


def test_returns_count_from_the_first_proxy_that_is_back() -> None:
    answers = [[1.0, 12.0], [2.0, 15.0, 16.0], [3.0, 13.0]]
    assert compute_returns(10.0, answers) == {"half_back_s": 1.0, "all_back_s": 3.0}


def test_a_proxy_that_never_returns_is_not_hidden() -> None:
    assert compute_returns(10.0, [[11.0], [11.5], [9.0]])["all_back_s"] == math.inf


def test_the_busiest_second_is_found_wherever_it_begins() -> None:
    assert find_busiest_second([0.0, 0.9, 1.1, 1.2, 1.85, 5.0]) == 4
    assert find_busiest_second([0.0, 1.0]) == 1
    assert find_busiest_second([]) == 0


def test_paper_multiplies_the_share_of_one_proxy_and_what_grows_with_the_endpoints() -> None:
    named = {"program": "p", "protocol": "HTTP/2"}
    lists = [
        {**named, "services": 0, "endpoints": 0, "sent_kb": 20.0, "server_cpu_ms": 6.0},
        {**named, "services": 1000, "endpoints": 10, "sent_kb": 118.0, "server_cpu_ms": 11.4},
    ]
    watches = [{**named, "sent_kb": 4.0, "server_cpu_ms": 0.02}]
    (row,) = project_rows(lists, watches, nodes=(3000,))
    assert row["all_lists_gb"] == pytest.approx(3.0)
    assert row["all_lists_cpu_s"] == pytest.approx(180.0)
    assert row["cores_while_all_start"] == pytest.approx(1.0)
    assert row["watch_per_second_mb"] == pytest.approx(200.0)
    assert row["watch_cores"] == pytest.approx(1.0)


def test_objects_are_written_as_by_somebody_who_never_saw_the_servers_copy() -> None:
    item = {
        "kind": "EndpointSlice",
        "metadata": {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "1"},
    }
    assert drop_server_fields(item)["metadata"] == {"name": "a", "namespace": "n"}
    assert find_collection(item) == "/apis/discovery.k8s.io/v1/namespaces/n/endpointslices"
    assert find_collection({"kind": "Node", "metadata": {"name": "x"}}) == "/api/v1/nodes"
