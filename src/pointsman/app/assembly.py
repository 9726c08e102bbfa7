"""Assembly of the process from options: source of objects, backends, proxy, sync listeners, servers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from pointsman import __version__
from pointsman.app import modes
from pointsman.app.announcements import FindingReport, announce
from pointsman.app.host_preparation import Attempt, Host
from pointsman.app.reload_record import ReloadRecord
from pointsman.app.servers import Servers, build_security
from pointsman.backends.contract import Mode
from pointsman.conditions import ConditionBoard
from pointsman.config.flags import list_flag_texts
from pointsman.config.gates import FeatureGates
from pointsman.config.options import RunOptions
from pointsman.config.reload import Live
from pointsman.config.types import KubeProxyConfiguration
from pointsman.errors import ConfigError
from pointsman.explain.service_port import Explanation
from pointsman.explain.target import Target
from pointsman.kernel.command import SystemCommands
from pointsman.kernel.sysctl import Sysctls
from pointsman.kube.auth import Credentials
from pointsman.kube.client import ApiClient
from pointsman.kube.client_metrics import ClientMetrics
from pointsman.kube.event_recorder import EventRecorder, Recorder
from pointsman.kube.formats import accept_header
from pointsman.kube.kubeconfig import load_access
from pointsman.machine.foreign_chains import CachedChains, ForeignChains
from pointsman.machine.host_facts import LinuxHost, LinuxMachine
from pointsman.machine.settings import freeze_heap
from pointsman.model.addresses import address_from_text, family_of
from pointsman.model.decision import ClientKind
from pointsman.model.history import EventKind
from pointsman.node.cleanup import Background, CleanupResult, FlowCleanup, PostSyncJobs
from pointsman.node.host_checks import HostChecks
from pointsman.node.inspector import Inspector
from pointsman.node.loopback_node_ports import LoopbackNodePorts
from pointsman.node.node_status import NodeStatus
from pointsman.node.proxy import Proxy
from pointsman.node.service_metrics import ServiceMetrics
from pointsman.node.start import EventSource
from pointsman.node.state import Settings
from pointsman.node.traffic_sampler import TrafficSampler
from pointsman.node.watches import expose_watches
from pointsman.obs.log import configure, get_log
from pointsman.obs.registry import Metrics
from pointsman.serve.connections import Connections, ErrorLog, ServingError
from pointsman.source.api import ApiSource
from pointsman.sync.flow_cleaner import StaleFlowCleaner
from pointsman.sync.loop import SyncListener

_EVENTS_TIMEOUT_SECONDS: Final = 2.0
"""For events that are still queued when a proxy ends: they may have the reason."""
_REVIEW_QPS: Final = 100
"""Above what the cached decisions of all clients can need."""

_log = get_log(__name__)


class Running(msgspec.Struct):
    """A running proxy with everything around it."""

    choice: modes.Choice
    options: RunOptions
    proxy: Proxy
    servers: Servers
    host: Host
    inspector: Inspector
    checks: HostChecks
    sampler: TrafficSampler
    node_status: NodeStatus | None

    @property
    def started(self) -> bool:
        return self.proxy.start.has_started

    async def run(self) -> None:
        """Run until cancelled; raises fatal errors."""
        proxy = self.proxy
        work = [proxy.run(), self.checks.run(), self.inspector.follow_states(), self.sampler.run()]
        if self.options.service_metrics:
            reading = ServiceMetrics(proxy.metrics, self.options.service_metrics_limit)
            work.append(reading.run(proxy.families.values()))
        if self.options.probe_addresses:
            work.append(self._probe_datapath())
        if self.node_status is not None:
            work.append(self.node_status.run())
        await run_until_first_ends(*work)

    async def _probe_datapath(self) -> None:
        from pointsman.node.datapath_probe import DatapathProbe

        addresses = (address_from_text(text) for text in self.options.probe_addresses)
        by_family = {family_of(address): address for address in addresses if address is not None}

        async def explain(target: Target) -> Explanation:
            return await self.inspector.explain(target, ClientKind.NODE.value, kernel=True)

        await DatapathProbe(self.proxy, by_family, explain).run()

    async def apply(self, live: Live) -> None:
        """Apply a configuration that needs no new proxy; raises ConfigError or BindFailed, with nothing changed, when it cannot work here."""
        setup = modes.build_setup(live.options, self.choice.mode.name)
        previous = self.proxy.config
        await self.servers.rebind(setup.config)
        try:
            self.proxy.apply_config(setup.config)
        except ConfigError:
            await self.servers.rebind(previous)
            raise
        self.choice = self.choice._replace(setup=setup)
        configure(setup.config.logging.to_settings())
        if live.touches("conntrack", "oomScoreAdj"):
            await _prepare_host(self.host, self.choice, self.proxy.board)

    def drain(self) -> None:
        """Fail health checks of load balancers, and keep syncing."""
        self.proxy.health.is_draining = True

    async def report_stopped(self) -> None:
        """Report on the Node that no proxy follows changes any more."""
        if self.node_status is not None:
            await self.node_status.report_stopped()


async def run_until_first_ends(*work: Coroutine[Any, Any, Any]) -> None:
    """Run all of it until the first ends; raises its error."""
    tasks = [asyncio.create_task(part) for part in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def assemble(
    options: RunOptions, reloads: ReloadRecord, host: Host | None = None
) -> AsyncIterator[Running]:
    """Start everything that these options configure, and stop it in the end; the rules stay in the kernel."""
    configure(options.config.logging.to_settings())
    for warning in options.warnings:
        _log.warning(warning)
    host = host or Host(options.paths.state_dir, options.paths.host_root)
    # Reading the features of the kernel takes long, and may pause: on a thread, so that others run meanwhile.
    choice = await asyncio.to_thread(modes.choose_mode, options)
    mode, config = choice.mode, choice.setup.config
    node_name = config.hostname_override or socket.gethostname().strip().lower()
    _log.info("Starting", mode=mode.name, why=choice.why, node=node_name)
    reloads.history.add(EventKind.STARTED, version=__version__, mode=mode.name)
    metrics = _build_metrics(mode, reloads, host.sysctls)
    board = ConditionBoard(on_transition=reloads.history.on_condition)
    async with contextlib.AsyncExitStack() as closing:
        source, recorder, client, reviewer = await closing.enter_async_context(
            _connect(options, config, node_name, metrics)
        )
        attempt = closing.enter_context(Attempt(host.sysctls))
        host.sysctls.forget_wanted(host.sysctls.wanted)
        await _prepare_host(host, choice, board)
        backends = {family: mode.backend(choice.setup, family, host.sysctls) for family in choice.families}
        connections = Connections(_count_http_errors(metrics))
        background = Background()
        closing.push_async_callback(background.close)
        cleaners = {
            family: StaleFlowCleaner(family, metrics, is_stopping=lambda: background.is_closed)
            for family in backends
        }
        flows = FlowCleanup(cleaners, background)
        listeners: list[SyncListener] = [flows]
        if mode.listens_on_loopback and mode.localhost_node_ports(config):
            loopback = LoopbackNodePorts(metrics)
            closing.push_async_callback(loopback.close)
            listeners.append(loopback)
        jobs = {
            "remove leftovers of other modes": lambda: host.remove_leftovers(mode, config.ipvs.exclude_cidrs),
            "return memory": _freeze_heap,
        }
        post_sync = PostSyncJobs(backends, background, jobs, flows.check_everything)
        proxy = Proxy(
            Settings(
                config=config,
                node_name=node_name,
                external_allow=options.external_ip_allow_cidrs,
                balancing=options.balancing,
                from_manifests=options.manifests is not None,
            ),
            source,
            backends,
            LinuxMachine(),
            metrics,
            recorder,
            board,
            connections,
            unsupported=choice.refused,
            listeners=(*listeners, post_sync),
            history=reloads.history,
        )
        board.add_source("flows", flows.conditions)
        board.add_source("configuration", reloads.conditions, logged_elsewhere=True)
        attempt.succeeded = lambda: proxy.start.has_started
        expose_watches(source, metrics, ages=options.manifests is None)
        node_status = None
        if client is not None and (options.node_condition or options.remove_startup_taint):
            node_status = NodeStatus(
                client,
                node_name,
                board,
                lambda: proxy.health.node,
                writes_condition=options.node_condition,
                removes_taint=options.remove_startup_taint,
            )
        commands = SystemCommands()
        checks = HostChecks(proxy, LinuxHost(host.sysctls, CachedChains(commands)), host.check, recorder)
        sampler = TrafficSampler(proxy)
        inspector = Inspector(
            proxy,
            reload=reloads.report,
            host=LinuxHost(host.sysctls, ForeignChains(commands)),
            host_checks=checks,
            sampler=sampler,
            started_at=reloads.since,
        )
        servers = Servers(
            proxy,
            recorder,
            dict(list_flag_texts(options.flags_set)),
            inspector,
            options.paths.control_socket,
            connections,
            await build_security(options.serving, reviewer, node_name, board),
            on_ports_freed=post_sync.rerun,
        )
        closing.push_async_callback(proxy.close)
        # Servers stop before the proxy: a request must not find its threads gone.
        closing.push_async_callback(servers.stop)
        announce(options, mode, recorder)
        await servers.start(config)
        yield Running(choice, options, proxy, servers, host, inspector, checks, sampler, node_status)


async def _prepare_host(host: Host, choice: modes.Choice, board: ConditionBoard) -> None:
    board.add_source("kernel settings", host.sysctls.conditions)
    board.replace("OOM score", await asyncio.to_thread(host.prepare, choice))


def _build_metrics(mode: Mode, reloads: ReloadRecord, sysctls: Sysctls) -> Metrics:
    metrics = Metrics(mode.name, mode.metrics)
    metrics.add_scraped_counter(
        "pointsman_config_reloads_total",
        "Changes of the configuration file by result",
        ("result",),
        reloads.measure,
    )
    metrics.add_scraped_counter(
        "pointsman_sysctls_restored_total",
        "Kernel settings that another program had changed",
        (),
        lambda: {(): float(sysctls.restored)},
    )
    for counter in mode.counters:
        metrics.add_kernel_counter(counter.metric, counter.help, counter.read)
    return metrics


def _count_http_errors(metrics: Metrics) -> ErrorLog:
    counters = {kind: metrics.served.errors.labels(reason=kind.value) for kind in ServingError}
    return ErrorLog(lambda kind: counters[kind].inc())


def _freeze_heap() -> CleanupResult:
    freeze_heap()
    return CleanupResult.NOTHING


class _Connected(NamedTuple):
    """The ways to the API server, or the manifests in its place."""

    source: EventSource
    recorder: Recorder
    client: ApiClient | None = None
    reviewer: ApiClient | None = None
    """For reviews of the clients of the metrics port."""


@contextlib.asynccontextmanager
async def _connect(
    options: RunOptions, config: KubeProxyConfiguration, node_name: str, metrics: Metrics
) -> AsyncIterator[_Connected]:
    """Open the connections of one proxy, and close them in the end."""
    if options.manifests is not None:
        from pointsman.source.manifests import ManifestSource

        recorder = Recorder()
        report = FindingReport(metrics, recorder)
        yield _Connected(ManifestSource(options.manifests, node_name=node_name, on_finding=report), recorder)
        return
    connection = config.client_connection
    access = load_access(connection.kubeconfig, options.master)
    listener = ClientMetrics(metrics, urlsplit(access.server).netloc)
    credentials = Credentials(access, listener=listener)
    credentials.check()
    client = ApiClient(
        access, qps=connection.qps, burst=connection.burst, credentials=credentials, listener=listener
    )
    events = EventRecorder(client, node_name=node_name)
    source = ApiSource(
        client,
        node_name=node_name,
        on_finding=FindingReport(metrics, events),
        accept=accept_header(connection.content_type, connection.accept_content_types),
        watch_list=FeatureGates(config.feature_gates).enabled("WatchListClient"),
    )
    # A client of its own: however many clients are reviewed, no watch waits for its turn behind them.
    reviewer = ApiClient(
        access, qps=_REVIEW_QPS, burst=_REVIEW_QPS, credentials=credentials, listener=listener
    )
    sending = asyncio.create_task(events.run())
    try:
        yield _Connected(source, events, client, reviewer)
    finally:
        await events.flush(_EVENTS_TIMEOUT_SECONDS)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await client.close()
        await reviewer.close()
