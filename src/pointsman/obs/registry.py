"""Every metric of a run, under kube-proxy's exact names where it has one and `pointsman_` where it has none.

Dashboards and alerts written for kube-proxy must keep working, so names, types, labels, buckets and even the
habits of its client library are kept: a gauge may end in `_total`, vectors without samples are not printed, no
`_created` series, whole bucket bounds print as `1` and not `1.0`. Metrics of other proxy modes exist as
attributes, so callers need no conditions, but are not exposed.

There is no global registry: a run makes its own `Metrics`, and a test as many as it likes.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from pointsman.obs import MetricGroup
from pointsman.obs.collectors import ProcessTraffic, Reading, Scraped

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

SYNC_BUCKETS: Final = tuple(0.001 * 2**n for n in range(15))
PROGRAMMING_BUCKETS: Final = (
    0.25,
    0.5,
    *(float(n) for n in range(1, 60)),
    *(float(n) for n in range(60, 120, 5)),
    *(float(n) for n in range(120, 301, 30)),
)
REQUEST_BUCKETS: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
SIZE_BUCKETS: Final = tuple(float(n) for n in (64, 256, 512, *(1024 * 4**n for n in range(8))))


class _AsKubernetesPrints(Collector):
    """The registry's families as kube-proxy's client library would print them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for family in sorted(self._registry.collect(), key=lambda family: family.name):
            created = f"{family.name}_created"
            family.samples = [_go_bucket(sample) for sample in family.samples if sample.name != created]
            if family.samples:
                yield family


def _go_bucket(sample: Sample) -> Sample:
    bound = sample.labels.get("le", "")
    if not bound.endswith(".0") or not sample.name.endswith("_bucket"):
        return sample
    return sample._replace(labels={**sample.labels, "le": bound[:-2]})


def _count_level(levels: Counts[str], text: str) -> None:
    """Help texts of Kubernetes begin with a stability level; our own metrics have none."""
    if text.startswith("["):
        levels[text[1:].partition("]")[0]] += 1


class _Family:
    """Makes metrics of one registry, leaving those of other modes unregistered."""

    def __init__(
        self, registry: CollectorRegistry, groups: Collection[MetricGroup], levels: Counts[str]
    ) -> None:
        self._registry, self._groups, self._levels = registry, groups, levels

    def _target(self, text: str, group: MetricGroup | None) -> CollectorRegistry | None:
        if group is not None and group not in self._groups:
            return None
        _count_level(self._levels, text)
        return self._registry

    def counter(
        self, name: str, text: str, labels: Sequence[str] = (), group: MetricGroup | None = None
    ) -> Counter:
        return Counter(name, text, labels, registry=self._target(text, group))

    def gauge(
        self, name: str, text: str, labels: Sequence[str] = (), group: MetricGroup | None = None
    ) -> Gauge:
        return Gauge(name, text, labels, registry=self._target(text, group))

    def histogram(
        self,
        name: str,
        text: str,
        labels: Sequence[str] = (),
        group: MetricGroup | None = None,
        buckets: Sequence[float] = SYNC_BUCKETS,
    ) -> Histogram:
        return Histogram(name, text, labels, registry=self._target(text, group), buckets=buckets)


