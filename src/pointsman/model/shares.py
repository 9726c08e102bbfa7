"""Shares of endpoints that change by themselves: slow start, and least-connections. Pure: time and counts come from outside.

A share is the percentage of its weight that an endpoint gets. It begins small for a newcomer that starts slowly and
grows in steps; with least-connections it follows the connections that are open.
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
"""Of a newcomer; also the size of the steps in which it grows."""

MIN_SHARE, MAX_SHARE = 25, 400
_CUSHION = 8
"""Connections everybody is taken to have besides: a handful of them says little."""
_GAIN = 0.25
"""The part of the way to the wanted share covered per step. With twice this, and connections so short that they follow
shares within one reading, a step would overshoot."""
_CLOSE_ENOUGH = 0.05


def compute_warm_up_share(elapsed: float, seconds: int) -> int:
    """The share of an endpoint so long after it became usable: ten steps at most."""
    if elapsed >= seconds:
        return FULL_SHARE
    return max(FIRST_SHARE, int(FULL_SHARE / FIRST_SHARE * elapsed / seconds) * FIRST_SHARE)


def compute_shares(
    shares: Mapping[Identity, float], connections: Mapping[Identity, int], weights: Mapping[Identity, int]
) -> dict[Identity, float]:
    """The next shares of endpoints with these weights that have so many connections open.

    Who has more connections for its weight than the average gets fewer new ones, by the square of the ratio, within
    bounds and in small steps: no step ever leads past the share that the count asks for.
    """
    heavy = sum(weights.values())
    if not heavy:
        return {}
    average = sum(connections.get(one, 0) for one in weights) / heavy
    found: dict[Identity, float] = {}
    for one, weight in weights.items():
        share = shares.get(one, float(FULL_SHARE))
        held = connections.get(one, 0) / weight
        ratio = (average + _CUSHION) / (held + _CUSHION)
        wanted = min(max(MIN_SHARE, FULL_SHARE * ratio * ratio), MAX_SHARE)
        near = abs(wanted - share) < _CLOSE_ENOUGH * share
        found[one] = share if near else share + _GAIN * (wanted - share)
    return found


def compute_weights(endpoints: Iterable[Endpoint], request: BalancingRequest) -> dict[Identity, int]:
    """Those that new connections may reach, by weight."""
    weighed = ((e.identity, compute_weight(e, request)) for e in endpoints if e.ready)
    return {one: weight for one, weight in weighed if weight}


class ShareMode(msgspec.Struct, frozen=True):
    """What keeps the shares of a service port changing."""

    slow_start: int = 0
    least_connections: bool = False

    def __bool__(self) -> bool:
        return bool(self.slow_start or self.least_connections)


def build_share_mode(request: BalancingRequest, defaults: BalancingDefaults) -> ShareMode:
    scheduler = request.scheduler or defaults.scheduler
    counts = defaults.capabilities.adjusts_shares and scheduler is Scheduler.LEAST_CONNECTIONS
    return ShareMode(compute_slow_start_seconds(request, defaults), counts)


class EndpointShares:
    """The shares that are not full, by service port, and the warming_up among the endpoints."""

    def __init__(self, balancing: BalancingDefaults) -> None:
        self._balancing = balancing
        self._everybody = bool(build_share_mode(NO_REQUEST, balancing))
        self._shares: dict[ServicePortName, dict[Identity, int]] = {}
        self._newcomers: dict[ServicePortName, set[Identity]] = {}
        self.wishes: dict[ServicePortName, ShareMode] = {}
        """Of the service ports whose shares may change by themselves."""

    def follow(
        self, port: ServicePort, before: Iterable[Endpoint], now: tuple[Endpoint, ...], *, serving: bool
    ) -> None:
        """Endpoints changed; those that have just become ready start slowly if others serve meanwhile.

        `serving` is False until the first rules are made: what is found then is not new.
        """
        name = port.name
        if port.balancing is NO_REQUEST and not self._everybody and name not in self.wishes:
            return
        wish = build_share_mode(port.balancing, self._balancing)
        if not wish:
            self.forget(name)
            return
        if self.wishes.get(name) != wish:
            self._shares.pop(name, None)
        self.wishes[name] = wish
        ready = {endpoint.identity for endpoint in now if endpoint.ready}
        shares = self._shares.get(name, {})
        for gone in shares.keys() - ready:
            del shares[gone]
        warming_up = self._newcomers.setdefault(name, set())
        warming_up &= ready
        known = {endpoint.identity for endpoint in before if endpoint.ready} & ready
        if serving and known and wish.slow_start:
            warming_up |= ready - known
            self._shares.setdefault(name, shares).update(dict.fromkeys(ready - known, FIRST_SHARE))

    def forget(self, name: ServicePortName) -> None:
        for known in (self._shares, self._newcomers, self.wishes):
            known.pop(name, None)

    def warming_up(self, name: ServicePortName) -> frozenset[Identity]:
        """Endpoints that have not reached their full share since they became ready."""
        return frozenset(self._newcomers.get(name, ()))

    def set(self, name: ServicePortName, shares: Mapping[Identity, int], settled: Iterable[Identity]) -> None:
        """New shares of a service port; `settled` are no longer warming_up.

        Connections are counted over seconds: it may have stopped asking meanwhile, and nobody would ever take a share back.
        """
        if name not in self.wishes:
            return
        self._shares[name] = {one: share for one, share in shares.items() if share != FULL_SHARE}
        self._newcomers.get(name, set()).difference_update(settled)

    def applied(self, name: ServicePortName, endpoints: tuple[Endpoint, ...]) -> tuple[Endpoint, ...]:
        """The endpoints with their shares."""
        shares = self._shares.get(name)
        if not shares:
            return endpoints
        return tuple(
            one.with_share(shares[one.identity]) if one.identity in shares else one for one in endpoints
        )
