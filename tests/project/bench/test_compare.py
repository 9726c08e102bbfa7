"""What two commits differ in, and what is kept of a release."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench import releases
from bench.compare import compare_rows
from bench.proxies import Histogram, read_histogram

BEFORE = {"services": 1, "rss_mib": 50.0, "rss_mib_range": [49, 51], "x_s": 1.0, "x_s_range": [0.9, 1.2]}
METRICS = """\
latency_seconds_bucket{ip_family="IPv4",le="0.1"} 50
latency_seconds_bucket{ip_family="IPv4",le="0.2"} 90
latency_seconds_bucket{ip_family="IPv4",le="+Inf"} 100
latency_seconds_sum{ip_family="IPv4"} 12
latency_seconds_bucket{ip_family="IPv6",le="0.1"} 7
"""


def test_a_figure_changed_when_the_ranges_of_the_rounds_are_apart() -> None:
    after = {**BEFORE, "rss_mib": 40.0, "rss_mib_range": [39, 41], "x_s": 1.3, "x_s_range": [1.1, 1.4]}
    rows = {row["figure"]: row for row in compare_rows(BEFORE, after)}
    assert rows["rss_mib"]["beyond_noise"] == "less"
    assert rows["rss_mib"]["change_percent"] == pytest.approx(-20)
    assert rows["x_s"]["beyond_noise"] == ""


def test_a_release_is_kept_once_for_each_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releases, "HISTORY", tmp_path)
    size = {"services": 10, "endpoints": 2}
    ours = {"program": "pointsman", **size, "full_sync_s": 0.5}
    theirs = {"program": "kube-proxy", **size, "full_sync_s": 5.0}
    paged = {**ours, "lists": "paged", "full_sync_s": 9.0}
    results = {"process": {"server": "s", "whole_process": [ours, theirs, paged]}}
    releases.keep("1.0", results)
    file = releases.keep("1.0", results)
    (row,) = json.loads(file.read_text())["releases"]
    assert (row["release"], row["full_sync_s"], row["full_sync_ratio"]) == ("1.0", 0.5, 10.0)
    assert list(releases.load()) == [releases.describe_machine()]


def test_a_quantile_is_read_from_buckets_as_prometheus_does() -> None:
    found = read_histogram(METRICS, "latency_seconds")
    assert (found.count, found.mean) == (100, 0.12)
    assert found.quantile(0.5) == pytest.approx(0.1)
    assert found.quantile(0.7) == pytest.approx(0.15)
    assert found.quantile(0.99) == 0.2, "beyond the last finite bound nothing is known"
    assert found.since(found).count == 0
    assert Histogram().quantile(0.99) == 0.0
