"""Traffic per service, from counters the kernel keeps: opt-in, because every service adds time series.

Reading the counters is work for the family's worker thread, so it is done now and then in the background and a
scrape gets the last reading. Beyond the limit services share one series, so that a big cluster cannot swamp a
metrics store by accident.
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
from pointsman.node.zone_totals import Zone, ZoneTotals
from pointsman.obs.log import get_log
from pointsman.obs.registry import Metrics

READ_SECONDS, FIRST_READ_SECONDS = 10.0, 1.0
"""Between two readings; and until there is anything to read, which is soon after the start."""

SERVICE_LABELS = ("namespace", "service", "port", "protocol", "ip_family")
CONNECTIONS = "pointsman_service_connections_total"
ENDPOINT_CONNECTIONS = "pointsman_endpoint_connections_total"
ZONE_CONNECTIONS = "pointsman_service_zone_connections_total"
PACKETS = "pointsman_service_packets_total"
BYTES = "pointsman_service_bytes_total"

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
            metrics.add_scraped_counter(name, text, labels, self._reader(name))

    async def run(self, families: Iterable[FamilyProxy]) -> None:
        """Read until cancelled."""
        families = list(families)
        while True:
            for family in families:
                backend = family.backend
                try:
                    traffic = await family.run_blocking(backend.traffic)
                except KernelError as error:
                    _log.error("Service counters cannot be read", err=error, ipFamily=family.family.value)
                    continue
                plans = (await family.snapshot()).plans
                await self.read(traffic, family.family, plans)
            something = any(reading[CONNECTIONS] for reading in self._readings.values())
            await asyncio.sleep(READ_SECONDS if something else FIRST_READ_SECONDS)

    async def read(
        self, traffic: Traffic, family: Family, plans: Mapping[ServicePortName, ServicePlan]
    ) -> None:
        """Takes the newest figures of a family; plans tell the zones of its endpoints.

        A hundred thousand endpoints take long enough to add up to be felt by whoever else needs the event loop.
        """
        self._readings[family] = await asyncio.to_thread(self._reading, traffic, family, plans)

    def _reading(
        self, traffic: Traffic, family: Family, plans: Mapping[ServicePortName, ServicePlan]
    ) -> Reading:
        totals = self._zones.setdefault(family, ZoneTotals())
        zones = totals.add(traffic.endpoint_connections, plans)
        return limited(reading_of(traffic, family, zones), self._limit)

    def _reader(self, name: str) -> Callable[[], Mapping[tuple[str, ...], float]]:
        def merged() -> Mapping[tuple[str, ...], float]:
            total: Counter[tuple[str, ...]] = Counter()
            for reading in self._readings.values():
                total.update(reading.get(name, {}))
            return total

        return merged


def reading_of(traffic: Traffic, family: Family, zones: Mapping[Zone, int] | None = None) -> Reading:
    """Figures by metric and label values."""
    return {
        CONNECTIONS: _labelled(traffic.connections, family),
        ENDPOINT_CONNECTIONS: _divided(traffic.endpoint_connections, family),
        ZONE_CONNECTIONS: _divided(zones or {}, family),
        PACKETS: _labelled(traffic.packets, family),
        BYTES: _labelled(traffic.bytes, family),
    }


def _labelled(figures: Mapping[ServicePortName, int], family: Family) -> Counter[tuple[str, ...]]:
    return Counter({labels(name, family): number for name, number in figures.items()})


def _divided(figures: Mapping[tuple[ServicePortName, str], int], family: Family) -> Counter[tuple[str, ...]]:
    return Counter({(*labels(name, family), part): number for (name, part), number in figures.items()})


def labels(name: ServicePortName, family: Family) -> tuple[str, ...]:
    return (name.namespace, name.service, name.port, name.protocol.name, family.value)


def limited(reading: Reading, limit: int) -> Reading:
    """At most `limit` service ports, the first by name; all others share one series per metric."""
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
