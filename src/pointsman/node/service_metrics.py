"""Metrics per service from kernel counters: opt-in, because every Service adds time series.

The family's worker thread reads the counters every few seconds, and a scrape gets the last reading. Beyond the limit, Services share
one series, so that a large cluster cannot overload Prometheus by accident.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from pointsman.backends.contract import Traffic
from pointsman.errors import KernelError
from pointsman.model.addresses import Family
from pointsman.model.plan import ServicePlan
from pointsman.model.service import ServicePortName
from pointsman.node.family import FamilyProxy
from pointsman.obs.log import get_log
from pointsman.obs.registry import Metrics

READ_INTERVAL_SECONDS, FIRST_READ_INTERVAL_SECONDS = 10.0, 1.0
"""The second one applies until there is anything to read, which is soon after the start."""

SERVICE_LABELS = ("namespace", "service", "port", "protocol", "ip_family")
CONNECTIONS = "pointsman_service_connections_total"
ENDPOINT_CONNECTIONS = "pointsman_endpoint_connections_total"
ZONE_CONNECTIONS = "pointsman_service_zone_connections_total"
PACKETS = "pointsman_service_packets_total"
BYTES = "pointsman_service_bytes_total"

_Endpoint = tuple[ServicePortName, str]
"""Service port and `ip:port`."""

Zone = tuple[ServicePortName, str]
"""Service port and zone; empty for an endpoint that names none."""

Reading = dict[str, Counter[tuple[str, ...]]]

_log = get_log(__name__)


class ServiceMetrics:
    """Keeps the last reading of every family and hands it to scrapes."""

    def __init__(self, metrics: Metrics, limit: int) -> None:
        self._limit = limit
        self._readings: dict[Family, Reading] = {}
        self._zones: dict[Family, ZoneTotals] = {}
        for name, text, labels in (
            (CONNECTIONS, "New connections per service port", SERVICE_LABELS),
            (ENDPOINT_CONNECTIONS, "New connections per endpoint", (*SERVICE_LABELS, "endpoint")),
            (
                ZONE_CONNECTIONS,
                "New connections per service port and zone of the endpoint",
                (*SERVICE_LABELS, "zone"),
            ),
            (PACKETS, "Packets per service port, both directions (ipvs)", SERVICE_LABELS),
            (BYTES, "Bytes per service port, both directions (ipvs)", SERVICE_LABELS),
        ):
            metrics.add_scraped_counter(name, text, labels, self._build_reader(name))

    async def run(self, families: Iterable[FamilyProxy]) -> None:
        """Read until cancelled."""
        families = list(families)
        while True:
            for family in families:
                backend = family.backend
                try:
                    traffic = await family.run_blocking(backend.count_traffic)
                except KernelError as error:
                    _log.error("Cannot read service counters", err=error, ipFamily=family.family.value)
                    continue
                plans = (await family.snapshot()).plans
                await self.read(traffic, family.family, plans)
            has_traffic = any(reading[CONNECTIONS] for reading in self._readings.values())
            await asyncio.sleep(READ_INTERVAL_SECONDS if has_traffic else FIRST_READ_INTERVAL_SECONDS)

    async def read(
        self, traffic: Traffic, family: Family, plans: Mapping[ServicePortName, ServicePlan]
    ) -> None:
        """Take the newest counters of a family; plans have the zones of its endpoints.

        Adding up a hundred thousand endpoints would block the event loop for too long, so it happens on a thread.
        """
        self._readings[family] = await asyncio.to_thread(self._build_reading, traffic, family, plans)

    def _build_reading(
        self, traffic: Traffic, family: Family, plans: Mapping[ServicePortName, ServicePlan]
    ) -> Reading:
        totals = self._zones.setdefault(family, ZoneTotals())
        zones = totals.add(traffic.endpoint_connections, plans)
        return limit_services(build_reading(traffic, family, zones), self._limit)

    def _build_reader(self, name: str) -> Callable[[], Mapping[tuple[str, ...], float]]:
        def merge() -> Mapping[tuple[str, ...], float]:
            total: Counter[tuple[str, ...]] = Counter()
            for reading in self._readings.values():
                total.update(reading.get(name, {}))
            return total

        return merge


def build_reading(traffic: Traffic, family: Family, zones: Mapping[Zone, int] | None = None) -> Reading:
    """Return values by metric and label values."""
    return {
        CONNECTIONS: _label(traffic.connections, family),
        ENDPOINT_CONNECTIONS: _label_parts(traffic.endpoint_connections, family),
        ZONE_CONNECTIONS: _label_parts(zones or {}, family),
        PACKETS: _label(traffic.packets, family),
        BYTES: _label(traffic.bytes, family),
    }


def _label(figures: Mapping[ServicePortName, int], family: Family) -> Counter[tuple[str, ...]]:
    return Counter({build_labels(name, family): number for name, number in figures.items()})


def _label_parts(
    figures: Mapping[tuple[ServicePortName, str], int], family: Family
) -> Counter[tuple[str, ...]]:
    return Counter({(*build_labels(name, family), part): number for (name, part), number in figures.items()})


def build_labels(name: ServicePortName, family: Family) -> tuple[str, ...]:
    return (name.namespace, name.service, name.port, name.protocol.name, family.value)


def limit_services(reading: Reading, limit: int) -> Reading:
    """Keep `limit` service ports, the first by name; all others share one series per metric."""
    names = sorted({key[: len(SERVICE_LABELS)] for counter in reading.values() for key in counter})
    if len(names) <= limit:
        return reading
    kept = set(names[:limit])
    result: Reading = {}
    for metric, counter in reading.items():
        limited_counter: Counter[tuple[str, ...]] = Counter()
        for key, value in counter.items():
            if key[: len(SERVICE_LABELS)] in kept:
                limited_counter[key] = value
            else:
                family = key[len(SERVICE_LABELS) - 1]
                others = ("", "(others)", "", "", family, *[""] * (len(key) - len(SERVICE_LABELS)))
                limited_counter[others] += value
        result[metric] = limited_counter
    return result


class ZoneTotals:
    """Adds up the increase of endpoint counters, which are removed with their endpoints; that of a zone must never fall."""

    def __init__(self) -> None:
        self._last: Mapping[_Endpoint, int] = {}
        self._zones: dict[_Endpoint, str] = {}
        self._totals: Counter[Zone] = Counter()

    def add(
        self, counts: Mapping[_Endpoint, int], plans: Mapping[ServicePortName, ServicePlan]
    ) -> Mapping[Zone, int]:
        """Return the totals after these counts, without removed service ports."""
        self._zones = {key: zone for key, zone in self._zones.items() if key in counts}
        for key, count in counts.items():
            before = self._last.get(key, 0)
            grown = count - before if count >= before else count
            if grown:
                self._totals[key[0], self._find_zone(key, plans)] += grown
        self._last = counts
        for name, zone in [key for key in self._totals if key[0] not in plans]:
            del self._totals[name, zone]
        return dict(self._totals)

    def _find_zone(self, key: _Endpoint, plans: Mapping[ServicePortName, ServicePlan]) -> str:
        """Return the zone of an endpoint; endpoints are formatted once, when first counted: that is most of the work."""
        found = self._zones.get(key)
        plan = plans.get(key[0])
        if found is None and plan is not None:
            self._zones |= {(key[0], str(endpoint)): endpoint.zone for endpoint in plan.endpoints.all}
            found = self._zones.get(key)
        return found or ""
