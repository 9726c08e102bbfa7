"""The running proxy: events into trackers and node state, changes of either into requests for a sync.

One Proxy lives from start to stop or to the next restart-worthy change of the configuration. It owns no kernel
state: closing it leaves every rule in place, and the next one takes over.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from pointsman.backends import mode_named
from pointsman.backends.contract import Backend
from pointsman.conditions import ConditionBoard
from pointsman.config.gates import effective_gates
from pointsman.config.types import KubeProxyConfiguration
from pointsman.errors import ConfigError, KernelError, PointsmanError
from pointsman.model.addresses import Family, address_text
from pointsman.model.findings import Finding
from pointsman.model.labels import ServiceLabels
from pointsman.model.objects import EndpointSlice, KubeObject, Meta, Node, Service, ServiceCIDR
from pointsman.model.service_findings import ServiceFindings
from pointsman.model.source_events import Delete, SourceEvent, Synced, Upsert
from pointsman.model.tracker import Tracker
from pointsman.node.checks import find_unserved_families
from pointsman.node.family import FamilyProxy
from pointsman.node.health import ProxyHealth, SyncConditions
from pointsman.node.health_check_ports import HealthCheckPorts
from pointsman.node.reporter import Reporter
from pointsman.node.second_look import SecondLook
from pointsman.node.share_keeper import ShareKeeper
from pointsman.node.state import NodeState, Settings, StartGate
from pointsman.node.surroundings import EventSource, Machine, Recorder
from pointsman.node.watches import WatchConditions
from pointsman.obs.log import get_log
from pointsman.obs.registry import Metrics
from pointsman.serve.connections import Connections, ErrorLog, HttpError
from pointsman.sync.loop import SyncListener
from pointsman.sync.pacing import Pace

_log = get_log(__name__)

_ADDRESS_RETRY = 1.0

CONDITION_REFRESH_SECONDS = 3.0
"""The first refresh is not before that, so that a normal start raises nothing."""


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
        *,
        unsupported: Mapping[Family, str],
        listeners: Sequence[SyncListener] = (),
    ) -> None:
        """`unsupported` are families without a backend, and why; `listeners` are called after our own parts."""
        self.started_at = time.time()
        self.source = source
        self.metrics = metrics
        self.node = NodeState(settings, {family: machine.local_addresses(family) for family in backends})
        self.gate = StartGate(settings.node_name, needs_node=not settings.from_manifests)
        self.started = False
        """Everything waited for has come, and this node can be served: from now on there are syncs."""
        self.health = ProxyHealth(settings.config.sync_period.total_seconds(), self.gate)
        self.service_findings = ServiceFindings()
        self.labels = ServiceLabels()
        self.board = board
        self.reporter = Reporter(backends, metrics, recorder)
        self._machine = machine
        self._impossible: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._node_news = asyncio.Event()
        self._doubts: frozenset[str] = frozenset()
        trackers = {family: self._tracker(family) for family in backends}
        http_errors = {kind: metrics.http_errors.labels(reason=kind.value) for kind in HttpError}
        self.connections = Connections(ErrorLog(lambda kind: http_errors[kind].inc()))
        """Those of every port that is served for this proxy."""
        self._health_ports = HealthCheckPorts(
            trackers, settings.node_name, self.health, recorder, self.connections
        )
        syncs = SyncConditions(backends)
        board.add_source("health", self.health.conditions)
        board.add_source("families", partial(find_unserved_families, unsupported, self.node))
        board.add_source("syncs", syncs.conditions)
        board.add_source("watches", WatchConditions(source).conditions)
        board.add_source("health check node ports", self._health_ports.conditions)
        self._heard_by = (self.reporter, self.health, syncs, self._health_ports, *listeners)
        self.families = {
            family: FamilyProxy(
                trackers[family],
                backend,
                _pace(settings.config),
                partial(self.node.context, family),
                self._heard_by,
                self.health,
                count_services=mode_named(settings.config.mode).capabilities.counts_services,
            )
            for family, backend in backends.items()
        }
        self._share_keepers = {
            family: ShareKeeper(proxy.tracker, proxy.loop.request) for family, proxy in self.families.items()
        }
        metrics.add_scraped_gauge(
            "pointsman_condition", "1 where a condition is not true", ("type", "reason"), board.measure
        )
        metrics.service_changes_pending.set_function(
            lambda: max(tracker.pending_services for tracker in trackers.values())
        )
        metrics.endpoint_changes_pending.set_function(
            lambda: max(tracker.pending_endpoints for tracker in trackers.values())
        )

    @property
    def config(self) -> KubeProxyConfiguration:
        return self.node.config

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            await self._work()
        except* PointsmanError as group:
            raise group.exceptions[0] from group

    async def _work(self) -> None:
        self._report_addresses({})
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._end_when_impossible())
            tasks.create_task(self._consume())
            tasks.create_task(self._refresh_conditions())
            tasks.create_task(self._stop_waiting_for_node())
            tasks.create_task(self._stop_waiting_for_service_ranges())
            tasks.create_task(self._follow_addresses())
            for family in self.families.values():
                tasks.create_task(family.loop.run())
            for keeper in self._share_keepers.values():
                tasks.create_task(keeper.run())
            period = mode_named(self.config.mode).compare_seconds
            if period is not None:
                for family in self.families.values():
                    tasks.create_task(self._second_look(family).run(period))

    async def _refresh_conditions(self) -> None:
        while True:
            await asyncio.sleep(CONDITION_REFRESH_SECONDS)
            self.board.refresh()

    def _second_look(self, family: FamilyProxy) -> SecondLook:
        record = self.reporter.records[family.family]
        return SecondLook(family, partial(self.node.context, family.family), lambda: record.rejected)

    async def _end_when_impossible(self) -> None:
        await self._impossible

    async def close(self) -> None:
        """After `run`: let go of everything; the rules stay in the kernel."""
        await self.source.close()
        await self._health_ports.close()
        for family in self.families.values():
            await family.close()

    def add(self, item: KubeObject) -> None:
        """An object of our own, beside those of the source."""
        self._handle(Upsert(item))

    def apply_config(self, config: KubeProxyConfiguration) -> None:
        """Take over what can change while running: periods, node ports, masquerading, detection.

        Raises ConfigError, with nothing changed, for what cannot work on this node. What is as wrong with the configuration
        in force keeps nobody from changing another field.
        """
        if self.started:
            known = self.node.judged(self.config).faults
            new = [fault for fault in self.node.judged(config).faults if fault not in known]
            if new:
                raise ConfigError(new)
        self.node.configured(config)
        self.health.sync_period = config.sync_period.total_seconds()
        for family in self.families.values():
            family.loop.pacer.pace = _pace(config)
        self._node_known_better()
        self._request_all()

    def _tracker(self, family: Family) -> Tracker:
        gates = effective_gates(self.config.feature_gates)
        return Tracker(
            family,
            self.node.name,
            allow_external_ips=gates.enabled("AllowServiceExternalIPs"),
            balancing=self.node.context(family).balancing,
            started_at=self.started_at,
            on_finding=self._on_finding,
        )

    def _on_finding(self, meta: Meta, finding: Finding) -> None:
        self.service_findings.add(meta, finding)
        self.reporter.report_findings((finding,))

    async def _consume(self) -> None:
        async for event in self.source.events():
            try:
                self._handle(event)
            except Exception as error:  # noqa: BLE001 one object must never keep the others from being served
                _log.exception("An object could not be handled and is skipped", err=error, event=event)
                self.metrics.objects_skipped.labels(kind=type(event).__name__, reason="InternalError").inc()

    def _handle(self, event: SourceEvent) -> None:
        match event:
            case Synced(kind=kind):
                self._start_if(self.gate.listed(kind))
                self._node_news.set()
            case Upsert(object=Service() as service):
                self.metrics.service_changes.inc(len(self.families))
                self.service_findings.upsert_service(service)
                self.labels.upserted(service)
                self._track(lambda tracker: tracker.upsert_service(service))
            case Upsert(object=EndpointSlice() as endpoint_slice):
                self.service_findings.slice_changed(endpoint_slice.metadata.key)
                self._track(lambda tracker: tracker.upsert_slice(endpoint_slice))
                self._count_endpoint_change(endpoint_slice.metadata.key)
            case Upsert(object=Node() as node):
                self._node_changed(node.metadata.name, node)
            case Upsert(object=ServiceCIDR() as service_cidr):
                key, cidrs = service_cidr.metadata.key, service_cidr.spec.cidrs or ()
                self._request_all(self.node.service_range_seen(key, cidrs))
            case Delete(kind=kind, key=key):
                self._deleted(kind, key)

    def _deleted(self, kind: type[KubeObject], key: str) -> None:
        if kind is Service:
            self.metrics.service_changes.inc(len(self.families))
            self.service_findings.delete_service(key)
            self.labels.deleted(key)
            self._track(lambda tracker: tracker.delete_service(key))
        elif kind is EndpointSlice:
            self._count_endpoint_change(key)
            self.service_findings.slice_changed(key)
            self._track(lambda tracker: tracker.delete_slice(key))
        elif kind is Node:
            self._node_changed(key, None)
        else:
            self._request_all(self.node.service_range_seen(key, None))

    def _count_endpoint_change(self, slice_key: str) -> None:
        """Of a slice that is tracked; kube-proxy counts none of another family, of names, or without a Service."""
        if any(family.tracker.has_slice(slice_key) for family in self.families.values()):
            self.metrics.endpoint_changes.inc()

    def _track(self, change: Callable[[Tracker], bool]) -> None:
        for family in self.families.values():
            if change(family.tracker) and self.started:
                family.loop.request()
                self._share_keepers[family.family].changed()

    def _node_changed(self, name: str, node: Node | None) -> None:
        """Follow the own Node; a deleted one leaves the rules as they are and makes /healthz fail."""
        if name != self.node.name:
            return
        self.health.node = node
        if node is None:
            _log.warning("The Node object is gone; its last known addresses and zone stay in use", node=name)
            return
        before = self.node.facts
        self._request_all(self.node.node_seen(node))
        facts = self.node.facts
        if facts != before:
            addresses = ", ".join(address_text(address) for address in facts.ips)
            _log.info("Node as seen by the proxy", node=name, addresses=addresses, zone=facts.zone)
        self._node_known_better()

    def _node_known_better(self) -> None:
        """After a change of the Node, or of what is asked of it."""
        complete = self.node.has_addresses and not self.node.lacks_pod_range
        self._start_if(self.gate.node_seen(complete=complete))
        self._node_news.set()
        if self.started:
            self._warn_of_doubts()

    def _start_if(self, opened: bool) -> None:
        """Once, when nothing more is waited for."""
        if not opened:
            return
        faults = self.node.judged(self.config).faults
        if faults:
            self._impossible.set_exception(ConfigError(faults))
            return
        self.started = True
        self._warn_of_doubts()
        if self.node.node_object is None and self.node.settings.from_manifests:
            self.health.node = Node(Meta(name=self.node.name))
        self._request_all()

    def _warn_of_doubts(self) -> None:
        """Of each once, for as long as it stands. A Node that changes may bring faults, too, and the proxy goes on."""
        found = self.node.judged(self.config)
        doubts = (*found.doubts, *found.faults)
        for doubt in doubts:
            if doubt not in self._doubts:
                _log.warning("The configuration may be incomplete or incorrect", reason=doubt)
        self._doubts = frozenset(doubts)

    async def _stop_waiting_for_node(self) -> None:
        """The periods begin with the first list, as in kube-proxy: before it, nobody knows what the Node lacks."""
        settings = self.node.settings
        if settings.from_manifests:
            return
        if not await self._comes_true(lambda: self.gate.has_listed(Node), settings.node_wait):
            status = self.source.statuses.get(Node.__name__)
            _log.error(
                "The Node could not be listed yet; nothing is programmed before that",
                err=(status.last_error if status is not None else "") or None,
                node=self.node.name,
                waited=f"{settings.node_wait:.0f}s",
            )
            await self._comes_true(lambda: self.gate.has_listed(Node), None)
        if not await self._comes_true(lambda: self.node.has_addresses, settings.node_wait):
            self._say_why_there_is_no_address(settings.node_wait)
        if self.node.lacks_pod_range:
            await self._wait_for_pod_range(settings.pod_range_wait)
        self._start_if(self.gate.stop_waiting_for_node())

    async def _comes_true(self, condition: Callable[[], bool], seconds: float | None) -> bool:
        """Whether it does in time, None for any time; looked at with every news of the Node."""
        try:
            async with asyncio.timeout(seconds):
                while not condition():
                    self._node_news.clear()
                    await self._node_news.wait()
        except TimeoutError:
            return False
        return True

    def _say_why_there_is_no_address(self, waited: float) -> None:
        if self.node.node_object is not None:
            message = "The Node has no addresses yet; going on without them until it has"
        else:
            message = (
                "No such Node; going on without its addresses. If the node has another name, "
                "say so with --hostname-override"
            )
        _log.error(message, node=self.node.name, waited=f"{waited:.0f}s")

    async def _wait_for_pod_range(self, seconds: float) -> None:
        name = self.node.name
        _log.warning("Waiting for the Node's pod range, which detectLocalMode NodeCIDR needs", node=name)
        if await self._comes_true(lambda: not self.node.lacks_pod_range, seconds):
            return
        if self.node.node_object is not None:
            raise ConfigError(self.node.judged(self.config).faults)
        problem = (
            f"there is no Node {name} after {seconds:.0f} s, and detectLocalMode NodeCIDR needs its spec.podCIDRs: "
            "if the node has another name, say so with --hostname-override"
        )
        raise ConfigError([problem])

    async def _stop_waiting_for_service_ranges(self) -> None:
        await asyncio.sleep(self.node.settings.service_range_wait)
        self._start_if(self.gate.stop_waiting_for_service_ranges())

    async def _follow_addresses(self) -> None:
        async for _ in self._machine.address_changes():
            before = self.node.addresses
            self._request_all(self.node.addresses_read(await self._read_addresses()))
            self._report_addresses(before)

    def _report_addresses(self, before: Mapping[Family, tuple[bytes, ...]]) -> None:
        for family, addresses in self.node.addresses.items():
            if addresses != before.get(family):
                for listener in self._heard_by:
                    listener.on_addresses_changed(family, addresses)

    async def _read_addresses(self) -> dict[Family, tuple[bytes, ...]]:
        """The machine's addresses; a kernel short of memory is asked again, the last known ones stay meanwhile."""
        while True:
            try:
                return {family: self._machine.local_addresses(family) for family in self.families}
            except KernelError as error:
                _log.warning("The addresses of this node cannot be read now", err=error)
                await asyncio.sleep(_ADDRESS_RETRY)

    def _request_all(self, rules_differ: bool = True) -> None:
        if rules_differ and self.started:
            for family in self.families.values():
                family.loop.request()
                self._share_keepers[family.family].changed()


def _pace(config: KubeProxyConfiguration) -> Pace:
    sync_period = config.sync_period.total_seconds()
    drift_period = mode_named(config.mode).drift_seconds or sync_period
    return Pace(config.min_sync_period.total_seconds(), sync_period, drift_period)
