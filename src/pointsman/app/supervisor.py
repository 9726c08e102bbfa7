"""The life of the process: start, signals, changes of the configuration file, in-process restarts, stop.

A new configuration is validated first. What can change while running is applied at once; for the rest the proxy
is taken down and put up again inside this process, with every rule staying in the kernel. A bad file, or one that
asks for what this machine cannot do, changes nothing but a metric, the log and the status.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from pointsman.app import modes
from pointsman.app.announcements import announce, bad_object_report
from pointsman.app.servers import Servers
from pointsman.backends.contract import Fate, Mode
from pointsman.config.command_line import RunOptions, parse_run
from pointsman.config.flags import flagz
from pointsman.config.gates import effective_gates
from pointsman.config.log_settings import log_settings
from pointsman.config.reload import reload_plan
from pointsman.config.types import KubeProxyConfiguration
from pointsman.errors import ConfigError, PointsmanError
from pointsman.kernel.path_watch import path_changes
from pointsman.kube.event_recorder import EventRecorder
from pointsman.kube.kubeconfig import load_access
from pointsman.kube.transport import Transport
from pointsman.node.aftercare import Background, FlowCare, TidyUp
from pointsman.node.footprint import settle
from pointsman.node.host_settings import apply_conntrack, apply_oom_score, core_count
from pointsman.node.own_addresses import LinuxMachine
from pointsman.node.proxy import Proxy
from pointsman.node.snapshot import Inspector
from pointsman.node.state import Settings
from pointsman.node.surroundings import ApiRecorder, EventSource, Recorder, SilentRecorder
from pointsman.obs.log import configure, flush, get_log
from pointsman.obs.registry import Metrics
from pointsman.report.status import ReloadReport
from pointsman.serve.http import BindFailed
from pointsman.source.api import ApiSource
from pointsman.sync.stale import StaleFlowCleaner

if TYPE_CHECKING:
    from pointsman.node.service_metrics import ServiceMetrics

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
"""Seconds before a proxy that ended through a fault of ours is put up again."""

_log = get_log(__name__)


class Reload(msgspec.Struct):
    """How the configuration file is doing, for status and tests."""

    count: int = 0
    error: str = ""
    at: float = 0.0


class Supervisor:
    """Runs proxies one after the other until told to stop."""

    def __init__(self, argv: Sequence[str], options: RunOptions) -> None:
        self._argv = list(argv)
        self._options = options
        self._stop = asyncio.Event()
        self._restart = asyncio.Event()
        self.reload = Reload()
        self.proxy: Proxy | None = None
        self._servers: Servers | None = None
        self._choice: modes.Choice | None = None
        self._fallback: RunOptions | None = None
        """What ran before a restart, until the new proxy stands."""
        self._reload_missed = False
        self._reloads: Counter[str] = Counter()
        self._rebinding: asyncio.Task[None] | None = None
        self._cannot_bind: BindFailed | None = None
        self._service_metrics: ServiceMetrics | None = None
        self._degraded: dict[str, str] = {}

    async def run(self) -> int:
        """Until SIGTERM or SIGINT; the rules stay in the kernel."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        watching = loop.create_task(self._watch_config())
        pause = _FIRST_PAUSE
        try:
            while not self._stop.is_set():
                self._restart.clear()
                began = time.monotonic()
                try:
                    await self._run_once()
                    pause = _FIRST_PAUSE
                except PointsmanError as error:
                    self._fall_back(error)
                except Exception as error:  # noqa: BLE001 a fault of ours must not take the proxy from the node
                    if time.monotonic() - began > _LONGEST_PAUSE:
                        pause = _FIRST_PAUSE
                    _log.exception("Internal error; starting again", err=error, after=f"{pause:.0f}s")
                    await self._pause(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        _log.info("Stopped; the rules stay in place")
        return 0

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop.wait()

    def _fall_back(self, error: PointsmanError) -> None:
        """Return to the configuration that worked; the first one of a process has none before it."""
        if self._fallback is None:
            raise error
        self._options, self._fallback = self._fallback, None
        self.reload.error = str(error)
        self._reloads["rejected"] += 1
        _log.error("The new configuration cannot be used here, going back to the old one", err=error)

    async def _run_once(self) -> None:
        options = self._options
        configure(log_settings(options.config.logging))
        for warning in options.warnings:
            _log.warning(warning)
        self._choice = choice = modes.choose(options)
        mode, config = choice.mode, choice.setup.config
        node_name = config.hostname_override or socket.gethostname().strip().lower()
        _log.info("Starting", mode=mode.name, why=choice.why, node=node_name)
        metrics = Metrics(mode.name, mode.metrics)
        for result, count in self._reloads.items():
            metrics.config_reloads.labels(result=result).inc(count)
        for counter in mode.counters:
            metrics.add_kernel_counter(counter.metric, counter.help, counter.read)
        self._prepare_host(options, choice, metrics)
        backends = modes.make_backends(choice, modes.sysctl_journal(options.state_dir))
        async with self._outside(options, config, node_name, metrics) as (source, recorder):
            background = Background()
            cleaners = {family: StaleFlowCleaner(family, metrics) for family in backends}
            tidying = {
                "remove leftovers of other modes": lambda: _leftovers_removed(mode, options.state_dir),
                "give memory back": _settled,
            }
            proxy = Proxy(
                Settings(
                    config=config,
                    node_name=node_name,
                    external_allow=options.external_ip_allow_cidrs,
                    from_manifests=options.manifests is not None,
                ),
                source,
                backends,
                LinuxMachine(),
                metrics,
                recorder,
                listeners=(FlowCare(cleaners, background), TidyUp(backends, background, tidying)),
            )
            self._service_metrics = None
            if options.service_metrics:
                from pointsman.node.service_metrics import ServiceMetrics

                self._service_metrics = ServiceMetrics(metrics, options.service_metrics_limit)
            inspector = Inspector(proxy, reload=self._reload_report, degraded=lambda: self._degraded)
            flags = dict(flagz(options.flags_set))
            servers = Servers(proxy, recorder, flags, inspector, options.control_socket)
            announce(options, mode, recorder)
            try:
                await self._start(servers, proxy)
                self._fallback = None
                self.proxy, self._servers = proxy, servers
                if self._reload_missed:
                    self._reload()
                await self._until_told(proxy)
            finally:
                self.proxy = self._servers = None
                await self._stop_rebinding()
                await servers.stop()
                await background.close()
        if self._cannot_bind is not None:
            raise self._cannot_bind

    async def _start(self, servers: Servers, proxy: Proxy) -> None:
        try:
            await servers.start(proxy.config)
        except BindFailed:
            await proxy.close()
            raise

    async def _until_told(self, proxy: Proxy) -> None:
        tasks: list[asyncio.Task[Any]] = [
            asyncio.create_task(proxy.run()),
            asyncio.create_task(self._stop.wait()),
            asyncio.create_task(self._restart.wait()),
            asyncio.create_task(self._watch_ages(proxy)),
        ]
        if self._service_metrics is not None:
            tasks.append(asyncio.create_task(self._service_metrics.run(proxy.families.values())))
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
    async def _outside(
        self, options: RunOptions, config: KubeProxyConfiguration, node_name: str, metrics: Metrics
    ) -> AsyncIterator[tuple[EventSource, Recorder]]:
        """The source of objects and the sink of events."""
        if options.manifests is not None:
            from pointsman.source.manifests import ManifestSource

            silent = SilentRecorder()
            skipped = bad_object_report(metrics, silent)
            yield ManifestSource(options.manifests, node_name=node_name, on_bad_object=skipped), silent
            return
        connection = config.client_connection
        access = load_access(connection.kubeconfig, options.master)
        host = urlsplit(access.server).netloc

        def answered(method: str, status: int) -> None:
            metrics.rest_requests.labels(code=str(status), method=method, host=host).inc()

        transport = Transport(access, qps=connection.qps, burst=connection.burst, on_answer=answered)
        sender = EventRecorder(transport, node_name=node_name)
        recorder = ApiRecorder(sender, node_name)
        source = ApiSource(
            transport,
            node_name=node_name,
            on_bad_object=bad_object_report(metrics, recorder),
            watch_list=effective_gates(config.feature_gates).enabled("WatchListClient"),
        )
        sending = asyncio.create_task(sender.run())
        try:
            yield source, recorder
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            await transport.close()

    async def _watch_config(self) -> None:
        if self._options.config_file is None:
            await asyncio.Event().wait()
            return
        changes = path_changes(self._options.config_file)
        self._reload()
        async for _ in changes:
            try:
                self._reload()
            except Exception as error:  # noqa: BLE001 the next change of the file must be heard, too
                _log.exception("Internal error while reading the configuration again", err=error)

    async def _watch_ages(self, proxy: Proxy) -> None:
        """Keep the watch metrics current; a watch that says nothing cannot do it itself."""
        failures: dict[str, int] = {}
        while True:
            for kind, status in proxy.source.statuses.items():
                age = status.age(time.monotonic())
                if age is not None:
                    proxy.metrics.watch_age.labels(resource=kind).set(age)
                new = status.failures_total - failures.get(kind, 0)
                proxy.metrics.watch_failures.labels(resource=kind).inc(max(0, new))
                failures[kind] = status.failures_total
            await asyncio.sleep(5)

    def _reload(self) -> None:
        """Read the configuration again and apply it, or keep the old one when it is bad."""
        proxy, servers = self.proxy, self._servers
        if proxy is None or servers is None or self._restart.is_set():
            self._reload_missed = True
            return
        self._reload_missed = False
        self.reload.at = time.time()
        try:
            options = parse_run(self._argv, program=self._options.program)
        except ConfigError as error:
            self.reload.error = str(error)
            self._count_reload(proxy, "rejected")
            _log.error("The new configuration is not used, the old one stays", err=error)
            return
        self.reload.error = ""
        plan = reload_plan(self._options.config, options.config)
        before, self._options = self._options, options
        if plan.is_empty:
            return
        self.reload.count += 1
        for warning in options.warnings:
            if warning not in before.warnings:
                _log.warning(warning)
        if plan.needs_restart:
            self._fallback = before
            self._count_reload(proxy, "restarted")
            _log.info("Restarting the proxy inside this process", changes=[str(c) for c in plan.restart])
            self._restart.set()
            return
        assert self._choice is not None
        self._choice = choice = self._choice._replace(setup=modes.setup_of(options, self._choice.mode.name))
        config = choice.setup.config
        configure(log_settings(config.logging))
        self._count_reload(proxy, "applied")
        _log.info("New configuration applied", changes=[str(change) for change in plan.live])
        proxy.apply_config(config)
        if plan.touches("conntrack", "oomScoreAdj"):
            self._prepare_host(options, choice, proxy.metrics)
        self._rebinding = asyncio.create_task(self._rebind(servers, config, self._rebinding))

    def _count_reload(self, proxy: Proxy, result: str) -> None:
        """Counted here too: the metrics of a proxy end with it, these counts go on."""
        self._reloads[result] += 1
        proxy.metrics.config_reloads.labels(result=result).inc()

    async def _rebind(
        self, servers: Servers, config: KubeProxyConfiguration, earlier: asyncio.Task[None] | None
    ) -> None:
        if earlier is not None:
            await asyncio.wait([earlier])
        try:
            await servers.rebind(config)
        except BindFailed as error:
            self._cannot_bind = error
            self._restart.set()

    async def _stop_rebinding(self) -> None:
        if self._rebinding is not None:
            self._rebinding.cancel()
            await asyncio.wait([self._rebinding])
            self._rebinding = None

    def _reload_report(self) -> ReloadReport:
        reload = self.reload
        return ReloadReport(reload.count, reload.error, time.time() - reload.at if reload.at else None)

    def _prepare_host(self, options: RunOptions, choice: modes.Choice, metrics: Metrics) -> None:
        """Sysctls, the OOM score and what the mode needs; what cannot be had is reported and never fatal."""
        self._degraded = {}
        sysctls = modes.sysctl_journal(options.state_dir)
        for degraded in (
            *apply_conntrack(choice.setup.config.conntrack, sysctls, core_count()).degraded,
            *apply_oom_score(choice.setup.config.oom_score_adj).degraded,
            *choice.mode.prepare(choice.setup, sysctls, choice.families),
        ):
            self._degraded[degraded.check] = degraded.message
            metrics.degraded.labels(check=degraded.check).set(1)


def _leftovers_removed(mode: Mode, state_dir: Path) -> bool:
    done = modes.remove_leftovers(mode, state_dir)
    for one in done:
        what = f"{one.count or one.name} {one.kind}"
        if one.fate is Fate.FAILED:
            _log.error(
                "A leftover of another proxy mode stays for now", what=what, where=one.where, err=one.why
            )
        else:
            _log.info("Leftover of another proxy mode", fate=one.fate.value, what=what, where=one.where)
    return all(one.fate is not Fate.FAILED for one in done)


def _settled() -> bool:
    settle()
    return True


def initialise(options: RunOptions) -> int:
    """--init-only: what needs full privileges (sysctls, the OOM score, loading modules), then exit."""
    configure(log_settings(options.config.logging))
    choice = modes.choose(options)
    sysctls = modes.sysctl_journal(options.state_dir)
    report = apply_conntrack(options.config.conntrack, sysctls, core_count())
    for setting in report.applied:
        _log.info("Set", setting=setting)
    for degraded in report.degraded:
        _log.error("Not set", check=degraded.check, err=degraded.message)
    for degraded in choice.mode.prepare(choice.setup, sysctls, choice.families):
        _log.warning("Degraded", check=degraded.check, reason=degraded.message)
    flush()
    return 1 if report.degraded else 0


def serve(argv: Sequence[str], options: RunOptions) -> int:
    """Run until stopped; the exit status of the process."""
    try:
        return asyncio.run(Supervisor(argv, options).run())
    except PointsmanError as error:
        _log.error("Cannot run", err=error)
        return 1
    finally:
        flush()
