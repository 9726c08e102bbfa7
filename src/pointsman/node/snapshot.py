"""The running proxy seen from inside: what status, explain, verify and the status page tell, taken consistently.

Plans belong to the worker thread of their family, so they are copied there; trackers belong to the event loop. What
is copied is immutable, and the explaining itself happens on another thread: watches and health never wait for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec
from aiohttp import web

from pointsman import __version__
from pointsman.backends import mode_named
from pointsman.backends.contract import Difference
from pointsman.errors import KernelError
from pointsman.explain.answer import concerned_services, explain, kernel_difference
from pointsman.explain.report import Explanation
from pointsman.explain.target import BadQuestion, Target, target_from_text
from pointsman.explain.view import FamilyView, View
from pointsman.model.addresses import address_text
from pointsman.model.plan import ServicePlan
from pointsman.model.service import ServicePortName
from pointsman.node.family import FamilyProxy
from pointsman.node.node_context import pod_ranges
from pointsman.node.proxy import Proxy
from pointsman.report.overview import MAX_ROWS, Plans, ServicePage, service_page
from pointsman.report.status import (
    FamilyStatus,
    FamilyVerification,
    ReloadReport,
    StatusReport,
    SyncPoint,
    Verification,
    WatchReport,
)
from pointsman.serve.http import Handler, reply, text_response


class _Taken(NamedTuple):
    """What is read on the worker thread of a family, in one go."""

    plans: Mapping[ServicePortName, ServicePlan]
    unsynced: frozenset[ServicePortName]
    differences: tuple[Difference, ...] | None
    concerned: frozenset[str]


class Inspector:
    """Reads one Proxy; never changes it."""

    def __init__(
        self,
        proxy: Proxy,
        *,
        reload: Callable[[], ReloadReport] = ReloadReport,
        degraded: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._proxy = proxy
        self._reload = reload
        self._degraded = degraded

    def status(self) -> StatusReport:
        """Cheap: counters and the recent past."""
        proxy, now = self._proxy, time.monotonic()
        return StatusReport(
            version=__version__,
            mode=proxy.config.mode,
            node=proxy.settings.node_name,
            zone=proxy.facts.zone,
            addresses=tuple(address_text(address) for address in proxy.facts.ips),
            uptime=time.time() - proxy.started_at,
            waiting_for=proxy.waiting_for,
            families=tuple(self._family_status(family) for family in proxy.families.values()),
            watches=tuple(
                WatchReport(
                    kind=kind,
                    connected=status.connected or status.absent,
                    synced=status.synced or status.absent,
                    age=status.age(now),
                    objects=status.objects,
                    bad_objects=status.bad_objects,
                    failures=status.failures_total,
                    last_error=status.last_error,
                )
                for kind, status in proxy.source.statuses.items()
            ),
            reload=self._reload(),
            degraded=dict(self._degraded()),
        )

    def _family_status(self, family: FamilyProxy) -> FamilyStatus:
        hooks, reconciler = family.hooks, family.reconciler
        history = tuple(
            SyncPoint(record.at, record.seconds, record.full, record.changed, record.error)
            for record in hooks.history
        )
        successes = [point.at for point in history if not point.error]
        health = self._proxy.health.health().status.get(family.family)
        return FamilyStatus(
            family=family.family.value,
            last_sync_age=max(0.0, time.time() - successes[-1]) if successes else None,
            healthy=health is None or health.healthy,
            pending=family.tracker.pending + reconciler.unsynced,
            service_ports=len(reconciler.plans),
            endpoints=reconciler.endpoint_count,
            without_local_endpoints=len(reconciler.without_local_internal)
            + len(reconciler.without_local_external),
            rejected={str(name): reason for name, reason in hooks.rejected.items()},
            last_error=hooks.last_error,
            drift_repaired=hooks.drift_repaired,
            history=history,
        )

    async def plans(self) -> Plans:
        """All plans as they are now."""
        return {
            family: await proxy.run_blocking(proxy.reconciler.plans.copy)
            for family, proxy in self._proxy.families.items()
        }

    async def services(self, search: str, offset: int, limit: int) -> ServicePage:
        plans = await self.plans()
        return await asyncio.to_thread(service_page, plans, search, offset, limit)

    async def explain(self, target: Target, client: str, *, kernel: bool) -> Explanation:
        """The explanation; with `kernel` the kernel is read, which takes a moment on the sync thread."""
        views = [await self._view(family, target, kernel=kernel) for family in self._proxy.families.values()]
        view = View(
            node=self._proxy.settings.node_name,
            mode=mode_named(self._proxy.config.mode),
            live=True,
            families=tuple(views),
            remarks=self._proxy.remarks.all(),
            waiting_for=self._proxy.waiting_for,
        )
        return await asyncio.to_thread(explain, view, target, client)

    async def _view(self, family: FamilyProxy, target: Target, *, kernel: bool) -> FamilyView:
        context = self._proxy.context(family.family)

        def read() -> _Taken:
            reconciler = family.reconciler
            found = tuple(reconciler.verify(context)) if kernel else None
            plans = dict(reconciler.plans)
            return _Taken(plans, reconciler.unsynced_names, found, concerned_services(plans, target))

        error = family.hooks.last_error
        try:
            taken = await family.run_blocking(read)
        except KernelError as failure:
            kernel = False
            taken = await family.run_blocking(read)
            error = error or f"the kernel cannot be read: {failure}"
        addresses = self._proxy.addresses(family.family)
        return FamilyView(
            context=context,
            plans=taken.plans,
            states=dict(family.tracker.states),
            slices={key: family.tracker.slice_ports(key) for key in taken.concerned},
            node_addresses=tuple({*addresses, *context.node_ips}),
            localhost_node_ports=mode_named(self._proxy.config.mode).localhost_node_ports(self._proxy.config),
            pod_ranges=pod_ranges(self._proxy.facts),
            rejected=dict(family.hooks.rejected),
            unsynced=taken.unsynced | family.tracker.pending_names,
            last_error=error,
            differences=taken.differences,
        )

    async def verify(self) -> Verification:
        return Verification(
            mode=self._proxy.config.mode,
            families=tuple([await self._verify(family) for family in self._proxy.families.values()]),
        )

    async def _verify(self, family: FamilyProxy) -> FamilyVerification:
        context = self._proxy.context(family.family)
        name, error = family.family.value, ""
        found: list[Difference] = []
        try:
            found = await family.run_blocking(lambda: family.reconciler.verify(context))
        except KernelError as failure:
            error = str(failure)
        pending = family.tracker.pending + family.reconciler.unsynced
        return FamilyVerification(name, tuple(kernel_difference(entry) for entry in found), pending, error)


def control_routes(inspector: Inspector) -> dict[str, Handler]:
    """What the control socket answers."""

    async def status(_request: web.BaseRequest) -> web.Response:
        return _json(inspector.status())

    async def verify(_request: web.BaseRequest) -> web.Response:
        return _json(await inspector.verify())

    return {
        "/status": status,
        "/verify": verify,
        "/explain": explain_handler(inspector, kernel=True),
        "/plans": services_handler(inspector),
    }


def page_data_routes(inspector: Inspector) -> dict[str, Handler]:
    """What the status page reads; it never makes the proxy read the kernel."""

    async def status(_request: web.BaseRequest) -> web.Response:
        return _json(inspector.status())

    return {
        "/status.json": status,
        "/services.json": services_handler(inspector),
        "/explain.json": explain_handler(inspector, kernel=False),
    }


def explain_handler(inspector: Inspector, *, kernel: bool) -> Handler:
    async def answer(request: web.BaseRequest) -> web.Response:
        query = request.query
        try:
            target = target_from_text(query.get("target", ""))
            wanted = kernel and query.get("kernel", "1") != "0"
            explanation = await inspector.explain(target, query.get("from", ""), kernel=wanted)
        except BadQuestion as error:
            return text_response(f"{error}\n", 400)
        return _json(explanation)

    return answer


def services_handler(inspector: Inspector) -> Handler:
    async def answer(request: web.BaseRequest) -> web.Response:
        query = request.query
        offset, limit = _number(query.get("offset"), 0), _number(query.get("limit"), MAX_ROWS)
        return _json(await inspector.services(query.get("search", "")[:200], offset, limit))

    return answer


def _number(text: str | None, default: int) -> int:
    usable = text is not None and text.isascii() and text.isdigit() and len(text) < 10
    return int(text) if usable and text is not None else default


def _json(value: object) -> web.Response:
    return reply(msgspec.json.encode(value), "application/json", headers={"Cache-Control": "no-store"})