class Metrics:
    """The metrics of one run in one proxy mode; every attribute is safe to use from any thread."""

    def __init__(self, mode: str, groups: Collection[MetricGroup] = ()) -> None:
        self.mode = mode
        self._registry = CollectorRegistry()
        self._sli_registry = CollectorRegistry()
        self._levels: Counts[str] = Counts()
        family = _Family(self._registry, groups, self._levels)
        self._define_sync(family)
        self._define_modes(family)
        self._define_kubernetes(family)
        self._define_own(family)
        slis = _Family(self._sli_registry, groups, self._levels)
        self.healthcheck = slis.gauge(
            "kubernetes_healthcheck",
            "[STABLE] Result of the last run of a health check, 1 is good",
            ["name", "type"],
        )
        self.healthchecks = slis.counter(
            "kubernetes_healthchecks_total",
            "[STABLE] Runs of a health check by result",
            ["name", "status", "type"],
        )
        ProcessCollector(registry=self._registry)
        self._registry.register(ProcessTraffic())
        PlatformCollector(registry=self._registry)

    def _define_sync(self, family: _Family) -> None:
        by_family = ["ip_family"]
        prefix = "kubeproxy_sync_proxy_rules"
        self.sync_seconds = family.histogram(
            f"{prefix}_duration_seconds", "[ALPHA] Duration of a sync in seconds", by_family
        )
        self.sync_full_seconds = family.histogram(
            "kubeproxy_sync_full_proxy_rules_duration_seconds",
            "[ALPHA] Duration of a full sync in seconds",
            by_family,
            MetricGroup.FULL_AND_PARTIAL_SYNCS,
        )
        self.sync_partial_seconds = family.histogram(
            "kubeproxy_sync_partial_proxy_rules_duration_seconds",
            "[ALPHA] Duration of a partial sync in seconds",
            by_family,
            MetricGroup.FULL_AND_PARTIAL_SYNCS,
        )
        self.last_sync = family.gauge(
            f"{prefix}_last_timestamp_seconds", "[ALPHA] Time of the last successful sync", by_family
        )
        self.last_queued = family.gauge(
            f"{prefix}_last_queued_timestamp_seconds", "[ALPHA] Time a sync was last asked for", by_family
        )
        self.programming_seconds = family.histogram(
            "kubeproxy_network_programming_duration_seconds",
            "[ALPHA] Seconds from the change of an endpoint to its rules being in force",
            by_family,
            buckets=PROGRAMMING_BUCKETS,
        )
        self.endpoint_changes_pending = family.gauge(
            f"{prefix}_endpoint_changes_pending", "[ALPHA] Endpoint changes not yet in force"
        )
        self.endpoint_changes = family.counter(
            f"{prefix}_endpoint_changes_total", "[ALPHA] Endpoint changes seen"
        )
        self.service_changes_pending = family.gauge(
            f"{prefix}_service_changes_pending", "[ALPHA] Service changes not yet in force"
        )
        self.service_changes = family.counter(
            f"{prefix}_service_changes_total", "[ALPHA] Service changes seen"
        )
        self.no_local_endpoints = family.gauge(
            f"{prefix}_no_local_endpoints_total",
            "[ALPHA] Services with a Local traffic policy and no endpoint on this node",
            ["traffic_policy", "ip_family"],
        )
        self.healthz = family.counter(
            "kubeproxy_proxy_healthz_total", "[ALPHA] Answers of /healthz by HTTP status", ["code"]
        )
        self.livez = family.counter(
            "kubeproxy_proxy_livez_total", "[ALPHA] Answers of /livez by HTTP status", ["code"]
        )
        self.conntrack_seconds = family.histogram(
            "kubeproxy_conntrack_reconciler_sync_duration_seconds",
            "[ALPHA] Duration of a search for stale conntrack flows in seconds",
            by_family,
        )
        self.conntrack_deleted = family.counter(
            "kubeproxy_conntrack_reconciler_deleted_entries_total",
            "[ALPHA] Stale conntrack flows deleted",
            by_family,
        )

    def _define_modes(self, family: _Family) -> None:
        by_family, by_table = ["ip_family"], ["table", "ip_family"]
        prefix = "kubeproxy_sync_proxy_rules"
        self.restore_failures = family.counter(
            f"{prefix}_iptables_restore_failures_total",
            "[ALPHA] Failed runs of iptables-restore",
            by_family,
            MetricGroup.RESTORE_FAILURES,
        )
        self.partial_restore_failures = family.counter(
            f"{prefix}_iptables_partial_restore_failures_total",
            "[ALPHA] Failed runs of iptables-restore in a partial sync",
            by_family,
            MetricGroup.IPTABLES_RULES,
        )
        self.iptables_rules = family.gauge(
            f"{prefix}_iptables_total", "[ALPHA] iptables rules owned", by_table, MetricGroup.IPTABLES_RULES
        )
        self.iptables_rules_written = family.gauge(
            f"{prefix}_iptables_last",
            "[ALPHA] iptables rules written by the last sync",
            by_table,
            MetricGroup.IPTABLES_RULES,
        )
        self.nftables_failures = family.counter(
            f"{prefix}_nftables_sync_failures_total",
            "[ALPHA] Failed nftables syncs",
            by_family,
            MetricGroup.NFTABLES,
        )
        self.nftables_cleanup_failures = family.counter(
            f"{prefix}_nftables_cleanup_failures_total",
            "[ALPHA] Failed removals of unused nftables objects",
            by_family,
            MetricGroup.NFTABLES,
        )
        self.localhost_listeners = family.gauge(
            "kubeproxy_nftables_localhost_nodeport_listeners",
            "[ALPHA] Listeners that serve node ports on loopback",
            by_family,
            MetricGroup.NFTABLES,
        )
        self.localhost_listener_failures = family.counter(
            "kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total",
            "[ALPHA] Listeners for node ports on loopback that could not be made",
            by_family,
            MetricGroup.NFTABLES,
        )

    def _define_kubernetes(self, family: _Family) -> None:
        self.build_info = family.gauge(
            "kubernetes_build_info",
            "[BETA] Always 1; the labels say what is running",
            [
                "major",
                "minor",
                "git_version",
                "git_commit",
                "git_tree_state",
                "build_date",
                "go_version",
                "compiler",
                "platform",
            ],
        )
        self.rest_requests = family.counter(
            "rest_client_requests_total",
            "[ALPHA] Requests to the API server by HTTP status, method and host",
            ["code", "method", "host"],
        )
        by_verb = ["verb", "host"]
        self.rest_seconds = family.histogram(
            "rest_client_request_duration_seconds",
            "[ALPHA] Duration of a request to the API server in seconds, from first wait to last byte",
            by_verb,
            buckets=REQUEST_BUCKETS,
        )
        self.rest_waits = family.histogram(
            "rest_client_rate_limiter_duration_seconds",
            "[ALPHA] Seconds a request waited for its turn under clientConnection.qps",
            by_verb,
            buckets=REQUEST_BUCKETS,
        )
        self.rest_sent = family.histogram(
            "rest_client_request_size_bytes",
            "[ALPHA] Size of a request's body",
            by_verb,
            buckets=SIZE_BUCKETS,
        )
        self.rest_received = family.histogram(
            "rest_client_response_size_bytes",
            "[ALPHA] Size of an answer's body, uncompressed",
            by_verb,
            buckets=SIZE_BUCKETS,
        )
        self.plugin_calls = family.counter(
            "rest_client_exec_plugin_call_total",
            "[ALPHA] Calls of the credential plugin by exit status and outcome",
            ["code", "call_status"],
        )
        self.metrics_hidden = family.counter("hidden_metrics_total", "[BETA] Metrics hidden: none ever is")
        self.metrics_disabled = family.counter(
            "disabled_metrics_total", "[BETA] Metrics switched off: none ever is"
        )
        self.add_scraped_counter(
            "registered_metrics_total",
            "[BETA] Metrics registered, by stability level",
            ("stability_level", "deprecated_version"),
            lambda: {(level, ""): float(count) for level, count in sorted(self._levels.items())},
        )

    def _define_own(self, family: _Family) -> None:
        by_family = ["ip_family"]
        self.objects_skipped = family.counter(
            "pointsman_objects_skipped_total",
            "Objects, or parts of them, left out because they cannot be used",
            ["kind", "reason"],
        )
        self.object_warnings = family.counter(
            "pointsman_object_warnings_total",
            "Objects that are used although their authors should know of something",
            ["kind", "reason"],
        )
        self.config_reloads = family.counter(
            "pointsman_config_reloads_total", "Changes of the configuration file by result", ["result"]
        )
        self.http_errors = family.counter(
            "pointsman_http_errors_total",
            "Connections and requests at the served ports that could not be kept or answered",
            ["reason"],
        )
        self.datapath_probes = family.counter(
            "pointsman_datapath_probes_total",
            "Connections through the rules to this process itself, by result",
            ["ip_family", "result"],
        )
        self.rules_owned = family.gauge(
            "pointsman_rules_owned",
            "Rules (iptables, per table) or elements (nftables, per set or map; ipvs, per kind) owned",
            ["ip_family", "table"],
        )
        self.batch_bytes = family.gauge(
            "pointsman_batch_bytes", "Size of the last batch sent to the kernel", by_family
        )
        self.drift_repaired = family.counter(
            "pointsman_drift_repaired_total", "Times foreign changes to our rules were undone", by_family
        )
        self.service_ports = family.gauge("pointsman_service_ports", "Service ports planned", by_family)
        self.endpoints = family.gauge("pointsman_endpoints", "Endpoints planned", by_family)
        self.services_rejected = family.gauge(
            "pointsman_services_rejected", "Service ports the kernel refused in the last sync", by_family
        )

    def add_scraped_counter(self, name: str, text: str, labels: Sequence[str], read: Reading) -> None:
        """Expose a counter kept by somebody else; `read` runs at every scrape and must not block or raise."""
        self._add_scraped(CounterMetricFamily, name, text, labels, read)

    def add_scraped_gauge(self, name: str, text: str, labels: Sequence[str], read: Reading) -> None:
        """Expose what somebody else knows already; `read` runs at every scrape and must not block or raise."""
        self._add_scraped(GaugeMetricFamily, name, text, labels, read)

    def _add_scraped(
        self,
        kind: type[CounterMetricFamily | GaugeMetricFamily],
        name: str,
        text: str,
        labels: Sequence[str],
        read: Reading,
    ) -> None:
        _count_level(self._levels, text)
        self._registry.register(Scraped(kind, name, text, labels, read))

    def add_kernel_counter(self, name: str, text: str, read: Callable[[], int | None]) -> None:
        """Expose a single counter kept by the kernel; None leaves it out of the scrape."""

        def reading() -> Mapping[tuple[str, ...], float]:
            value = read()
            return {} if value is None else {(): float(value)}

        self.add_scraped_counter(name, text, (), reading)

    def exposition(self) -> bytes:
        """The body of /metrics."""
        return generate_latest(_AsKubernetesPrints(self._registry))

    def sli_exposition(self) -> bytes:
        """The body of /metrics/slis."""
        return generate_latest(_AsKubernetesPrints(self._sli_registry))

    def families(self) -> dict[str, str]:
        """Name and type of every family of this run, samples or not: what the documentation must list."""
        found: dict[str, str] = {}
        for registry in (self._registry, self._sli_registry):
            for family in registry.collect():
                name = f"{family.name}_total" if family.type == "counter" else family.name
                found[name] = family.type
        return found
