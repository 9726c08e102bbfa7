"""The running proxy: events into trackers, trackers into sync loops, outcomes into everything served.

One Proxy lives from start to stop or to the next restart-worthy change of the configuration. It owns no kernel
state: closing it leaves every rule in place, and the next one takes over.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import timedelta

import msgspec

from pointsman.backends import mode_named
from pointsman.backends.contract import Backend
from pointsman.config.gates import effective_gates
from pointsman.config.types import KubeProxyConfiguration
from pointsman.errors import KernelError
from pointsman.model.addresses import Family, address_text, is_link_local, is_loopback
from pointsman.model.node import NodeFacts, host_ips, node_facts
from pointsman.model.node_context import NodeContext
from pointsman.model.objects import EndpointSlice, KubeObject, Meta, Node, Service, ServiceCIDR
from pointsman.model.problem import Problem
from pointsman.model.remarks import Remarks
from pointsman.model.service import ServicePortName
from pointsman.model.source_events import Delete, SourceEvent, Synced, Upsert
from pointsman.node.family import FamilyHooks, FamilyProxy
from pointsman.node.node_context import node_context
from pointsman.node.surroundings import EventSource, Machine, Recorder
from pointsman.obs.log import get_log
from pointsman.obs.registry import Metrics
from pointsman.serve.health import ProxyHealth
from pointsman.serve.service_health import ServiceHealth, ServiceHealthPorts
from pointsman.sync.pacing import Pace
from pointsman.sync.reconcile import SyncOutcome

_log = get_log(__name__)

NODE_WAIT = 30.0
"""How long the first sync waits for the Node object and its addresses, as kube-proxy does."""

_ADDRESS_RETRY = 1.0

_KINDS: tuple[type[KubeObject], ...] = (Service, EndpointSlice, Node, ServiceCIDR)

AfterSync = Callable[[Family, SyncOutcome, tuple[bytes, ...]], None]
"""Called with the family, what its sync did, and the node's own addresses of that family."""


