"""Traffic of the last minutes, for the page: rates of service ports and endpoints at regular times, in bounded memory."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from pointsman.backends.contract import Counting
from pointsman.explain.service_port import Identity, Traffic
from pointsman.kernel.flow_count import FrontendKey
from pointsman.model.addresses import Family
from pointsman.model.endpoint import Identity as EndpointIdentity
from pointsman.model.plan import ServicePlan
from pointsman.model.service import ServicePortName
from pointsman.report.traffic import Reading, Tally, TallyKey, add_shares

MAX_SAMPLES = 60
MAX_SERIES = 2000
"""Service ports and endpoints whose rates are kept over time, about 1 MiB; others have only their latest figures."""


class ServiceTraffic(msgspec.Struct, frozen=True, rename="camel"):
    """Traffic at the endpoints of one Service, for the page."""

    endpoints: Mapping[str, Mapping[str, Traffic]]
    """Of endpoints with traffic, by `port/protocol/family` and `ip:port`."""


class PlanPlaces:
    """Whose frontends and endpoints are where, from plans."""

    def __init__(self, families: Mapping[Family, Mapping[ServicePortName, ServicePlan]]) -> None:
        self.owners: dict[str, dict[FrontendKey, Identity]] = {}
        self._plans: dict[Identity, ServicePlan] = {}
        for family, plans in families.items():
            owners: dict[FrontendKey, Identity] = {}
            for name, plan in plans.items():
                owner = (name.key, name.port, name.protocol.name, family.value)
                self._plans[owner] = plan
                for frontend in plan.frontends:
                    owners[name.protocol.value, frontend.address, frontend.port] = owner
            if owners:
                self.owners[family.value] = owners

    def has_endpoint(self, owner: Identity, endpoint: EndpointIdentity) -> bool:
        return any(one.identity == endpoint for one in self._plans[owner].endpoints.all)


class TrafficSamples:
    """The latest figures, and rates over time of the service ports and endpoints that have any."""

    def __init__(self, notes: Sequence[str] = ()) -> None:
        self.notes = tuple(notes)
        self._number = 0
        self._seconds = 1.0
        self._counted: Mapping[str, bool] = {}
        self._new: Counter[TallyKey] = Counter()
        self._open: Counter[TallyKey] = Counter()
        self._bytes: Counter[Identity] | None = None
        self._series: dict[TallyKey, array[float]] = {}

    @property
    def is_empty(self) -> bool:
        return self._number == 0

    def add(self, places: PlanPlaces, before: Reading, now: Reading, counting: Counting) -> None:
        """Add the sample between two readings."""
        tally = Tally(places.owners, before, now)
        self.notes = tuple(tally.list_notes(counting))
        self._seconds, self._counted = tally.seconds, tally.counted
        self._new, self._open = tally.new, tally.open
        self._bytes = tally.bytes if tally.has_bytes else None
        for counts in (self._new, self._open):
            for owner, number in [(owner, number) for (owner, place), number in counts.items() if not place]:
                counts[_build_total_key(owner[-1]), ""] += number
        for owner, number in list((self._bytes or {}).items()):
            tally.bytes[_build_total_key(owner[-1])] += number
        self._append()

    def find(self, owner: Identity, endpoint: str = "") -> Traffic:
        key = (owner, endpoint)
        return Traffic(
            self._open[key],
            round(self._new[key] / self._seconds, 2),
            self._counted.get(owner[-1], False),
            bytes_per_second=None
            if self._bytes is None or endpoint
            else round(self._bytes[owner] / self._seconds),
            rates=self._list_rates(key),
        )

    def find_activity(self, owner: Identity) -> tuple[float, int]:
        """Return new and open connections: a sort key."""
        return self._new[owner, ""], self._open[owner, ""]

    def find_total(self, family: Family) -> Traffic:
        return self.find(_build_total_key(family.value))

    def find_service(self, service: str) -> ServiceTraffic:
        """Return the traffic of all endpoints of a Service that have any."""
        found: dict[str, dict[str, Traffic]] = {}
        for owner, place in self._new.keys() | self._open.keys():
            if owner[0] == service and place:
                found.setdefault("/".join(owner[1:]), {})[place] = self.find(owner, place)
        return ServiceTraffic({port: add_shares(measured) for port, measured in found.items()})

    def _append(self) -> None:
        """Take the rates of this sample; series that have been zero throughout make room for others."""
        place = self._number % MAX_SAMPLES
        self._number += 1
        for key in [key for key, series in self._series.items() if key not in self._new and not any(series)]:
            del self._series[key]
        for series in self._series.values():
            series[place] = 0.0
        for key, number in self._new.most_common():
            if not number:
                break
            if key not in self._series:
                if len(self._series) >= MAX_SERIES:
                    continue
                self._series[key] = array("f", bytes(4 * MAX_SAMPLES))
            self._series[key][place] = number / self._seconds

    def _list_rates(self, key: TallyKey) -> tuple[float, ...]:
        series = self._series.get(key)
        if series is None:
            return ()
        first = self._number - min(self._number, MAX_SAMPLES)
        return tuple(round(series[n % MAX_SAMPLES], 2) for n in range(first, self._number))


def _build_total_key(family: str) -> Identity:
    """The key under which the figures of all service ports of a family are kept."""
    return ("", "", "", family)
