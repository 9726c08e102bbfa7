"""The registry of a run, printed as kube-proxy's client library prints.

Dashboards and alerts written for kube-proxy must keep working, so names, types, labels, buckets and even the
habits of its client library are kept: a gauge may end in `_total`, vectors without samples are not printed, no
`_created` series, whole bucket bounds print as `1` and not `1.0`.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from pointsman.obs import MetricGroup
from pointsman.obs.collectors import ProcessTraffic, Reading, Scraped
from pointsman.obs.families import (
    ConntrackMetrics,
    MetricFactory,
    ModeMetrics,
    ObjectMetrics,
    ProcessMetrics,
    RestMetrics,
    ServedMetrics,
    SyncMetrics,
    count_level,
)

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class _KubernetesStyle(Collector):
    """Families of a registry as kube-proxy's client library prints them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for family in sorted(self._registry.collect(), key=lambda family: family.name):
            created = f"{family.name}_created"
            family.samples = [_trim_bucket(sample) for sample in family.samples if sample.name != created]
            if family.samples:
                yield family


def _trim_bucket(sample: Sample) -> Sample:
    bound = sample.labels.get("le", "")
    if not bound.endswith(".0") or not sample.name.endswith("_bucket"):
        return sample
    return sample._replace(labels={**sample.labels, "le": bound[:-2]})


class Metrics:
    """The metrics of one run in one proxy mode; every attribute is safe to use from any thread."""

    def __init__(self, mode: str, groups: Collection[MetricGroup] = ()) -> None:
        self.mode = mode
        self._registry = CollectorRegistry()
        self._sli_registry = CollectorRegistry()
        self._levels: Counts[str] = Counts()
        make = MetricFactory(self._registry, groups, self._levels)
        self.sync = SyncMetrics(make)
        self.objects = ObjectMetrics(make)
        self.modes = ModeMetrics(make)
        self.conntrack = ConntrackMetrics(make)
        self.rest = RestMetrics(make)
        self.served = ServedMetrics(make, MetricFactory(self._sli_registry, groups, self._levels))
        self.process = ProcessMetrics(make)
        self.add_scraped_counter(
            "registered_metrics_total",
            "[BETA] Metrics registered, by stability level",
            ("stability_level", "deprecated_version"),
            lambda: {(level, ""): float(count) for level, count in sorted(self._levels.items())},
        )
        ProcessCollector(registry=self._registry)
        self._registry.register(ProcessTraffic())
        PlatformCollector(registry=self._registry)

    def add_scraped_counter(self, name: str, text: str, labels: Sequence[str], read: Reading) -> None:
        """Expose a counter that is kept elsewhere; `read` runs at every scrape and must not block or raise."""
        self._add_scraped(CounterMetricFamily, name, text, labels, read)

    def add_scraped_gauge(self, name: str, text: str, labels: Sequence[str], read: Reading) -> None:
        """Expose a gauge that is kept elsewhere; `read` runs at every scrape and must not block or raise."""
        self._add_scraped(GaugeMetricFamily, name, text, labels, read)

    def _add_scraped(
        self,
        kind: type[CounterMetricFamily | GaugeMetricFamily],
        name: str,
        text: str,
        labels: Sequence[str],
        read: Reading,
    ) -> None:
        count_level(self._levels, text)
        self._registry.register(Scraped(kind, name, text, labels, read))

    def add_kernel_counter(self, name: str, text: str, read: Callable[[], int | None]) -> None:
        """Expose a single counter of the kernel; None leaves it out of the scrape."""

        def read_one() -> Mapping[tuple[str, ...], float]:
            value = read()
            return {} if value is None else {(): float(value)}

        self.add_scraped_counter(name, text, (), read_one)

    def render(self) -> bytes:
        """Return the body of /metrics."""
        return generate_latest(_KubernetesStyle(self._registry))

    def render_slis(self) -> bytes:
        """Return the body of /metrics/slis."""
        return generate_latest(_KubernetesStyle(self._sli_registry))

    def list_families(self) -> dict[str, str]:
        """Return name and type of every family of this run, with or without samples."""
        found: dict[str, str] = {}
        for registry in (self._registry, self._sli_registry):
            for family in registry.collect():
                name = f"{family.name}_total" if family.type == "counter" else family.name
                found[name] = family.type
        return found
