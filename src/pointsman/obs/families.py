"""Definitions of every metric, in groups: under kube-proxy's exact names where it has one, `pointsman_` where it has none.

Metrics of other proxy modes exist as attributes, so that callers need no conditions, but are not exposed.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Collection, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from pointsman.obs import MetricGroup

SYNC_BUCKETS: Final = tuple(0.001 * 2**n for n in range(15))
PROGRAMMING_BUCKETS: Final = (
    0.25,
    0.5,
    *(float(n) for n in range(1, 60)),
    *(float(n) for n in range(60, 120, 5)),
    *(float(n) for n in range(120, 301, 30)),
)
LATENCY_BUCKETS: Final = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0),
)
REQUEST_BUCKETS: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
SIZE_BUCKETS: Final = tuple(float(n) for n in (64, 256, 512, *(1024 * 4**n for n in range(8))))

_FAMILY: Final = ("ip_family",)
_SYNC: Final = "kubeproxy_sync_proxy_rules"


class MetricFactory:
    """Makes metrics of one registry, leaving those of other modes unregistered."""

    def __init__(
        self, registry: CollectorRegistry, groups: Collection[MetricGroup], levels: Counts[str]
    ) -> None:
        """`levels` counts what is registered by stability level."""
        self._registry, self._groups, self._levels = registry, groups, levels

    def counter(
        self, name: str, text: str, labels: Sequence[str] = (), group: MetricGroup | None = None
    ) -> Counter:
        return Counter(name, text, labels, registry=self._choose_registry(text, group))

    def gauge(
        self, name: str, text: str, labels: Sequence[str] = (), group: MetricGroup | None = None
    ) -> Gauge:
        return Gauge(name, text, labels, registry=self._choose_registry(text, group))

    def histogram(
        self,
        name: str,
        text: str,
        labels: Sequence[str] = (),
        group: MetricGroup | None = None,
        buckets: Sequence[float] = SYNC_BUCKETS,
    ) -> Histogram:
        return Histogram(name, text, labels, registry=self._choose_registry(text, group), buckets=buckets)

    def _choose_registry(self, text: str, group: MetricGroup | None) -> CollectorRegistry | None:
        if group is not None and group not in self._groups:
            return None
        count_level(self._levels, text)
        return self._registry


def count_level(levels: Counts[str], text: str) -> None:
    """Count the stability level with which help texts of Kubernetes begin; metrics of our own have none."""
    if text.startswith("["):
        levels[text[1:].partition("]")[0]] += 1


class SyncMetrics:
    """Syncs and what they wrote."""

    def __init__(self, make: MetricFactory) -> None:
        self.seconds = make.histogram(
            f"{_SYNC}_duration_seconds", "[ALPHA] Duration of a sync in seconds", _FAMILY
        )
        self.full_seconds = make.histogram(
            "kubeproxy_sync_full_proxy_rules_duration_seconds",
            "[ALPHA] Duration of a full sync in seconds",
            _FAMILY,
            MetricGroup.FULL_AND_PARTIAL_SYNCS,
        )
        self.partial_seconds = make.histogram(
            "kubeproxy_sync_partial_proxy_rules_duration_seconds",
            "[ALPHA] Duration of a partial sync in seconds",
            _FAMILY,
            MetricGroup.FULL_AND_PARTIAL_SYNCS,
        )
        self.last = make.gauge(
            f"{_SYNC}_last_timestamp_seconds", "[ALPHA] Time of the last successful sync", _FAMILY
        )
        self.last_queued = make.gauge(
            f"{_SYNC}_last_queued_timestamp_seconds", "[ALPHA] Time a sync was last requested", _FAMILY
        )
        self.programming_seconds = make.histogram(
            "kubeproxy_network_programming_duration_seconds",
            "[ALPHA] Seconds from the change of an endpoint until its rules are programmed",
            _FAMILY,
            buckets=PROGRAMMING_BUCKETS,
        )
        self.programming_latency = make.histogram(
            "pointsman_programming_latency_seconds",
            "The same, in buckets from 1 ms",
            _FAMILY,
            buckets=LATENCY_BUCKETS,
        )
        self.no_local_endpoints = make.gauge(
            f"{_SYNC}_no_local_endpoints_total",
            "[ALPHA] Services with a Local traffic policy and no endpoint on this node",
            ("traffic_policy", "ip_family"),
        )
        self.rules_owned = make.gauge(
            "pointsman_rules_owned",
            "Rules (iptables, per table) or elements (nftables, per set or map; ipvs, per kind) owned",
            ("ip_family", "table"),
        )
        self.batch_bytes = make.gauge(
            "pointsman_batch_bytes", "Size of the last batch sent to the kernel", _FAMILY
        )
        self.drift_repaired = make.counter(
            "pointsman_drift_repaired_total", "Times external changes to our rules were undone", _FAMILY
        )
        self.service_ports = make.gauge("pointsman_service_ports", "Service ports planned", _FAMILY)
        self.endpoints = make.gauge("pointsman_endpoints", "Endpoints planned", _FAMILY)
        self.address_conflicts = make.gauge(
            "pointsman_address_conflicts",
            "Addresses and node ports that a Service requests and another one holds",
            _FAMILY,
        )
        self.services_rejected = make.gauge(
            "pointsman_services_rejected", "Service ports that the kernel rejected in the last sync", _FAMILY
        )


class ObjectMetrics:
    """Objects and their changes."""

    def __init__(self, make: MetricFactory) -> None:
        self.endpoint_changes_pending = make.gauge(
            f"{_SYNC}_endpoint_changes_pending", "[ALPHA] Endpoint changes not yet programmed"
        )
        self.endpoint_changes = make.counter(
            f"{_SYNC}_endpoint_changes_total", "[ALPHA] Endpoint changes seen"
        )
        self.service_changes_pending = make.gauge(
            f"{_SYNC}_service_changes_pending", "[ALPHA] Service changes not yet programmed"
        )
        self.service_changes = make.counter(f"{_SYNC}_service_changes_total", "[ALPHA] Service changes seen")
        self.skipped = make.counter(
            "pointsman_objects_skipped_total",
            "Objects, or parts of them, skipped because they cannot be used",
            ("kind", "reason"),
        )
        self.warnings = make.counter(
            "pointsman_object_warnings_total",
            "Objects that are used although something about them is wrong",
            ("kind", "reason"),
        )


class ModeMetrics:
    """What only some modes have."""

    def __init__(self, make: MetricFactory) -> None:
        by_table = ("table", "ip_family")
        self.restore_failures = make.counter(
            f"{_SYNC}_iptables_restore_failures_total",
            "[ALPHA] Failed runs of iptables-restore",
            _FAMILY,
            MetricGroup.RESTORE_FAILURES,
        )
        self.partial_restore_failures = make.counter(
            f"{_SYNC}_iptables_partial_restore_failures_total",
            "[ALPHA] Failed runs of iptables-restore in a partial sync",
            _FAMILY,
            MetricGroup.IPTABLES_RULES,
        )
        self.iptables_rules = make.gauge(
            f"{_SYNC}_iptables_total", "[ALPHA] iptables rules owned", by_table, MetricGroup.IPTABLES_RULES
        )
        self.iptables_rules_written = make.gauge(
            f"{_SYNC}_iptables_last",
            "[ALPHA] iptables rules written by the last sync",
            by_table,
            MetricGroup.IPTABLES_RULES,
        )
        self.nftables_failures = make.counter(
            f"{_SYNC}_nftables_sync_failures_total",
            "[ALPHA] Failed nftables syncs",
            _FAMILY,
            MetricGroup.NFTABLES,
        )
        self.nftables_cleanup_failures = make.counter(
            f"{_SYNC}_nftables_cleanup_failures_total",
            "[ALPHA] Failed removals of unused nftables objects",
            _FAMILY,
            MetricGroup.NFTABLES,
        )
        self.localhost_listeners = make.gauge(
            "kubeproxy_nftables_localhost_nodeport_listeners",
            "[ALPHA] Listeners that serve node ports on loopback",
            _FAMILY,
            MetricGroup.NFTABLES,
        )
        self.localhost_listener_failures = make.counter(
            "kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total",
            "[ALPHA] Listeners for node ports on loopback that could not be opened",
            _FAMILY,
            MetricGroup.NFTABLES,
        )


class ConntrackMetrics:
    """The search for stale conntrack flows."""

    def __init__(self, make: MetricFactory) -> None:
        prefix = "kubeproxy_conntrack_reconciler"
        self.seconds = make.histogram(
            f"{prefix}_sync_duration_seconds",
            "[ALPHA] Duration of a search for stale conntrack flows in seconds",
            _FAMILY,
        )
        self.deleted = make.counter(
            f"{prefix}_deleted_entries_total", "[ALPHA] Stale conntrack flows deleted", _FAMILY
        )


class RestMetrics:
    """Requests to the API server."""

    def __init__(self, make: MetricFactory) -> None:
        by_verb = ("verb", "host")
        self.requests = make.counter(
            "rest_client_requests_total",
            "[ALPHA] Requests to the API server by HTTP status, method and host",
            ("code", "method", "host"),
        )
        self.seconds = make.histogram(
            "rest_client_request_duration_seconds",
            "[ALPHA] Duration of a request to the API server in seconds, from first wait to last byte",
            by_verb,
            buckets=REQUEST_BUCKETS,
        )
        self.wait_seconds = make.histogram(
            "rest_client_rate_limiter_duration_seconds",
            "[ALPHA] Seconds a request waited because of clientConnection.qps",
            by_verb,
            buckets=REQUEST_BUCKETS,
        )
        self.sent_bytes = make.histogram(
            "rest_client_request_size_bytes",
            "[ALPHA] Size of a request's body",
            by_verb,
            buckets=SIZE_BUCKETS,
        )
        self.received_bytes = make.histogram(
            "rest_client_response_size_bytes",
            "[ALPHA] Size of a response's body, uncompressed",
            by_verb,
            buckets=SIZE_BUCKETS,
        )
        self.plugin_calls = make.counter(
            "rest_client_exec_plugin_call_total",
            "[ALPHA] Calls of the credential plugin by exit status and outcome",
            ("code", "call_status"),
        )


class ServedMetrics:
    """Requests to the ports of this process."""

    def __init__(self, make: MetricFactory, make_sli: MetricFactory) -> None:
        self.healthz = make.counter(
            "kubeproxy_proxy_healthz_total", "[ALPHA] Responses of /healthz by HTTP status", ("code",)
        )
        self.livez = make.counter(
            "kubeproxy_proxy_livez_total", "[ALPHA] Responses of /livez by HTTP status", ("code",)
        )
        self.errors = make.counter(
            "pointsman_http_errors_total",
            "Connections and requests at the served ports that could not be kept or answered",
            ("reason",),
        )
        self.check_result = make_sli.gauge(
            "kubernetes_healthcheck",
            "[STABLE] Result of the last run of a health check, 1 is good",
            ("name", "type"),
        )
        self.check_runs = make_sli.counter(
            "kubernetes_healthchecks_total",
            "[STABLE] Runs of a health check by result",
            ("name", "status", "type"),
        )


class ProcessMetrics:
    """The process itself."""

    def __init__(self, make: MetricFactory) -> None:
        self.build_info = make.gauge(
            "kubernetes_build_info",
            "[BETA] Always 1; the labels describe the build",
            (
                *("major", "minor", "git_version", "git_commit", "git_tree_state", "build_date"),
                *("go_version", "compiler", "platform"),
            ),
        )
        make.counter("hidden_metrics_total", "[BETA] Metrics hidden: none ever is")
        make.counter("disabled_metrics_total", "[BETA] Metrics switched off: none ever is")
        self.datapath_probes = make.counter(
            "pointsman_datapath_probes_total",
            "Connections through the rules to this process itself, by result",
            ("ip_family", "result"),
        )
