"""The arithmetic of bench.packets, and the objects it serves."""

from __future__ import annotations

import pytest
from bench.packet_figures import Round, build_row, compute_ratio
from bench.packet_world import NODE_PORT, SERVER, build_objects, compute_measured_address


def _round(microseconds: float, throughput: float) -> Round:
    times = [microseconds * 1e-6] * 3
    return Round(times, times, times, throughput)


def test_a_ratio_compares_within_each_round() -> None:
    """A slow round hits both ways; medians of each alone would say 1.0 and hide it."""
    assert compute_ratio([2.0, 20.0, 22.0], [1.0, 10.0, 11.0]) == 2.0


def test_a_row_has_percentiles_of_all_rounds_and_ratios_to_the_direct_way() -> None:
    direct, service = [_round(10, 8e9), _round(20, 4e9)], [_round(15, 4e9), _round(30, 2e9)]
    found = build_row(direct, service, beside=[_round(12, 1e9), _round(12, 1e9)])
    assert found["connect_beside_p50_us"] == pytest.approx(12)
    assert found["connect_p10_us"] == pytest.approx(15)
    assert found["connect_p99_us"] == pytest.approx(30)
    assert found["round_trip_p50_us"] == pytest.approx(22.5)
    assert found["connect_to_direct"] == found["udp_query_to_direct"] == pytest.approx(1.5)
    assert found["throughput_gbit"] == pytest.approx(3)
    assert found["throughput_to_direct"] == pytest.approx(0.5)


def test_the_measured_service_stands_beside_the_others() -> None:
    node, service, endpoints, *others = build_objects(3)
    assert [node["kind"], service["kind"], endpoints["kind"]] == ["Node", "Service", "EndpointSlice"]
    assert len(others) == 6
    assert service["spec"]["clusterIP"] == compute_measured_address(3)
    assert {(port["protocol"], port["nodePort"]) for port in service["spec"]["ports"]} == {
        ("TCP", NODE_PORT),
        ("UDP", NODE_PORT),
    }
    assert {port["name"] for port in service["spec"]["ports"]} == {
        port["name"] for port in endpoints["ports"]
    }
    assert endpoints["endpoints"][0]["addresses"] == [SERVER]
