"""Checks of the host that run beside the syncs: facts are read on a background thread, conditions pushed to the board.

The cost is bounded: the pause after a round is at least fifty times as long as the CPU time that the round took, chains of other programs
are read only after the ruleset changed, and endpoints are grouped only after a sync.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from pointsman.backends import mode_named
from pointsman.conditions import Condition
from pointsman.daemon_thread import run_in_daemon_thread
from pointsman.machine.host_facts import HostReader
from pointsman.model.addresses import Family
from pointsman.model.decision import ClientKind
from pointsman.model.node_context import NodeContext
from pointsman.model.service import ServicePortName
from pointsman.model.tracker import PortState
from pointsman.node.endpoint_groups import EndpointGroups, group_endpoints
from pointsman.node.host_conditions import FAMILY_CHECKS, HostView, find_foreign_drops
from pointsman.node.proxy import Proxy
from pointsman.obs.log import get_log

CHECK_INTERVAL_SECONDS: Final = 3.0
MAX_INTERVAL_SECONDS: Final = 60.0
_MIN_PAUSE_FACTOR: Final = 50

_log = get_log(__name__)


class _Input(NamedTuple):
    """What a round takes from the event loop, for one IP family."""

    context: NodeContext
    own_addresses: tuple[bytes, ...]
    version: tuple[object, ...]
    """Changes with the endpoints."""
    states: Mapping[ServicePortName, PortState]


class _Round(NamedTuple):
    conditions: list[Condition]
    blocked: dict[Family, frozenset[ClientKind]]


class HostChecks:
    """Checks of one proxy; lives in the event loop, except for `_check`."""

    def __init__(self, proxy: Proxy, host: HostReader, *, interval: float = CHECK_INTERVAL_SECONDS) -> None:
        self.blocked: Mapping[Family, frozenset[ClientKind]] = {}
        """Clients of which no connection to another host or pod gets through this node, as of the last round."""
        self.rounds, self.cpu_seconds = 0, 0.0
        self._proxy, self._host, self._interval = proxy, host, interval
        self._groups: dict[Family, tuple[tuple[object, ...], EndpointGroups]] = {}
        self._views: dict[Family, HostView] = {}
        """As of the last round."""
        self._has_failed = False
        proxy.metrics.add_scraped_counter(
            "pointsman_host_checks_total",
            "Rounds of checks of this host",
            (),
            lambda: {(): float(self.rounds)},
        )
        proxy.metrics.add_scraped_counter(
            "pointsman_host_check_seconds_total",
            "CPU time of the checks of this host",
            (),
            lambda: {(): self.cpu_seconds},
        )

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            before = self.cpu_seconds
            if self._proxy.start.has_started:
                await self._check_once()
            pause = (self.cpu_seconds - before) * _MIN_PAUSE_FACTOR
            await asyncio.sleep(min(max(pause, self._interval), MAX_INTERVAL_SECONDS))

    async def _check_once(self) -> None:
        inputs = [self._take_input(family) for family in self._proxy.families]
        try:
            found = await run_in_daemon_thread(lambda: self._check(inputs), "host checks")
        except Exception as error:  # noqa: BLE001 a bug in a check must not end the proxy
            if not self._has_failed:
                _log.exception("Cannot check the host", err=error)
            self._has_failed = True
            return
        self._has_failed = False
        self.rounds += 1
        self.blocked = found.blocked
        self._proxy.board.replace("host", found.conditions)

    def _take_input(self, family: Family) -> _Input:
        proxy = self._proxy
        history = proxy.reporter.statuses[family].history
        addresses = proxy.node.addresses[family]
        version = (history[-1].at if history else 0.0, addresses)
        return _Input(
            proxy.node.context(family), addresses, version, dict(proxy.families[family].tracker.states)
        )

    def _check(self, inputs: list[_Input]) -> _Round:
        began = time.thread_time()
        found = _Round([], {})
        try:
            for one in inputs:
                view = self._look(one)
                for check in FAMILY_CHECKS:
                    found.conditions.extend(check(view))
                found.blocked[view.family] = view.blocked
        finally:
            self.cpu_seconds += time.thread_time() - began
        return found

    def _look(self, one: _Input) -> HostView:
        family = one.context.family
        version, groups = self._groups.get(family, ((), EndpointGroups()))
        if version != one.version:
            groups = group_endpoints(one.states.values(), one.own_addresses)
            self._groups[family] = (one.version, groups)
        ends = {end for group in groups.forwarded for end in (group.low, group.high)}
        facts = self._host.look(family, sorted(ends | groups.local.addresses))
        view = HostView(one.context, mode_named(self._proxy.config.mode), facts, groups)
        last = self._views.get(family)
        is_same = (
            last is not None
            and last.facts.chains is facts.chains
            and last.facts.routes == facts.routes
            and last.endpoints is groups
        )
        drops = last.drops if last is not None and is_same else tuple(find_foreign_drops(view))
        self._views[family] = msgspec.structs.replace(view, drops=drops)
        return self._views[family]
