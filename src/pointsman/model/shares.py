"""Shares of endpoints that are adjusted continuously: slow start and least-connections. Time and counts are arguments.

A share is the percentage of its weight that an endpoint gets. In slow start it begins small and grows in steps; with
least-connections it follows the number of open connections.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from pointsman.model.balancing import (
    NO_REQUEST,
    BalancingDefaults,
    BalancingRequest,
    Scheduler,
    compute_slow_start_seconds,
    compute_weight,
)
from pointsman.model.endpoint import FULL_SHARE, Endpoint, Identity
from pointsman.model.service import ServicePort, ServicePortName

FIRST_SHARE = 10
"""First share of an endpoint in slow start, and the size of its steps."""

MIN_SHARE, MAX_SHARE = 25, 400
_BASE_CONNECTIONS = 8
"""Connections added to every endpoint, so that a few of them have little effect."""
_GAIN = 0.25
"""Fraction of the distance to the target covered per step. Twice as much would overshoot with connections so short that they
follow shares within one reading."""
_TOLERANCE = 0.05


def compute_warm_up_share(elapsed: float, seconds: int) -> int:
    """Return the share of an endpoint this long after it became usable, in at most ten steps."""
    if elapsed >= seconds:
        return FULL_SHARE
    return max(FIRST_SHARE, int(FULL_SHARE / FIRST_SHARE * elapsed / seconds) * FIRST_SHARE)


def compute_shares(
    shares: Mapping[Identity, float], connections: Mapping[Identity, int], weights: Mapping[Identity, int]
) -> dict[Identity, float]:
    """Return the next shares of endpoints with these weights and open connections.

    An endpoint with more connections for its weight than the average gets fewer new ones, by the square of the ratio, within
    limits and in small steps: a step never overshoots the target.
    """
    total_weight = sum(weights.values())
    if not total_weight:
        return {}
    average = sum(connections.get(one, 0) for one in weights) / total_weight
    found: dict[Identity, float] = {}
    for one, weight in weights.items():
        share = shares.get(one, float(FULL_SHARE))
        held = connections.get(one, 0) / weight
        ratio = (average + _BASE_CONNECTIONS) / (held + _BASE_CONNECTIONS)
        target = min(max(MIN_SHARE, FULL_SHARE * ratio * ratio), MAX_SHARE)
        near = abs(target - share) < _TOLERANCE * share
        found[one] = share if near else share + _GAIN * (target - share)
    return found


def compute_weights(endpoints: Iterable[Endpoint], request: BalancingRequest) -> dict[Identity, int]:
    """Return the weights of the endpoints that new connections may reach."""
    weighed = ((e.identity, compute_weight(e, request)) for e in endpoints if e.ready)
    return {one: weight for one, weight in weighed if weight}


class ShareMode(msgspec.Struct, frozen=True):
    """Why the shares of a service port are adjusted continuously."""

    slow_start: int = 0
    least_connections: bool = False

    def __bool__(self) -> bool:
        return bool(self.slow_start or self.least_connections)


def build_share_mode(request: BalancingRequest, defaults: BalancingDefaults) -> ShareMode:
    scheduler = request.scheduler or defaults.scheduler
    counts = defaults.capabilities.adjusts_shares and scheduler is Scheduler.LEAST_CONNECTIONS
    return ShareMode(compute_slow_start_seconds(request, defaults), counts)


class EndpointShares:
    """Shares below or above 100 %, by service port, and the endpoints in slow start."""

    def __init__(self, defaults: BalancingDefaults) -> None:
        self._defaults = defaults
        self._has_default_mode = bool(build_share_mode(NO_REQUEST, defaults))
        self._shares: dict[ServicePortName, dict[Identity, int]] = {}
        self._warming_up: dict[ServicePortName, set[Identity]] = {}
        self.modes: dict[ServicePortName, ShareMode] = {}
        """Of the service ports whose shares are adjusted continuously."""

    def update_mode(self, port: ServicePort) -> None:
        """Follow the request of a service port that is new or has changed."""
        name = port.name
        if port.service.balancing is NO_REQUEST and not self._has_default_mode and name not in self.modes:
            return
        mode = build_share_mode(port.service.balancing, self._defaults)
        if not mode:
            self.forget(name)
            return
        if self.modes.get(name) != mode:
            self._shares.pop(name, None)
        self.modes[name] = mode

    def update_endpoints(
        self,
        name: ServicePortName,
        before: Iterable[Endpoint],
        now: tuple[Endpoint, ...],
        *,
        serving: bool,
    ) -> None:
        """Follow the endpoints of a service port that has a mode.

        Endpoints that became ready start slowly if others serve meanwhile. `serving` is False until the first rules are
        made: endpoints found then are not new.
        """
        ready = {endpoint.identity for endpoint in now if endpoint.ready}
        shares = self._shares.get(name, {})
        for removed in shares.keys() - ready:
            del shares[removed]
        warming_up = self._warming_up.setdefault(name, set())
        warming_up &= ready
        known = {endpoint.identity for endpoint in before if endpoint.ready} & ready
        if serving and known and self.modes[name].slow_start:
            warming_up |= ready - known
            self._shares.setdefault(name, shares).update(dict.fromkeys(ready - known, FIRST_SHARE))

    def forget(self, name: ServicePortName) -> None:
        for known in (self._shares, self._warming_up, self.modes):
            known.pop(name, None)

    def find_warming_up(self, name: ServicePortName) -> frozenset[Identity]:
        """Return the endpoints that have not reached their full share since they became ready."""
        return frozenset(self._warming_up.get(name, ()))

    def set(self, name: ServicePortName, shares: Mapping[Identity, int], settled: Iterable[Identity]) -> bool:
        """Replace the shares of a service port; return whether any differs. `settled` have left slow start.

        Ignored without a mode: counting connections takes seconds, and the Service may have dropped its request meanwhile.
        """
        if name not in self.modes:
            return False
        self._warming_up.get(name, set()).difference_update(settled)
        partial = {one: share for one, share in shares.items() if share != FULL_SHARE}
        if partial == self._shares.get(name, {}):
            return False
        self._shares[name] = partial
        return True

    def apply(self, name: ServicePortName, endpoints: tuple[Endpoint, ...]) -> tuple[Endpoint, ...]:
        """Return the endpoints with their shares."""
        shares = self._shares.get(name)
        if not shares:
            return endpoints
        return tuple(
            one.with_share(shares[one.identity]) if one.identity in shares else one for one in endpoints
        )
