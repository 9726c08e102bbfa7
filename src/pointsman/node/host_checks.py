"""Checks of the host that run beside the syncs: facts are read on a background thread, conditions pushed to the board.

The cost is bounded: the pause after a round is at least fifty times as long as the CPU time that the round took, chains of other programs
are read only after the ruleset changed, and endpoints are grouped only after a sync, at most once in five hundred times the CPU time that
it takes. What one round finds counts when the next one
finds it again: a firewall that is being reloaded, or a pod that is being removed, raises nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from pointsman.backends import mode_named
from pointsman.conditions import Blocks, Condition
from pointsman.daemon_thread import CpuMeter, run_in_daemon_thread
from pointsman.kube.event_recorder import Recorder
from pointsman.machine.host_facts import HostFacts, HostReader
from pointsman.model.addresses import Cidr, Family
from pointsman.model.decision import ClientKind
from pointsman.model.node_context import NodeContext
from pointsman.model.service import ServicePortName
from pointsman.model.tracker import PortState
from pointsman.node.endpoint_groups import EndpointGroups, group_endpoints
from pointsman.node.host_conditions import (
    FAMILY_CHECKS,
    REVERSE_PATH_SECONDS,
    HostView,
    find_foreign_drops,
)
from pointsman.node.proxy import Proxy
from pointsman.node.state import parse_pod_ranges
from pointsman.obs.log import get_log
from pointsman.waiting import compute_pause

CHECK_INTERVAL_SECONDS: Final = 3.0
MAX_INTERVAL_SECONDS: Final = 60.0
PAUSE_FACTOR: Final = 50
OVERVIEW_PAUSE_FACTOR: Final = 500
"""The same for what takes time in proportion to all endpoints, whatever changed."""

_log = get_log(__name__)


class Obstruction(NamedTuple):
    """What of an IP family this host keeps from being reached."""

    clients: frozenset[ClientKind] = frozenset()
    """Those of which no connection to another host or pod gets through this node."""
    endpoints: frozenset[bytes] = frozenset()
    """Addresses without a route."""


class CheckInput(NamedTuple):
    """What a round takes from the event loop, for one IP family."""

    context: NodeContext
    pod_ranges: tuple[Cidr, ...]
    own_addresses: tuple[bytes, ...]
    version: tuple[object, ...]
    """Changes with the endpoints."""
    states: Mapping[ServicePortName, PortState]


class EndpointGrouper:
    """Groups the endpoints of one IP family when their version changed, at bounded cost."""

    def __init__(self) -> None:
        self._version: tuple[object, ...] = ()
        self._groups = EndpointGroups()
        self._next_at = 0.0

    def group(self, one: CheckInput) -> EndpointGroups:
        """Return the groups; shortly after a grouping that took long, those of an earlier version."""
        if self._version != one.version and time.monotonic() >= self._next_at:
            meter = CpuMeter()
            self._groups = meter.run(
                lambda: group_endpoints(one.states.values(), one.own_addresses, one.context.balancing)
            )
            self._version = one.version
            pause = compute_pause(meter.last, OVERVIEW_PAUSE_FACTOR, 0.0, MAX_INTERVAL_SECONDS)
            self._next_at = time.monotonic() + pause
        return self._groups


class HostChecks:
    """Checks of one proxy; lives in the event loop, except for `_check`."""

    def __init__(
        self,
        proxy: Proxy,
        host: HostReader,
        check_machine: Callable[[], Iterable[Condition]],
        recorder: Recorder,
        *,
        interval: float = CHECK_INTERVAL_SECONDS,
    ) -> None:
        """`check_machine` yields the conditions that belong to no IP family; it is called on the background thread."""
        self.obstructions: Mapping[Family, Obstruction] = {}
        """As of the last round."""
        self.rounds, self._cpu = 0, CpuMeter()
        self._proxy, self._host, self._check_machine = proxy, host, check_machine
        self._recorder, self._interval = recorder, interval
        self._groupers = {family: EndpointGrouper() for family in proxy.families}
        self._views: dict[Family, HostView] = {}
        """As of the last round."""
        self._reverse_path: deque[tuple[float, int]] = deque()
        """When the counter of dropped packets had which value."""
        self._found: frozenset[tuple[str, str]] = frozenset()
        """Type and reason of what the last round found."""
        self._raised: frozenset[tuple[str, str]] = frozenset()
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
            lambda: {(): self._cpu.total},
        )
        proxy.metrics.add_scraped_gauge(
            "pointsman_conntrack_usage_ratio",
            "Part of the connection tracking table that is in use",
            (),
            self._measure_tracking,
        )

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            if self._proxy.start.has_started:
                await self._check_once()
            pause = compute_pause(self._cpu.last, PAUSE_FACTOR, self._interval, MAX_INTERVAL_SECONDS)
            await asyncio.sleep(pause)

    async def _check_once(self) -> None:
        inputs = [self._take_input(family) for family in self._proxy.families]
        try:
            found, obstructions = await run_in_daemon_thread(
                lambda: self._cpu.run(lambda: self._check(inputs)), "host checks"
            )
        except Exception as error:  # noqa: BLE001 a bug in a check must not end the proxy
            if not self._has_failed:
                _log.exception("Cannot check the host", err=error)
            self._has_failed = True
            return
        self._has_failed = False
        self.rounds += 1
        self.obstructions = obstructions
        self._publish(found)

    def _publish(self, found: Iterable[Condition]) -> None:
        """Push what two rounds in a row found, with an event for what keeps Services from being served."""
        by_reason = {(one.type, one.reason): one for one in found}
        lasting = {key: one for key, one in by_reason.items() if key in self._found}
        for key, condition in lasting.items():
            if key not in self._raised and condition.blocks.includes(Blocks.SERVICES):
                self._recorder.node_event(condition.reason, condition.text)
        self._found, self._raised = frozenset(by_reason), frozenset(lasting)
        self._proxy.board.replace("host", lasting.values())

    def _measure_tracking(self) -> dict[tuple[str, ...], float]:
        for view in tuple(self._views.values()):
            count, limit = view.facts.conntrack_count, view.facts.conntrack_max
            if count is not None and limit:
                return {(): count / limit}
        return {}

    def _take_input(self, family: Family) -> CheckInput:
        proxy = self._proxy
        history = proxy.reporter.statuses[family].history
        addresses = proxy.node.addresses[family]
        version = (history[-1].at if history else 0.0, addresses)
        states = dict(proxy.families[family].tracker.states)
        ranges = parse_pod_ranges(proxy.node.facts)
        return CheckInput(proxy.node.context(family), ranges, addresses, version, states)

    def _check(self, inputs: list[CheckInput]) -> tuple[list[Condition], dict[Family, Obstruction]]:
        found: list[Condition] = []
        obstructions: dict[Family, Obstruction] = {}
        for one in inputs:
            view = self._look(one)
            for check in FAMILY_CHECKS:
                found.extend(check(view))
            obstructions[view.family] = Obstruction(view.blocked, frozenset(view.unreachable))
        found.extend(self._check_machine())
        return found, obstructions

    def _look(self, one: CheckInput) -> HostView:
        family = one.context.family
        groups = self._groupers[family].group(one)
        ends = {end for group in groups.forwarded for end in (group.low, group.high)}
        facts = self._host.look(family, sorted(ends | groups.local.addresses))
        view = HostView(
            one.context,
            mode_named(self._proxy.config.mode),
            facts,
            groups,
            one.pod_ranges,
            self._count_reverse_path_drops(facts),
        )
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

    def _count_reverse_path_drops(self, facts: HostFacts) -> int:
        """Return how many packets were dropped lately."""
        if facts.reverse_path_drops is None:
            return 0
        now = time.monotonic()
        self._reverse_path.append((now, facts.reverse_path_drops))
        while now - self._reverse_path[0][0] > REVERSE_PATH_SECONDS:
            self._reverse_path.popleft()
        return facts.reverse_path_drops - self._reverse_path[0][1]
