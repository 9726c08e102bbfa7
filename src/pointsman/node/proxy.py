"""The running proxy: all its parts, from the source of objects to the backends.

One Proxy lives from start to stop, or to the next change of the configuration that needs a restart. It owns no kernel state:
closing it leaves every rule in place, and the next one takes over.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from functools import partial
from typing import Protocol

from pointsman.backends import mode_named
from pointsman.backends.contract import Backend
from pointsman.conditions import ConditionBoard
from pointsman.config.gates import FeatureGates
from pointsman.config.types import KubeProxyConfiguration
from pointsman.errors import ConfigError, KernelError, PointsmanError
from pointsman.kube.event_recorder import Recorder
from pointsman.model.addresses import Family
from pointsman.model.objects import KubeObject, Meta, Node, Upsert
from pointsman.model.tracker import Tracker
from pointsman.node.family import FamilyProxy, compare_periodically
from pointsman.node.health import ProxyHealth, SyncConditions, find_unserved_families
from pointsman.node.health_check_ports import HealthCheckPorts
from pointsman.node.history import History
from pointsman.node.objects import ObjectHandler
from pointsman.node.reporter import Reporter
from pointsman.node.start import EventSource, Start
from pointsman.node.state import NodeState, Settings
from pointsman.node.watches import WatchConditions
from pointsman.obs.log import get_log
from pointsman.obs.registry import Metrics
from pointsman.serve.connections import Connections
from pointsman.sync.loop import SyncListener
from pointsman.sync.pacing import Pace

_log = get_log(__name__)

_ADDRESS_RETRY_SECONDS = 1.0
_NODE_NAMES_SECONDS = 60.0

MAX_HANDLING_SECONDS = 0.02
"""How long events are handled before others run."""

CONDITION_REFRESH_SECONDS = 3.0
"""The first refresh is not before that, so that a normal start raises nothing."""


class Machine(Protocol):
    """The node in the kernel: its addresses."""

    def local_addresses(self, family: Family) -> tuple[bytes, ...]:
        """Return the addresses of all interfaces but kube-ipvs0."""

    def address_changes(self) -> AsyncIterator[None]:
        """Yield when addresses may have changed."""


class Proxy:
    """All families of one proxy mode, fed by one source."""

    def __init__(
        self,
        settings: Settings,
        source: EventSource,
        backends: Mapping[Family, Backend],
        machine: Machine,
        metrics: Metrics,
        recorder: Recorder,
        board: ConditionBoard,
        connections: Connections,
        *,
        unsupported: Mapping[Family, str],
        listeners: Sequence[SyncListener] = (),
        history: History | None = None,
    ) -> None:
        """`unsupported` are families without a backend, and why; `listeners` are called after our own parts."""
        self.started_at = time.time()
        self.source, self.metrics, self.board = source, metrics, board
        self.history = history or History()
        self.node = NodeState(settings, {family: machine.local_addresses(family) for family in backends})
        self.start = Start(self.node, source, self._on_start)
        self.health = ProxyHealth(settings.config.sync_period.total_seconds(), self.start.gate)
        self.reporter = Reporter(backends, metrics, recorder)
        self._machine = machine
        trackers = {family: self._build_tracker(family) for family in backends}
        self._health_ports = HealthCheckPorts(trackers, self.node.name, self.health, recorder, connections)
        syncs = SyncConditions(backends)
        self._listeners = (self.reporter, self.health, syncs, self._health_ports, self.history, *listeners)
        self.families = {
            family: FamilyProxy(
                trackers[family],
                backend,
                _build_pace(settings.config),
                partial(self.node.context, family),
                self._listeners,
                self.health,
                count_services=mode_named(settings.config.mode).capabilities.counts_services,
                families=len(backends),
            )
            for family, backend in backends.items()
        }
        self.objects = ObjectHandler(
            self.families, self.node, self.start, self.health, self.reporter.service_findings, metrics
        )
        board.add_source("health", self.health.conditions)
        board.add_source("families", partial(find_unserved_families, unsupported, self.node))
        board.add_source("syncs", syncs.conditions, logged_elsewhere=True)
        board.add_source("backends", syncs.backend_conditions)
        watches = WatchConditions(source)
        board.add_source("API server", watches.server_conditions)
        board.add_source("watches", watches.conditions, logged_elsewhere=True)
        board.add_source("health check node ports", self._health_ports.conditions, logged_elsewhere=True)
        _expose(metrics, board, self.families.values())

    @property
    def config(self) -> KubeProxyConfiguration:
        return self.node.config

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            await self._run_parts()
        except* PointsmanError as group:
            raise _find_first_error(group) from group

    async def _run_parts(self) -> None:
        self._report_addresses({})
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.start.run())
            tasks.create_task(self._consume())
            tasks.create_task(self._refresh_conditions())
            tasks.create_task(self._follow_addresses())
            tasks.create_task(self._follow_node_names())
            period = mode_named(self.config.mode).compare_seconds
            for family in self.families.values():
                tasks.create_task(family.loop.run())
                tasks.create_task(family.shares.run())
                if period is not None:
                    tasks.create_task(compare_periodically(family, period))

    async def close(self) -> None:
        """Close everything, after `run`; the rules stay in the kernel."""
        await self.source.close()
        await self._health_ports.close()
        for family in self.families.values():
            await family.close()

    def add(self, item: KubeObject) -> None:
        """Add an object of our own to those of the source."""
        self.objects.handle(Upsert(item))

    def apply_config(self, config: KubeProxyConfiguration) -> None:
        """Apply what can change while running: periods, node ports, masquerading, detection.

        Raises ConfigError, with nothing changed, for what cannot work on this node. An error that the present configuration has
        as well does not prevent a change of another field.
        """
        if self.start.has_started:
            known = self.node.find_config_errors(self.config)
            new = [error for error in self.node.find_config_errors(config) if error not in known]
            if new:
                raise ConfigError(new)
        self.node.set_config(config)
        self.health.sync_period = config.sync_period.total_seconds()
        for family in self.families.values():
            family.loop.pacer.pace = _build_pace(config)
        self.start.on_node_update()
        self._request_all()

    def _build_tracker(self, family: Family) -> Tracker:
        gates = FeatureGates(self.config.feature_gates)
        return Tracker(
            family,
            self.node.name,
            allow_external_ips=gates.enabled("AllowServiceExternalIPs"),
            balancing=self.node.context(family).balancing,
            started_at=self.started_at,
            on_finding=self.reporter.on_finding,
        )

    def _on_start(self) -> None:
        if self.node.node_object is None and self.node.settings.from_manifests:
            self.health.node = Node(Meta(name=self.node.name))
        for family in self.families.values():
            family.activate()

    def _request_all(self) -> None:
        for family in self.families.values():
            family.request()

    async def _consume(self) -> None:
        """Handle events; after some time let others run, because a full queue never waits."""
        started = time.monotonic()
        async for event in self.source.events():
            self.objects.handle(event)
            if time.monotonic() - started > MAX_HANDLING_SECONDS:
                await asyncio.sleep(0)
                started = time.monotonic()

    async def _refresh_conditions(self) -> None:
        while True:
            await asyncio.sleep(CONDITION_REFRESH_SECONDS)
            self.board.refresh()

    async def _follow_node_names(self) -> None:
        """List the names of other Nodes while the own Node does not exist, so that a similar name can be suggested."""
        while True:
            await asyncio.sleep(CONDITION_REFRESH_SECONDS / 3)
            if self.health.node is None and self.start.gate.has_listed(Node):
                self.health.node_names = await self.source.list_node_names()
                await asyncio.sleep(_NODE_NAMES_SECONDS)

    async def _follow_addresses(self) -> None:
        async for _ in self._machine.address_changes():
            before = self.node.addresses
            if self.node.set_addresses(await self._read_addresses()):
                self._request_all()
            self._report_addresses(before)

    def _report_addresses(self, before: Mapping[Family, tuple[bytes, ...]]) -> None:
        for family, addresses in self.node.addresses.items():
            if addresses != before.get(family):
                for listener in self._listeners:
                    listener.on_addresses_changed(family, addresses)

    async def _read_addresses(self) -> dict[Family, tuple[bytes, ...]]:
        """Read the machine's addresses, again after a while when the kernel is short of memory."""
        while True:
            try:
                return {family: self._machine.local_addresses(family) for family in self.families}
            except KernelError as error:
                _log.warning("Cannot read the addresses of this node, retrying", err=error)
                await asyncio.sleep(_ADDRESS_RETRY_SECONDS)


def _build_pace(config: KubeProxyConfiguration) -> Pace:
    sync_period = config.sync_period.total_seconds()
    drift_period = mode_named(config.mode).drift_seconds or sync_period
    return Pace(config.min_sync_period.total_seconds(), sync_period, drift_period)


def _expose(metrics: Metrics, board: ConditionBoard, families: Collection[FamilyProxy]) -> None:
    metrics.add_scraped_gauge(
        "pointsman_condition", "1 where a condition is not true", ("type", "reason"), board.measure
    )
    metrics.add_scraped_gauge(
        "pointsman_sync_pause_seconds",
        "Seconds between two syncs while changes arrive continuously",
        ("ip_family",),
        lambda: {(family.family.value,): family.loop.pacer.pause for family in families},
    )
    metrics.objects.service_changes_pending.set_function(
        lambda: max(len(family.tracker.changed_services) for family in families)
    )
    metrics.objects.endpoint_changes_pending.set_function(
        lambda: max(len(family.tracker.changed_endpoints) for family in families)
    )


def _find_first_error(group: BaseExceptionGroup[PointsmanError]) -> PointsmanError:
    first = group.exceptions[0]
    return _find_first_error(first) if isinstance(first, BaseExceptionGroup) else first
