"""Every name that a shipped query or document asks for is there on the metrics port of a real process."""

from __future__ import annotations

import re

import pytest
from tests.harness.node import needs_root
from tests.project.monitoring.conftest import Exposition
from tests.project.monitoring.queries import (
    DOCUMENT,
    dashboard,
    grouping_labels,
    metric_names,
    recorded,
    rules,
    variables,
)

pytestmark = needs_root

OF_A_TARGET = {"job", "instance", "le"}
NOT_IN_THESE_RUNS = {
    "kubeproxy_iptables_ct_state_invalid_dropped_packets_total": "needs nfacct in the kernel",
    "kubeproxy_iptables_localhost_nodeports_accepted_packets_total": "needs nfacct in the kernel",
    "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total": "documented as without samples",
    "kubeproxy_nftables_localhost_nodeport_rejected_packets_total": "documented as without samples",
    "kubeproxy_nftables_localhost_nodeport_listeners": "behind a feature gate",
    "kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total": "behind a feature gate",
    "pointsman_objects_skipped_total": "counted by reason, once there is one",
    "pointsman_object_warnings_total": "counted by reason, once there is one",
    "rest_client_exec_plugin_call_total": "needs a plugin in the kubeconfig",
    "pointsman_service_packets_total": "ipvs only",
    "pointsman_service_bytes_total": "ipvs only",
}


def test_every_query_reads_metrics_and_labels_that_exist(
    from_server: Exposition, from_files: Exposition
) -> None:
    names = from_server.sample_names | from_files.sample_names | recorded()
    labels = from_server.label_names | from_files.label_names | OF_A_TARGET
    for where, expression in {**rules(), **dashboard(), **variables()}.items():
        asked = metric_names(expression)
        assert asked or "up{" in expression, where
        assert asked <= names, where
        assert grouping_labels(expression) <= labels, where


def test_connections_are_told_by_the_zone_of_their_endpoint(from_server: Exposition) -> None:
    samples = from_server.families["pointsman_service_zone_connections"].samples
    zones = {sample.labels["zone"] for sample in samples if sample.labels["service"] == "web"}
    assert zones == {"zone-b"}


def test_every_documented_metric_exists(from_server: Exposition, from_files: Exposition) -> None:
    names = from_server.sample_names | from_files.sample_names
    names |= {name.removesuffix("_count") for name in names}
    documented = set(re.findall(r"^\| `([a-z_]+)` \| (?:counter|gauge|histogram) \|", DOCUMENT, re.MULTILINE))
    in_text = set(re.findall(r"`((?:kubeproxy|pointsman|rest_client|process)_\w+[a-z])`", DOCUMENT))
    not_offered = {
        "rest_client_request_retries_total",
        "rest_client_exec_plugin_ttl_seconds",
        "rest_client_exec_plugin_certificate_rotation_age",
    }
    missing = (documented | in_text) - names - not_offered
    assert missing == {name for name in NOT_IN_THESE_RUNS if name not in names}
    assert not_offered.isdisjoint(names)


def test_at_rest_no_sync_is_asked_for_later_than_the_last_one(from_files: Exposition) -> None:
    """Or the alert for waiting changes would fire on an idle node."""
    prefix = "kubeproxy_sync_proxy_rules_last"
    queued = from_files.values(f"{prefix}_queued_timestamp_seconds")
    synced = from_files.values(f"{prefix}_timestamp_seconds")
    assert queued.keys() == synced.keys() == {"IPv4", "IPv6"}
    for family, time in queued.items():
        assert time <= synced[family]


@pytest.mark.parametrize("family", ["IPv4", "IPv6"])
def test_what_alerts_look_for_an_increase_in_is_there_from_the_start(
    family: str, from_server: Exposition, from_files: Exposition
) -> None:
    prefix = "kubeproxy_sync_proxy_rules"
    assert from_server.values("pointsman_drift_repaired_total")[family] == 0
    assert from_server.values(f"{prefix}_nftables_sync_failures_total")[family] == 0
    assert from_files.values(f"{prefix}_iptables_restore_failures_total")[family] == 0


def test_files_have_no_age_and_watches_do(from_server: Exposition, from_files: Exposition) -> None:
    assert "pointsman_watch_age_seconds" in from_server.sample_names
    assert "pointsman_watch_age_seconds" not in from_files.sample_names
