"""Consistent views of the running proxy for status, explain, verify, list and the status page.

Plans belong to the worker thread of their family, so they are copied there; trackers belong to the event loop. What
is copied is immutable, and explanations are computed on another thread: watches and health never wait for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import msgspec

from pointsman import __version__
from pointsman.backends import mode_named
from pointsman.backends.contract import Difference
from pointsman.daemon_thread import CpuMeter, run_in_daemon_thread
from pointsman.errors import KernelError
from pointsman.explain.answer import explain, find_concerned_addresses, find_concerned_services
from pointsman.explain.service_port import Explanation
from pointsman.explain.target import Target
from pointsman.explain.view import FamilyView, View
from pointsman.machine.host_facts import HostReader
from pointsman.model.addresses import Family, address_text
from pointsman.model.plan import ServicePlan
from pointsman.model.service import ServicePortName
from pointsman.node.family import FamilyProxy
from pointsman.node.host_checks import (
    CHECK_INTERVAL_SECONDS,
    MAX_INTERVAL_SECONDS,
    OVERVIEW_PAUSE_FACTOR,
    HostChecks,
    Obstruction,
)
from pointsman.node.proxy import Proxy
from pointsman.node.state import parse_pod_ranges
from pointsman.node.traffic_sampler import TrafficSampler
from pointsman.report.history import HistoryQuery, HistoryReport, build_history
from pointsman.report.samples import ServiceTraffic
from pointsman.report.service_list import (
    ListQuery,
    ServiceList,
    ServicePage,
    build_page,
    compress_list,
    count_states,
)
from pointsman.report.status import (
    FamilyStatus,
    FamilyVerification,
    ProxyState,
    ReloadReport,
    StatusReport,
    Verification,
    WatchReport,
)
from pointsman.sync.reconcile import Snapshot
from pointsman.waiting import compute_pause

WORKER_TIMEOUT_SECONDS: Final = 1.0
"""For `status`, which must answer while a worker thread hangs."""
CHEAP_COUNT_SECONDS = 0.01
"""CPU time of a count of service states that every refresh of the page may cost."""


class Inspector:
    """Reads one Proxy; never changes it."""

    def __init__(
        self,
        proxy: Proxy,
        reload: Callable[[], ReloadReport],
        host: HostReader | None = None,
        *,
        host_checks: HostChecks | None = None,
        sampler: TrafficSampler | None = None,
        started_at: float | None = None,
        worker_timeout: float = WORKER_TIMEOUT_SECONDS,
    ) -> None:
        """`started_at` is the start of the process, which may run several proxies one after the other."""
        self._worker_timeout = worker_timeout
        self._proxy = proxy
        self._reload = reload
        self._host, self._host_checks = host, host_checks
        self._sampler = sampler or TrafficSampler(proxy)
        self._started_at = proxy.started_at if started_at is None else started_at
        self._states: tuple[str, dict[str, int]] = ("", {})
        self._cpu = CpuMeter()
        """Of the counts of states."""
        self._counting = asyncio.Lock()

    async def status(self, *, count: bool = True) -> StatusReport:
        """Return conditions, numbers, recent syncs, and how many Services are served as of the last sync.

        Without `count`, that number may be the one `follow_states` found last, where to count takes long.
        """
        if count or self._cpu.last < CHEAP_COUNT_SECONDS:
            await self._count_states()
        proxy, now = self._proxy, time.monotonic()
        conditions = proxy.board.current()
        return StatusReport(
            version=__version__,
            mode=proxy.config.mode,
            node=proxy.node.name,
            zone=proxy.node.facts.zone,
            addresses=tuple(address_text(address) for address in proxy.node.facts.ips),
            uptime=time.time() - self._started_at,
            families=tuple(self._build_family_status(family) for family in proxy.families.values()),
            watches=tuple(
                WatchReport.from_status(kind, status, now) for kind, status in proxy.source.statuses.items()
            ),
            reload=self._reload(),
            health=ProxyState.of(conditions),
            conditions=conditions,
            service_states=self._states[1],
        )

    async def _count_states(self) -> None:
        """Count service ports by state, again only after a sync; keep the last counts when a worker is busy.

        The status must come while a worker hangs in the kernel: that is when operators need it.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._worker_timeout) as deadline, self._counting:
                version = self._compute_version()
                if self._states[0] != version:
                    view = await self._collect_plans()
                    deadline.reschedule(None)
                    counts = await asyncio.to_thread(self._cpu.run, partial(count_states, view))
                    self._states = (version, counts)

    async def follow_states(self) -> None:
        """Count service ports by state for the metrics, at bounded cost, until cancelled."""
        self._proxy.metrics.add_scraped_gauge(
            "pointsman_service_port_states",
            "Service ports by state",
            ("state",),
            lambda: {(state,): float(count) for state, count in self._states[1].items()},
        )
        while True:
            await asyncio.sleep(
                compute_pause(
                    self._cpu.last, OVERVIEW_PAUSE_FACTOR, CHECK_INTERVAL_SECONDS, MAX_INTERVAL_SECONDS
                )
            )
            await self._count_states()

    def _build_family_status(self, family: FamilyProxy) -> FamilyStatus:
        status = self._proxy.reporter.statuses[family.family]
        last = next((point.at for point in reversed(status.history) if not point.error), None)
        return msgspec.structs.replace(
            status,
            last_sync_age=None if last is None else max(0.0, time.time() - last),
            pending=family.pending,
            pause=family.loop.pacer.pause,
            history=list(status.history),
        )

    async def services(
        self, search: str, offset: int, limit: int, sort: str = "", *, reverse: bool = False
    ) -> ServicePage:
        """Return a page of service ports with the traffic sampled so far; keeps the sampling running."""
        view, samples = await self._collect_plans(), self._sampler.samples
        work = partial(build_page, view, search, offset, limit, sort, reverse=reverse, samples=samples)
        return await asyncio.to_thread(work)

    def traffic(self, service: str) -> ServiceTraffic:
        """Return the traffic of the endpoints of a Service; keeps the sampling running."""
        return self._sampler.samples.find_service(service)

    async def list(self, query: ListQuery) -> ServiceList | bytes:
        """Return what the query selects as gzip of JSON; when nothing changed since its version, a list with `unchanged`."""
        version = f"{self._compute_version()}/{self._proxy.objects.labels.changes}"
        if version == query.since:
            return ServiceList(node=self._proxy.node.name, version=version, unchanged=True)
        view, labels = await self._collect_plans(), self._proxy.objects.labels.copy()
        return await asyncio.to_thread(compress_list, view, labels, query, version)

    def history(self, query: HistoryQuery) -> HistoryReport:
        """Return the events that the query selects."""
        history, labels = self._proxy.history, self._proxy.objects.labels
        return build_history(self._proxy.node.name, history.revision, history.list_events(), query, labels)

    def _compute_version(self) -> str:
        """Return a value that differs after every sync, and when clients are blocked or no longer."""
        statuses = self._proxy.reporter.statuses.values()
        obstructed = (self._find_obstruction(family) for family in self._proxy.families)
        hidden = "".join(f"{sorted(one.clients)}{sorted(one.endpoints)}" for one in obstructed if any(one))
        return ":".join(str(status.history[-1].at) if status.history else "" for status in statuses) + hidden

    def _find_obstruction(self, family: Family) -> Obstruction:
        found = self._host_checks.obstructions.get(family) if self._host_checks else None
        return found or Obstruction()

    async def _collect_plans(self) -> View:
        """Collect all plans, without reading the kernel."""
        families = [
            self._build_family_view(family, await family.snapshot())
            for family in self._proxy.families.values()
        ]
        return self._build_view(tuple(families))

    async def explain(self, target: Target, client: str, *, kernel: bool) -> Explanation:
        """Explain a target; with `kernel`, read what the kernel holds for its Services."""
        views = [
            await self._collect_family_view(family, target, kernel=kernel)
            for family in self._proxy.families.values()
        ]
        host = self._host if kernel else None
        work = partial(_explain, self._build_view(tuple(views)), target, client, host)
        return await run_in_daemon_thread(work, "explain")

    def _build_view(self, families: tuple[FamilyView, ...]) -> View:
        return View(
            node=self._proxy.node.name,
            mode=mode_named(self._proxy.config.mode),
            live=True,
            families=families,
            service_findings=self._proxy.reporter.service_findings.all(),
            source_findings=tuple(
                finding for status in self._proxy.source.statuses.values() for finding in status.findings
            ),
            waiting_for=self._proxy.start.gate.waiting_for,
        )

    async def _collect_family_view(self, family: FamilyProxy, target: Target, *, kernel: bool) -> FamilyView:
        context = self._proxy.node.context(family.family)
        error = self._proxy.reporter.statuses[family.family].last_error

        def choose_concerned(plans: Mapping[ServicePortName, ServicePlan]) -> list[ServicePortName]:
            services = find_concerned_services(plans, target)
            return [name for name in plans if name.key in services]

        try:
            compared = await family.compare(context, choose_concerned) if kernel else None
        except KernelError as failure:
            compared, error = None, error or f"the kernel cannot be read: {failure}"
        taken = await family.snapshot() if compared is None else compared.taken
        concerned = await asyncio.to_thread(find_concerned_services, taken.plans, target)
        return msgspec.structs.replace(
            self._build_family_view(family, taken),
            slices={key: family.tracker.slices.count_endpoints(key) for key in concerned},
            last_error=error,
            differences=None if compared is None else compared.differences,
        )

    def _build_family_view(self, family: FamilyProxy, taken: Snapshot) -> FamilyView:
        node = self._proxy.node
        context = node.context(family.family)
        status = self._proxy.reporter.statuses[family.family]
        obstruction = self._find_obstruction(family.family)
        return FamilyView(
            context=context,
            plans=taken.plans,
            states=dict(family.tracker.states),
            node_addresses=tuple({*node.addresses[family.family], *context.node_ips}),
            localhost_node_ports=mode_named(node.config.mode).localhost_node_ports(node.config),
            pod_ranges=parse_pod_ranges(node.facts),
            rejected=taken.rejected,
            unsynced=taken.unsynced | family.tracker.pending_names,
            last_error=status.last_error,
            blocked=obstruction.clients,
            unreachable=obstruction.endpoints,
        )

    async def verify(self) -> Verification:
        return Verification(
            mode=self._proxy.config.mode,
            families=tuple([await self._verify(family) for family in self._proxy.families.values()]),
        )

    async def _verify(self, family: FamilyProxy) -> FamilyVerification:
        context = self._proxy.node.context(family.family)
        found: tuple[Difference, ...] = ()
        error = ""
        try:
            found = (await family.compare(context, lambda _plans: None)).differences
        except KernelError as failure:
            error = str(failure)
        return FamilyVerification(family.family.value, found, family.pending, error)


def _explain(view: View, target: Target, client: str, host: HostReader | None) -> Explanation:
    if host is not None:
        families = [
            msgspec.structs.replace(
                family, host=host.look(family.family, find_concerned_addresses(family, target, client))
            )
            for family in view.families
        ]
        view = msgspec.structs.replace(view, families=tuple(families))
    return explain(view, target, client)
