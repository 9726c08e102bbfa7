"""Before and after: what a change does to the traffic, and which limits it exceeds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from pointsman.model.decision import WORST_FIRST, State
from pointsman.simulate.traffic import PortTraffic, Simulation

DEFAULT_GROWTH = 1.5


class Limits(msgspec.Struct, frozen=True):
    """What a cluster may look like; 0 where there is no limit."""

    growth: float = DEFAULT_GROWTH
    """Endpoints whose share grows by more than this factor are named."""
    max_skew: float = 0.0
    """Of one service port."""
    max_cross_zone: float = 0.0
    """Of all delivered connections, as a fraction."""


class Growth(msgspec.Struct, frozen=True, rename="camel"):
    """An endpoint that gets more connections than before."""

    address: str
    pod: str
    before: float
    after: float

    @property
    def factor(self) -> float:
        return self.after / self.before


class TrafficChange(msgspec.Struct, frozen=True, rename="camel"):
    """Traffic of one service port that a change affects; None where the port does not exist."""

    before: PortTraffic | None
    after: PortTraffic | None
    grown: tuple[Growth, ...] = ()

    @property
    def traffic(self) -> PortTraffic:
        found = self.after or self.before
        assert found is not None
        return found

    @property
    def worsens(self) -> bool:
        """Whether clients that were served are not served after the change."""
        if self.before is None or self.before.state is State.DOWN:
            return False
        return self.after is None or self.after.delivered < self.before.delivered

    @property
    def goes_down(self) -> bool:
        return self.worsens and (self.after is None or self.after.state is State.DOWN)


class Exceeded(msgspec.Struct, frozen=True, rename="camel"):
    """A limit that is exceeded, after the change if there is one."""

    kind: Literal["skew", "crossZone"]
    value: float
    limit: float
    service: str = ""
    """The service port; empty for the cluster."""


class SimulationReport(msgspec.Struct, frozen=True, rename="camel"):
    """The answer of `pointsman simulate`."""

    current: Simulation
    changed: Simulation | None = None
    """None without a change."""
    changes: tuple[TrafficChange, ...] = ()
    """The worst first."""
    exceeded: tuple[Exceeded, ...] = ()

    @property
    def result(self) -> Simulation:
        return self.changed or self.current

    @property
    def is_safe(self) -> bool:
        return not self.exceeded and not any(change.goes_down for change in self.changes)


def compute_cross_zone(simulation: Simulation) -> float:
    """Return the fraction of delivered connections that cross zones, of those whose zones are known."""
    known = {
        (source, target): amount
        for source, targets in simulation.flows.items()
        for target, amount in targets.items()
        if source and target
    }
    total = sum(known.values())
    crossing = sum(amount for (source, target), amount in known.items() if source != target)
    return crossing / total if total else 0.0


def build_report(current: Simulation, changed: Simulation | None, limits: Limits) -> SimulationReport:
    """Compare both; the limits apply to the cluster after the change."""
    result = changed or current
    return SimulationReport(
        current,
        changed,
        tuple(_find_changes(current, changed, limits)) if changed is not None else (),
        tuple(_find_exceeded(result, limits)),
    )


def _find_changes(before: Simulation, after: Simulation, limits: Limits) -> list[TrafficChange]:
    former = {one.identity: one for one in before.traffic}
    latter = {one.identity: one for one in after.traffic}
    changes = []
    for identity in dict.fromkeys((*former, *latter)):
        old, new = former.get(identity), latter.get(identity)
        if old != new:
            changes.append(TrafficChange(old, new, tuple(_find_grown(old, new, limits.growth))))
    changes.sort(
        key=lambda one: (not one.goes_down, not one.worsens, -find_max_growth(one), one.traffic.identity)
    )
    return changes


def _find_grown(before: PortTraffic | None, after: PortTraffic | None, factor: float) -> Iterator[Growth]:
    if before is None or after is None:
        return
    known = {one.address: one.share for one in before.shares}
    for one in after.shares:
        share = known.get(one.address, 0.0)
        if share and one.share > share * factor:
            yield Growth(one.address, one.pod, share, one.share)


def find_max_growth(change: TrafficChange) -> float:
    """Return the largest factor among the endpoints of a change; 1 where none grows beyond the limit."""
    return max((one.factor for one in change.grown), default=1.0)


def _find_exceeded(result: Simulation, limits: Limits) -> Iterator[Exceeded]:
    if limits.max_cross_zone and (crossing := compute_cross_zone(result)) > limits.max_cross_zone:
        yield Exceeded("crossZone", crossing, limits.max_cross_zone)
    for one in result.traffic:
        if limits.max_skew and one.skew > limits.max_skew:
            yield Exceeded("skew", one.skew, limits.max_skew, f"{one.name} {one.clients} ({one.family})")


def sort_worst_first(traffic: tuple[PortTraffic, ...]) -> list[PortTraffic]:
    """Return down before partial before healthy, then the largest skew first."""
    return sorted(traffic, key=lambda one: (WORST_FIRST.index(one.state), -one.skew, one.identity))
