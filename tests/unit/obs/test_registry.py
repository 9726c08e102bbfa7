"""Names, types, labels and buckets must equal kube-proxy's, or dashboards break."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pointsman.backends import mode_named
from pointsman.obs.registry import Metrics

DOCUMENT = Path(__file__).parents[3] / "docs" / "metrics.md"
FAMILY = ("ip_family",)
UPSTREAM = {
    "kubeproxy_sync_proxy_rules_duration_seconds": ("histogram", FAMILY, "iptables ipvs nftables"),
    "kubeproxy_sync_full_proxy_rules_duration_seconds": ("histogram", FAMILY, "iptables nftables"),
    "kubeproxy_sync_partial_proxy_rules_duration_seconds": ("histogram", FAMILY, "iptables nftables"),
    "kubeproxy_sync_proxy_rules_last_timestamp_seconds": ("gauge", FAMILY, "iptables ipvs nftables"),
    "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds": ("gauge", FAMILY, "iptables ipvs nftables"),
    "kubeproxy_network_programming_duration_seconds": ("histogram", FAMILY, "iptables ipvs nftables"),
    "kubeproxy_sync_proxy_rules_endpoint_changes_pending": ("gauge", (), "iptables ipvs nftables"),
    "kubeproxy_sync_proxy_rules_endpoint_changes_total": ("counter", (), "iptables ipvs nftables"),
    "kubeproxy_sync_proxy_rules_service_changes_pending": ("gauge", (), "iptables ipvs nftables"),
    "kubeproxy_sync_proxy_rules_service_changes_total": ("counter", (), "iptables ipvs nftables"),
    "kubeproxy_sync_proxy_rules_no_local_endpoints_total": (
        "gauge",
        ("traffic_policy", "ip_family"),
        "iptables ipvs nftables",
    ),
    "kubeproxy_proxy_healthz_total": ("counter", ("code",), "iptables ipvs nftables"),
    "kubeproxy_proxy_livez_total": ("counter", ("code",), "iptables ipvs nftables"),
    "kubeproxy_sync_proxy_rules_iptables_restore_failures_total": ("counter", FAMILY, "iptables ipvs"),
    "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total": ("counter", FAMILY, "iptables"),
    "kubeproxy_sync_proxy_rules_iptables_total": ("gauge", ("table", "ip_family"), "iptables"),
    "kubeproxy_sync_proxy_rules_iptables_last": ("gauge", ("table", "ip_family"), "iptables"),
    "kubeproxy_sync_proxy_rules_nftables_sync_failures_total": ("counter", FAMILY, "nftables"),
    "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total": ("counter", FAMILY, "nftables"),
    "kubeproxy_nftables_localhost_nodeport_listeners": ("gauge", FAMILY, "nftables"),
    "kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total": ("counter", FAMILY, "nftables"),
    "kubeproxy_conntrack_reconciler_sync_duration_seconds": ("histogram", FAMILY, "iptables ipvs nftables"),
    "kubeproxy_conntrack_reconciler_deleted_entries_total": ("counter", FAMILY, "iptables ipvs nftables"),
}


def filled(mode: str) -> Metrics:
    """Metrics with one sample in every vector."""
    metrics = Metrics(mode, mode_named(mode).metrics)
    groups = [group for group in vars(metrics).values() if type(group).__name__.endswith("Metrics")]
    for metric in (metric for group in groups for metric in vars(group).values()):
        labels = getattr(metric, "_labelnames", None)
        if labels is None:
            continue
        child = metric.labels(*("x" for _ in labels)) if labels else metric
        if hasattr(child, "observe"):
            child.observe(1)
        else:
            child.inc()
    return metrics


def parsed(body: bytes) -> dict[str, tuple[str, tuple[str, ...], list[str], str]]:
    """Type, label names, bucket bounds and help text by printed name."""
    found = {}
    for family in text_string_to_metric_families(body.decode()):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        sample = family.samples[0]
        bounds = [s.labels["le"] for s in family.samples if s.name.endswith("_bucket")]
        labels = tuple(label for label in sample.labels if label != "le")
        found[name] = (family.type, labels, bounds, family.documentation)
    return found


@pytest.mark.parametrize("mode", ["iptables", "ipvs", "nftables"])
def test_the_families_of_kube_proxy_exist_in_their_modes_only(mode: str) -> None:
    families = parsed(filled(mode).render())
    ours = {name for name in families if name.startswith("kubeproxy_")}
    assert ours == {name for name, (_, _, modes) in UPSTREAM.items() if mode in modes.split()}
    for name in ours:
        kind, labels, _ = UPSTREAM[name]
        assert families[name][0] == kind, name
        assert set(families[name][1]) == set(labels), name
        assert families[name][3].startswith("[ALPHA] "), name


def test_buckets_are_those_of_kube_proxy() -> None:
    families = parsed(filled("nftables").render())
    sync = families["kubeproxy_sync_proxy_rules_duration_seconds"][2]
    assert sync == [
        *("0.001", "0.002", "0.004", "0.008", "0.016", "0.032", "0.064", "0.128", "0.256", "0.512"),
        *("1.024", "2.048", "4.096", "8.192", "16.384", "+Inf"),
    ]
    programming = families["kubeproxy_network_programming_duration_seconds"][2]
    expected = ["0.25", "0.5", *(str(n) for n in range(1, 60)), *(str(n) for n in range(60, 120, 5))]
    assert programming == [*expected, "120", "150", "180", "210", "240", "270", "300", "+Inf"]


def test_our_programming_latency_has_buckets_from_a_millisecond() -> None:
    buckets = parsed(filled("nftables").render())["pointsman_programming_latency_seconds"][2]
    assert buckets == [
        *("0.001", "0.002", "0.005", "0.01", "0.02", "0.05", "0.1", "0.25", "0.5"),
        *("1", "2", "5", "10", "30", "60", "120", "300", "+Inf"),
    ]


def test_requests_have_the_labels_and_buckets_of_client_go() -> None:
    families = parsed(filled("nftables").render())
    seconds = ["0.005", "0.025", "0.1", "0.25", "0.5", "1", "2", "4", "8", "15", "30", "60", "+Inf"]
    sizes = ["64", "256", "512", "1024", "4096", "16384", "65536", "262144"]
    sizes += ["1.048576e+06", "4.194304e+06", "1.6777216e+07", "+Inf"]
    for name, bounds in (
        ("request_duration_seconds", seconds),
        ("rate_limiter_duration_seconds", seconds),
        ("request_size_bytes", sizes),
        ("response_size_bytes", sizes),
    ):
        kind, labels, found, text = families[f"rest_client_{name}"]
        assert (kind, set(labels), found) == ("histogram", {"verb", "host"}, bounds), name
        assert text.startswith("[ALPHA] ")


def test_registered_metrics_are_counted_by_stability() -> None:
    metrics = Metrics("nftables", mode_named("nftables").metrics)
    before = metrics.render().decode()
    assert 'registered_metrics_total{deprecated_version="",stability_level="STABLE"} 2.0' in before
    beta = 'registered_metrics_total{deprecated_version="",stability_level="BETA"} '
    assert f"{beta}4.0" in before
    metrics.add_scraped_gauge("more", "[BETA] One more", ("name",), lambda: {("a",): 0.0})
    assert f"{beta}5.0" in metrics.render().decode()


def test_vectors_without_samples_and_created_series_are_not_printed() -> None:
    text = Metrics("nftables").render().decode()
    assert "_created" not in text
    assert "kubeproxy_sync_proxy_rules_duration_seconds" not in text
    assert "kubeproxy_sync_proxy_rules_service_changes_total 0.0" in text
    assert "_created" not in filled("nftables").render().decode()


def test_a_gauge_may_end_in_total() -> None:
    metrics = Metrics("nftables")
    metrics.sync.no_local_endpoints.labels(traffic_policy="internal", ip_family="IPv4").set(2)
    text = metrics.render().decode()
    assert "# TYPE kubeproxy_sync_proxy_rules_no_local_endpoints_total gauge" in text
    assert (
        'kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family="IPv4",traffic_policy="internal"} 2.0'
        in text
    )


def test_counters_of_the_kernel_are_read_at_scrape_time_and_left_out_when_empty() -> None:
    metrics = Metrics("iptables")
    readings: dict[tuple[str, ...], float] = {}
    name = "kubeproxy_iptables_ct_state_invalid_dropped_packets_total"
    metrics.add_scraped_counter(name, "[ALPHA] Packets dropped", (), lambda: readings)
    assert name not in metrics.render().decode()
    readings[()] = 7
    assert f"{name} 7.0" in metrics.render().decode()


def test_process_metrics_are_there_and_nothing_is_shared_between_runs() -> None:
    first, second = Metrics("nftables"), Metrics("nftables")
    first.objects.service_changes.inc()
    assert "process_resident_memory_bytes" in first.render().decode()
    assert "kubeproxy_sync_proxy_rules_service_changes_total 0.0" in second.render().decode()


def test_every_metric_is_documented_with_its_type() -> None:
    documented = dict(re.findall(r"^\| `([a-z_]+)` \| (\w+) \|", DOCUMENT.read_text(), re.MULTILINE))
    existing: dict[str, str] = {}
    for mode in ("iptables", "ipvs", "nftables"):
        existing |= {
            name: kind
            for name, kind in Metrics(mode, mode_named(mode).metrics).list_families().items()
            if not name.startswith(("process_", "python_"))
        }
    assert existing.items() <= documented.items()