class Settings(msgspec.Struct, frozen=True):
    """What the proxy is told at start; the configuration inside may be replaced while it runs."""

    config: KubeProxyConfiguration
    node_name: str
    external_allow: Sequence[str] = ()
    from_manifests: bool = False
    node_wait: float = NODE_WAIT


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
        *,
        after_sync: AfterSync = lambda _family, _outcome, _addresses: None,
    ) -> None:
        self.settings = settings
        self.config = settings.config
        self.metrics = metrics
        self.health = ProxyHealth(_nanoseconds(self.config.sync_period))
        self.source = source
        self.started_at = time.time()
        self.node: Node | None = None
        self.service_cidrs: dict[str, tuple[str, ...]] = {}
        self.remarks = Remarks()
        self._machine = machine
        self._recorder = recorder
        self._after_sync = after_sync
        self._addresses = {family: machine.local_addresses(family) for family in backends}
        self._facts = self._current_facts()
        self._synced: set[type[KubeObject]] = set()
        self._started = False
        self._node_awaited = False
        self._background: set[asyncio.Task[None]] = set()
        self.health_ports = {
            family: ServiceHealthPorts(
                settings.node_name, lambda: self.health.health().healthy, self._health_port_failed
            )
            for family in backends
        }
        self.families = {family: self._family(family, backend) for family, backend in backends.items()}

    @property
    def facts(self) -> NodeFacts:
        return self._facts

    @property
    def ready(self) -> bool:
        """Every kind has been listed once and the node is known, or has been waited for long enough."""
        return self._started

    @property
    def waiting_for(self) -> str:
        """What is missing before the first sync; empty when nothing is."""
        unlisted = [kind.__name__ for kind in _KINDS if kind not in self._synced]
        if unlisted:
            return f"the first list of {', '.join(unlisted)}"
        return "" if self._started else f"the Node {self.settings.node_name}"

    def addresses(self, family: Family) -> tuple[bytes, ...]:
        """The machine's own addresses of a family."""
        return tuple(self._addresses[family])

    def context(self, family: Family) -> NodeContext:
        return node_context(
            self.config,
            family,
            self._facts,
            local_addresses=self._addresses[family],
            service_cidrs=[text for texts in self.service_cidrs.values() for text in texts],
            external_allow=self.settings.external_allow,
        )

    async def run(self) -> None:
        """Work until cancelled; leaves the kernel as it is then."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._consume())
                tasks.create_task(self._stop_waiting_for_node())
                tasks.create_task(self._follow_addresses())
                for family in self.families.values():
                    tasks.create_task(family.loop.run())
        finally:
            await self.close()

    def apply_config(self, config: KubeProxyConfiguration) -> None:
        """Take over what can change while running: periods, node ports, masquerading, detection."""
        self.config = config
        self.health.set_sync_period(_nanoseconds(config.sync_period))
        for family in self.families.values():
            family.loop.pacer.pace = _pace(config)
            family.loop.drift_period = _drift_period(config)
        self._facts = self._current_facts()
        self._request_all()

    def _family(self, family: Family, backend: Backend) -> FamilyProxy:
        return FamilyProxy(
            family,
            self.settings.node_name,
            backend,
            _pace(self.config),
            hooks=FamilyHooks(
                family,
                self.metrics,
                self.health,
                after_sync=lambda outcome: self._synced_family(family, outcome),
                on_drift=lambda drift: self._recorder.node_event(
                    "Warning", "ProxyRulesRestored", f"{family.value} rules were changed by others: {drift}"
                ),
            ),
            context=lambda: self.context(family),
            allow_external_ips=effective_gates(self.config.feature_gates).enabled("AllowServiceExternalIPs"),
            drift_period=_drift_period(self.config),
            on_problem=self._object_problem,
            on_refused=self._refused,
        )

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
                self._synced.add(kind)
                self._maybe_start()
            case Upsert(object=Service() as service):
                self.metrics.service_changes.inc()
                self.remarks.service_upserted(service)
                self._notify(lambda family: family.tracker.service_upserted(service))
            case Upsert(object=EndpointSlice() as endpoint_slice):
                self.metrics.endpoint_changes.inc()
                self.remarks.slice_changed(endpoint_slice.metadata.key)
                self._notify(lambda family: family.tracker.slice_upserted(endpoint_slice))
            case Upsert(object=Node() as node):
                self._node_changed(node.metadata.name, node)
            case Upsert(object=ServiceCIDR() as service_cidr):
                self.service_cidrs[service_cidr.metadata.key] = tuple(service_cidr.spec.cidrs or ())
                self._request_all()
            case Delete(kind=kind, key=key):
                self._deleted(kind, key)

    def _deleted(self, kind: type[KubeObject], key: str) -> None:
        if kind is Service:
            self.metrics.service_changes.inc()
            self.remarks.service_deleted(key)
            self._notify(lambda family: family.tracker.service_deleted(key))
        elif kind is EndpointSlice:
            self.metrics.endpoint_changes.inc()
            self.remarks.slice_changed(key)
            self._notify(lambda family: family.tracker.slice_deleted(key))
        elif kind is Node:
            self._node_changed(key, None)
        else:
            self.service_cidrs.pop(key, None)
            self._request_all()

    def _notify(self, change: Callable[[FamilyProxy], bool]) -> None:
        for family in self.families.values():
            if change(family) and self._started:
                family.loop.request()
        self._count_pending()

    def _count_pending(self) -> None:
        trackers = [family.tracker for family in self.families.values()]
        self.metrics.service_changes_pending.set(max(tracker.pending_services for tracker in trackers))
        self.metrics.endpoint_changes_pending.set(max(tracker.pending_endpoints for tracker in trackers))

    def _node_changed(self, name: str, node: Node | None) -> None:
        """Follow the own Node; a deleted one leaves the rules as they are and makes /healthz fail."""
        if name != self.settings.node_name:
            return
        self.health.node_changed(node)
        if node is None:
            _log.warning("The Node object is gone; its last known addresses and zone stay in use", node=name)
            return
        self.node = node
        facts = self._current_facts()
        if facts != self._facts:
            _log.info("Node as seen by the proxy", node=name, addresses=_texts(facts.ips), zone=facts.zone)
            self._facts = facts
            self._request_all()
        self._maybe_start()

    def _current_facts(self) -> NodeFacts:
        routable = [
            address
            for family in (Family.IPV4, Family.IPV6)
            for address in self._addresses.get(family, ())[:]
            if not is_loopback(address) and not is_link_local(address)
        ]
        fallback = routable if self.settings.from_manifests else ()
        first_of_each = {len(address): address for address in reversed(fallback)}
        return node_facts(
            self.settings.node_name,
            self.node,
            self.config.bind_address,
            sorted(first_of_each.values(), key=len),
        )

    def _maybe_start(self) -> None:
        if self._started or not self._synced.issuperset(_KINDS):
            return
        if self.settings.from_manifests:
            if self.node is None:
                self.health.node_changed(Node(Meta(name=self.settings.node_name)))
        elif not self._node_has_addresses and not self._node_awaited:
            return
        self._started = True
        self._request_all()

    @property
    def _node_has_addresses(self) -> bool:
        return self.node is not None and bool(host_ips(self.node))

    async def _stop_waiting_for_node(self) -> None:
        await asyncio.sleep(self.settings.node_wait)
        self._node_awaited = True
        if not self._node_has_addresses and not self.settings.from_manifests:
            _log.error(
                "No such Node; going on without its addresses. If the node has another name, "
                "say so with --hostname-override"
                if self.node is None
                else "The Node has no addresses yet; going on without them until it has",
                node=self.settings.node_name,
                waited=f"{self.settings.node_wait:.0f}s",
            )
        self._maybe_start()

    async def _follow_addresses(self) -> None:
        async for _ in self._machine.address_changes():
            addresses = await self._read_addresses()
            if addresses != self._addresses:
                self._addresses = addresses
                self._facts = self._current_facts()
                self._request_all()

    async def _read_addresses(self) -> dict[Family, tuple[bytes, ...]]:
        """The machine's addresses; a kernel short of memory is asked again, the last known ones stay meanwhile."""
        while True:
            try:
                return {family: self._machine.local_addresses(family) for family in self.families}
            except KernelError as error:
                _log.warning("The addresses of this node cannot be read now", err=error)
                await asyncio.sleep(_ADDRESS_RETRY)

    def _request_all(self) -> None:
        if self._started:
            for family in self.families.values():
                family.loop.request()

    def _synced_family(self, family: Family, outcome: SyncOutcome) -> None:
        state, label = self.families[family], family.value
        reconciler = state.reconciler
        self.metrics.service_ports.labels(ip_family=label).set(len(reconciler.plans))
        self.metrics.endpoints.labels(ip_family=label).set(reconciler.endpoint_count)
        for policy, lacking in (
            ("internal", reconciler.without_local_internal),
            ("external", reconciler.without_local_external),
        ):
            self.metrics.no_local_endpoints.labels(traffic_policy=policy, ip_family=label).set(len(lacking))
        self._count_pending()
        self._spawn(self._sync_health_ports(family, outcome.context))
        self._after_sync(family, outcome, self._addresses[family])

    async def _sync_health_ports(self, family: Family, context: NodeContext) -> None:
        wanted = {
            port.name.key: ServiceHealth(
                namespace=port.name.namespace,
                name=port.name.service,
                port=port.health_check_node_port,
                local_endpoints=count,
            )
            for port, count in self.families[family].tracker.local_ready_counts()
        }
        where = context.node_port_addresses
        everywhere = [address_text(family.any_address)]
        addresses = everywhere if where.match_all else [address_text(address) for address in where.addresses]
        await self.health_ports[family].sync(wanted, addresses)

    def _object_problem(self, kind: str, meta: Meta, problem: Problem) -> None:
        self.remarks.problem(kind, meta, problem)
        self.metrics.objects_skipped.labels(kind=kind, reason=problem.reason).inc()
        _log.warning("Left out of the rules", kind=kind, object=meta.key, reason=problem.message)
        if kind == "Service":
            self._recorder.service_event(
                meta.namespace, meta.name, "Warning", problem.reason, problem.message
            )

    def _refused(self, name: ServicePortName, problem: Problem) -> None:
        self.metrics.objects_skipped.labels(kind="Service", reason=problem.reason).inc()
        _log.warning("Left out of the rules", kind="Service", object=str(name), reason=problem.message)
        self._recorder.service_event(name.namespace, name.service, "Warning", problem.reason, problem.message)

    def _health_port_failed(self, service: ServiceHealth, message: str) -> None:
        _log.error("Health check node port", err=message)
        self._recorder.service_event(
            service.namespace, service.name, "Warning", "FailedToStartServiceHealthcheck", message
        )

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def close(self) -> None:
        """Let go of everything but the kernel's rules; `run` does it at its end."""
        await self.source.close()
        await asyncio.gather(*self._background, return_exceptions=True)
        for ports in self.health_ports.values():
            await ports.close()
        for family in self.families.values():
            await family.close()


def _pace(config: KubeProxyConfiguration) -> Pace:
    return Pace(config.min_sync_period.total_seconds(), config.sync_period.total_seconds())


def _drift_period(config: KubeProxyConfiguration) -> float:
    return mode_named(config.mode).drift_seconds or config.sync_period.total_seconds()


def _nanoseconds(period: timedelta) -> int:
    return int(period.total_seconds() * 1_000_000_000)


def _texts(addresses: Sequence[bytes]) -> str:
    return ", ".join(address_text(address) for address in addresses)
