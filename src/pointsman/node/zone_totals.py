"""Connections by the zone of the endpoint that took them, kept beyond the endpoint's own count. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from pointsman.model.plan import ServicePlan
from pointsman.model.service import ServicePortName

_Endpoint = tuple[ServicePortName, str]
"""Service port and `ip:port`."""

Zone = tuple[ServicePortName, str]
"""Service port and zone; empty for an endpoint that names none."""


class ZoneTotals:
    """Adds up what the counts of endpoints grow by: those go with their endpoints, a zone's must never fall."""

    def __init__(self) -> None:
        self._last: Mapping[_Endpoint, int] = {}
        self._zones: dict[_Endpoint, str] = {}
        self._totals: Counter[Zone] = Counter()

    def add(
        self, counts: Mapping[_Endpoint, int], plans: Mapping[ServicePortName, ServicePlan]
    ) -> Mapping[Zone, int]:
        """The totals after these counts; those of service ports that are gone go as well."""
        self._zones = {key: zone for key, zone in self._zones.items() if key in counts}
        for key, count in counts.items():
            before = self._last.get(key, 0)
            grown = count - before if count >= before else count
            if grown:
                self._totals[key[0], self._zone(key, plans)] += grown
        self._last = counts
        for name, zone in [key for key in self._totals if key[0] not in plans]:
            del self._totals[name, zone]
        return dict(self._totals)

    def _zone(self, key: _Endpoint, plans: Mapping[ServicePortName, ServicePlan]) -> str:
        """Endpoints are put into words once, when they are first counted: that is most of the work."""
        found = self._zones.get(key)
        plan = plans.get(key[0])
        if found is None and plan is not None:
            self._zones |= {(key[0], str(endpoint)): endpoint.zone for endpoint in plan.endpoints.all}
            found = self._zones.get(key)
        return found or ""
