"""Charts are well-formed and put values where they belong."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest
from bench.charts import OF_THE_PROCESS, chart_fleet, chart_packets, chart_services
from bench.measured import compute_percentile, summarize
from bench.svg import Bar, Bars, Curves, Point, Series, list_decades, list_quarters, render_svg

ROWS = [
    {"program": "pointsman", "services": 0, "full_sync_s": 0.1},
    {"program": "kube-proxy", "services": 100, "full_sync_s": 1.0},
    {"program": "pointsman", "services": 10000, "full_sync_s": 1.0, "full_sync_s_range": [0.5, 2.0]},
    {"program": "pointsman", "services": 100, "full_sync_s": 0.01},
    {"program": "pointsman", "services": 1000},
]


def _heights(text: str) -> list[float]:
    return [float(found) for found in re.findall(r'cy="([\d.]+)"', text)]


def test_a_logarithmic_axis_gives_every_decade_the_same_length() -> None:
    points = tuple(Point(x, y) for x, y in ((1, 0.1), (10, 1.0), (100, 10.0)))
    low, middle, high = _heights(
        render_svg(Curves("t", "x", "y", (Series("s", "blue", points),), logarithmic=True))
    )
    assert low - middle == pytest.approx(middle - high, abs=0.2)
    assert low > high


def test_a_linear_axis_starts_at_nothing() -> None:
    zero, half, full = _heights(
        render_svg(Curves("t", "x", "y", (Series("s", "blue", (Point(0, 0), Point(1, 50), Point(2, 100))),)))
    )
    assert half == pytest.approx((zero + full) / 2)


def test_error_bars_appear_where_there_were_several_rounds() -> None:
    chart = chart_services(ROWS, OF_THE_PROCESS["first-sync.svg"])
    assert render_svg(chart).count('class="bar') == 1


def test_a_curve_has_what_was_measured_in_order_and_nothing_at_no_services() -> None:
    chart = chart_services(ROWS, OF_THE_PROCESS["first-sync.svg"])
    assert {series.label: [point.x for point in series.points] for series in chart.series} == {
        "kube-proxy": [100],
        "pointsman": [100, 10000],
    }


def test_packets_have_a_curve_for_each_program_and_mode_that_served() -> None:
    found = {"services": 100, "from": "pod", "connect_p50_us": 20.0}
    rows = [
        {**found, "program": "none", "mode": ""},
        {**found, "program": "pointsman", "mode": "nftables"},
        {**found, "program": "pointsman", "mode": "nftables", "from": "outside"},
        {"services": 100, "program": "kube-proxy", "mode": "iptables", "from": "did not serve within 30 s"},
    ]
    chart = chart_packets(rows, "pod")
    assert [series.label for series in chart.series] == ["no proxy, direct", "pointsman, nftables"]
    assert all(len(series.points) == 1 for series in chart.series)


def test_bars_are_as_long_as_their_values() -> None:
    text = render_svg(Bars("a < b", "kB", (Bar("one", "blue", 10.0), Bar("two", "orange", 5.0))))
    long, short = (float(found) for found in re.findall(r'width="([\d.]+)" height="20"', text))
    assert long == 2 * short
    assert ET.fromstring(text)[0].text == "a < b"


def test_a_fleet_is_named_by_program_and_format() -> None:
    named = {"program": "pointsman", "protocol": "HTTP/2"}
    rows = [{**named, "services": 0, "sent_kb": 1.0}, {**named, "services": 10, "sent_kb": 3.0}]
    chart = chart_fleet(rows, "sent_kb", "t", "kB")
    assert chart.bars == (Bar("pointsman, HTTP/2", "blue", 3.0),)


def test_ticks_are_round_and_enclose_the_values() -> None:
    assert list_decades(0.02, 30) == [0.01, 0.1, 1, 10, 100]
    assert list_decades(1, 1) == [1, 10]
    assert list_quarters(37) == [0, 10, 20, 30, 40]
    assert list_quarters(100)[-1] == 100


def test_rounds_become_a_median_and_a_range() -> None:
    rounds = [
        {"program": "p", "cold_s": 3.0},
        {"program": "p", "cold_s": 1.0},
        {"program": "p", "cold_s": 2.0},
    ]
    assert summarize(rounds) == {"program": "p", "cold_s": 2.0, "cold_s_range": [1.0, 3.0]}
    assert summarize(rounds[:1]) == {"program": "p", "cold_s": 3.0}


def test_percentiles_are_values_that_occurred() -> None:
    assert compute_percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert compute_percentile([1.0], 0.99) == 1.0
