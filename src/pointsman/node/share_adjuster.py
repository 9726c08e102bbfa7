"""Shares of endpoints that change with time: slow start and least-connections.

The clock and the connection counts are here, decisions are in model/shares.py. A new share is a change like any other: the tracker
returns it and the next sync programs it. Where no Service requests such shares, nothing runs.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final

from pointsman.daemon_thread import run_in_daemon_thread
from pointsman.errors import KernelError
from pointsman.kernel.conntrack import ConntrackTable, DeadlinePassed
from pointsman.kernel.flow_count import FlowCount, FrontendKey
from pointsman.model.addresses import Family
from pointsman.model.endpoint import FULL_SHARE, Identity
from pointsman.model.service import ServicePort, ServicePortName
from pointsman.model.shares import ShareMode, compute_shares, compute_warm_up_share, compute_weights
from pointsman.model.tracker import PortState, Tracker
from pointsman.obs.log import get_log

ADJUST_INTERVAL_SECONDS: Final = 1.0
COUNT_INTERVAL_SECONDS: Final = 5.0
COUNT_TIMEOUT_SECONDS: Final = 10.0
"""A reading that takes longer is discarded."""
_MIN_PAUSE_FACTOR: Final = 20
"""Counting is followed by a pause of at least that many times its duration: it never takes more than a twentieth of a core."""

Counts = Mapping[ServicePortName, Mapping[Identity, int]]
CountConnections = Callable[[Family, Mapping[ServicePortName, PortState]], Counts]

_log = get_log(__name__)


def list_frontends(port: ServicePort) -> Iterator[FrontendKey]:
    """Yield every address at which clients may connect to a service port."""
    number = port.protocol.value
    for address in (port.cluster_ip, *port.external_ips, *port.load_balancer_ips):
        yield number, address, port.port
    if port.node_port:
        yield number, b"", port.node_port


def count_open_connections(
    family: Family,
    states: Mapping[ServicePortName, PortState],
    *,
    open_table: Callable[[Family], ConntrackTable] = ConntrackTable,
    monotonic: Callable[[], float] = time.monotonic,
) -> Counts:
    """Count open connections by service port and endpoint; raise KernelError when the table cannot be read in time."""
    endpoints = {name: {one.identity for one in state.endpoints} for name, state in states.items()}
    owners = {key: name for name, state in states.items() for key in list_frontends(state.port)}
    count = FlowCount(owners, lambda name, one: one in endpoints[name])
    count.read(family, COUNT_TIMEOUT_SECONDS, open_table=open_table, monotonic=monotonic)
    if count.is_partial:
        raise DeadlinePassed("counting connections took longer than allowed")
    counts: dict[ServicePortName, Counter[Identity]] = {name: Counter() for name in states}
    for (name, endpoint), number in count.open.items():
        counts[name][endpoint] = number
    return counts


class ShareAdjuster:
    """Adjusts the shares of one IP family; `on_change` requests a sync."""

    def __init__(
        self,
        tracker: Tracker,
        on_change: Callable[[], None],
        *,
        count: CountConnections = count_open_connections,
        tick: float = ADJUST_INTERVAL_SECONDS,
        count_interval: float = COUNT_INTERVAL_SECONDS,
    ) -> None:
        self._tracker = tracker
        self._on_change = on_change
        self._count = count
        self._tick, self._count_interval = tick, count_interval
        self._wanted = asyncio.Event()
        self._since: dict[tuple[ServicePortName, Identity], float] = {}
        self._shares: dict[ServicePortName, dict[Identity, float]] = {}
        self._next_count = 0.0

    def on_objects_changed(self) -> None:
        """Start to adjust shares if a Service requests that now."""
        if self._tracker.shares.modes:
            self._wanted.set()

    async def run(self) -> None:
        """Adjust until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            while modes := dict(self._tracker.shares.modes):
                await self._adjust(modes)
                await asyncio.sleep(self._tick)
            self._since, self._shares = {}, {}

    async def _adjust(self, modes: Mapping[ServicePortName, ShareMode]) -> None:
        now = asyncio.get_running_loop().time()
        counting = [name for name, mode in modes.items() if mode.least_connections]
        if counting and now >= self._next_count:
            await self._count_connections(counting)
        elif not counting:
            self._shares = {}
        changed = False
        warming: dict[tuple[ServicePortName, Identity], float] = {}
        for name, mode in modes.items():
            warming_up = self._tracker.find_warming_up(name)
            if warming_up or (mode.least_connections and name in self._shares):
                changed |= self._set(name, mode, warming_up, warming, now)
        self._since = warming
        if changed:
            self._on_change()

    def _set(
        self,
        name: ServicePortName,
        mode: ShareMode,
        warming_up: Iterable[Identity],
        warming: dict[tuple[ServicePortName, Identity], float],
        now: float,
    ) -> bool:
        counted = self._shares.get(name, {}) if mode.least_connections else {}
        shares = {one: round(share) for one, share in counted.items()}
        settled: list[Identity] = []
        for one in warming_up:
            since = warming[name, one] = self._since.get((name, one), now)
            warm = compute_warm_up_share(now - since, mode.slow_start)
            shares[one] = max(1, shares.get(one, FULL_SHARE) * warm // FULL_SHARE)
            if warm == FULL_SHARE:
                settled.append(one)
        return self._tracker.set_shares(name, shares, settled)

    async def _count_connections(self, names: Iterable[ServicePortName]) -> None:
        """Count connections on another thread and take the next step towards equal loads."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        states = {name: self._tracker.states[name] for name in names if name in self._tracker.states}
        family = self._tracker.family
        try:
            counts = await run_in_daemon_thread(partial(self._count, family, states), f"count-{family.value}")
        except KernelError as error:
            _log.warning("Cannot count connections, keeping shares", err=error, family=family.value)
            counts = {}
        ended = loop.time()
        self._next_count = ended + max(self._count_interval, _MIN_PAUSE_FACTOR * (ended - began))
        stepped: dict[ServicePortName, dict[Identity, float]] = {}
        for name, state in states.items():
            before = self._shares.get(name, {})
            weights = compute_weights(state.endpoints, state.port.service.balancing)
            stepped[name] = compute_shares(before, counts[name], weights) if name in counts else before
        self._shares = stepped
