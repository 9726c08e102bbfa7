"""Figures of the benchmark of many nodes, from what their proxies and the machine counted."""

from __future__ import annotations

import pytest
from bench.charts import chart_latency
from bench.proxies import Histogram
from bench.slo import Usage, compute_usage, read_latency, summarize_latencies

FAST = Histogram((0.001, 0.01, float("inf")), (100.0, 100.0, 100.0), 0.1)
SLOW = Histogram((0.001, 0.01, float("inf")), (0.0, 50.0, 50.0), 0.25)
KUBE_PROXY = """\
kubeproxy_network_programming_duration_seconds_bucket{ip_family="IPv4",le="0.25"} 4
kubeproxy_network_programming_duration_seconds_bucket{ip_family="IPv4",le="+Inf"} 4
kubeproxy_network_programming_duration_seconds_sum{ip_family="IPv4"} 1
"""
OURS = KUBE_PROXY.replace("kubeproxy_network_programming_duration", "pointsman_programming_latency")


def test_the_slowest_proxies_decide_the_percentile_and_the_mean_is_that_of_the_proxies() -> None:
    row = summarize_latencies([FAST] * 50 + [SLOW] * 2, changes=100)
    assert row["mean_ms"] == pytest.approx((50 * 1.0 + 2 * 5.0) / 52)
    assert row["p99_ms"] == pytest.approx(9.91)
    assert row["all_within_s"] == pytest.approx(0.01)
    assert row["counted_percent"] == pytest.approx(100 * 51 / 52)


def test_usage_is_what_was_added_and_the_server_may_have_been_restarted() -> None:
    row = compute_usage(Usage(1.0, 9.0, 10.0, 100.0), Usage(3.0, 2.0, 25.0, 120.0))
    assert row == {"proxies_cpu_s": 2.0, "server_cpu_s": 0.0, "machine_busy_percent": 75.0}


def test_our_own_histogram_is_read_where_a_proxy_has_it() -> None:
    assert read_latency(KUBE_PROXY).mean == 0.25
    assert read_latency(OURS.replace(" 1\n", " 2\n") + KUBE_PROXY).mean == 0.5
    assert read_latency("") == Histogram()


def test_the_chart_has_a_curve_for_each_program_with_the_most_services() -> None:
    rows = [
        {"program": program, "services": services, "changes_per_second": rate, "mean_ms": 2.0 * rate}
        for program in ("pointsman", "kube-proxy")
        for services in (100, 1000)
        for rate in (1.0, 10.0)
    ]
    idle = {"program": "pointsman", "services": 1000, "changes_per_second": 0.0}
    chart = chart_latency([idle, *rows])
    assert [series.label for series in chart.series] == ["pointsman", "kube-proxy"]
    assert [(point.x, point.y) for point in chart.series[0].points] == [(1.0, 2.0), (10.0, 20.0)]
    assert "1,000 Services" in chart.title
