"""Families whose values are read at scrape time, from the kernel or from a table of this process."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

Reading = Callable[[], Mapping[tuple[str, ...], float]]
"""Values by label values, taken at scrape time; an empty mapping leaves the family out."""

_NO_LIMIT: Final = float(2**64 - 1)


class Scraped(Collector):
    """One family; `kind` is its type."""

    def __init__(
        self,
        kind: type[CounterMetricFamily | GaugeMetricFamily],
        name: str,
        text: str,
        labels: Sequence[str],
        read: Reading,
    ) -> None:
        self._kind, self._name, self._text, self._labels, self._read = kind, name, text, labels, read

    def describe(self) -> Iterable[Metric]:
        return [self._build_family()]

    def collect(self) -> Iterable[Metric]:
        family = self._build_family()
        for values, number in self._read().items():
            family.add_metric(values, number)
        yield family

    def _build_family(self) -> CounterMetricFamily | GaugeMetricFamily:
        return self._kind(self._name, self._text, labels=self._labels)


class ProcessTraffic(Collector):
    """Process metrics of Go's client library that Python's lacks: traffic of the network namespace, memory limit."""

    def __init__(self, netstat: Path = Path("/proc/self/net/netstat")) -> None:
        self._netstat = netstat

    def collect(self) -> Iterable[Metric]:
        octets = _read_ip_octets(self._netstat)
        if octets is not None:
            received, sent = octets
            yield CounterMetricFamily(
                "process_network_receive_bytes_total",
                "Bytes received in the network namespace of the process",
                value=received,
            )
            yield CounterMetricFamily(
                "process_network_transmit_bytes_total",
                "Bytes sent in the network namespace of the process",
                value=sent,
            )
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        yield GaugeMetricFamily(
            "process_virtual_memory_max_bytes",
            "Maximum amount of virtual memory available in bytes",
            value=_NO_LIMIT if limit == resource.RLIM_INFINITY else limit,
        )


def _read_ip_octets(netstat: Path) -> tuple[int, int] | None:
    """Return bytes received and sent by IP; None where the kernel does not count them."""
    try:
        lines = [line.split() for line in netstat.read_text().splitlines() if line.startswith("IpExt:")]
        names, values = lines
        figures = dict(zip(names, values, strict=True))
        return int(figures["InOctets"]), int(figures["OutOctets"])
    except (OSError, ValueError, KeyError):
        return None
