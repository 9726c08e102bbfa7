"""One IP family of the running proxy: its tracker, its worker thread, its loop, and its recent history."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec

from pointsman.backends.contract import Backend, Drift
from pointsman.errors import KernelError
from pointsman.model.addresses import Family
from pointsman.model.node_context import NodeContext
from pointsman.model.problem import Problem
from pointsman.model.service import ServicePortName
from pointsman.model.tracker import OnProblem, Tracker
from pointsman.obs.log import get_log
from pointsman.obs.registry import Metrics
from pointsman.serve.health import ProxyHealth
from pointsman.sync.loop import SyncHooks, SyncLoop
from pointsman.sync.pacing import Pace, Pacer
from pointsman.sync.reconcile import Reconciler, SyncOutcome

T = TypeVar("T")

_log = get_log(__name__)

HISTORY = 240
"""Syncs remembered for `status` and the status page."""


class SyncRecord(msgspec.Struct, frozen=True):
    """One sync as an operator wants to see it."""

    at: float
    """Unix time at its end."""
    seconds: float
    full: bool
    changed: int
    batch_bytes: int = 0
    error: str = ""


class FamilyHooks(SyncHooks):
    """Turns what the loop reports into metrics, health and history."""

    def __init__(
        self,
        family: Family,
        metrics: Metrics,
        health: ProxyHealth,
        after_sync: Callable[[SyncOutcome], None],
        on_drift: Callable[[Drift], None],
    ) -> None:
        self.history: deque[SyncRecord] = deque(maxlen=HISTORY)
        self.last_error = ""
        self.rejected: Mapping[ServicePortName, str] = {}
        self.drift_repaired = 0
        self._family = family
        self._metrics = metrics
        self._health = health
        self._after_sync = after_sync
        self._on_drift = on_drift

    def queued(self) -> None:
        self._health.queued(self._family)
        self._metrics.last_queued.labels(ip_family=self._family.value).set(time.time())

    def succeeded(self, outcome: SyncOutcome) -> None:
        family, metrics, now = self._family.value, self._metrics, time.time()
        report = outcome.report
        self._health.updated(self._family)
        metrics.last_sync.labels(ip_family=family).set(now)
        metrics.sync_seconds.labels(ip_family=family).observe(outcome.seconds)
        detail = metrics.sync_full_seconds if report.full else metrics.sync_partial_seconds
        detail.labels(ip_family=family).observe(outcome.seconds)
        for times in outcome.trigger_times.values():
            for when in times:
                metrics.programming_seconds.labels(ip_family=family).observe(max(0.0, now - when))
        for table, count in report.rules_total.items():
            metrics.rules_owned.labels(ip_family=family, table=table).set(count)
            metrics.iptables_rules.labels(table=table, ip_family=family).set(count)
        for table, count in report.rules_last.items():
            metrics.iptables_rules_written.labels(table=table, ip_family=family).set(count)
        metrics.batch_bytes.labels(ip_family=family).set(report.batch_bytes)
        metrics.services_rejected.labels(ip_family=family).set(len(report.rejected))
        for note in report.notes:
            _log.info("Sync note", ipFamily=family, note=note)
        self.rejected = report.rejected
        self.last_error = ""
        self.history.append(
            SyncRecord(now, outcome.seconds, report.full, len(outcome.changes), report.batch_bytes)
        )
        _log.info(
            "Synced",
            v=0 if outcome.first else 2,
            ipFamily=family,
            changed=len(outcome.changes),
            full=report.full,
            ms=round(outcome.seconds * 1000, 1),
        )
        self._after_sync(outcome)

    def failed(self, error: KernelError, retry_in: float) -> None:
        family, metrics = self._family.value, self._metrics
        self._health.queued(self._family)
        metrics.nftables_failures.labels(ip_family=family).inc()
        metrics.restore_failures.labels(ip_family=family).inc()
        if error.partial:
            metrics.partial_restore_failures.labels(ip_family=family).inc()
        self.last_error = str(error)
        self.history.append(SyncRecord(time.time(), 0.0, full=False, changed=0, error=str(error)))
        _log.error("Sync failed, the old rules stand", err=error, ipFamily=family, retryIn=f"{retry_in:.0f}s")

    def unsure(self, error: Exception) -> None:
        _log.warning(
            "Cannot look at our own rules; writing them anew", err=error, ipFamily=self._family.value
        )

    def drifted(self, drift: Drift) -> None:
        self.drift_repaired += 1
        self._metrics.drift_repaired.labels(ip_family=self._family.value).inc()
        _log.warning(
            "Somebody else changed our rules; restoring them", ipFamily=self._family.value, what=str(drift)
        )
        self._on_drift(drift)


class FamilyProxy:
    """Everything that belongs to one IP family while the proxy runs."""

    def __init__(
        self,
        family: Family,
        node_name: str,
        backend: Backend,
        pace: Pace,
        *,
        hooks: FamilyHooks,
        context: Callable[[], NodeContext],
        allow_external_ips: bool,
        drift_period: float,
        on_problem: OnProblem | None = None,
        on_refused: Callable[[ServicePortName, Problem], None] | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.family = family
        self.hooks = hooks
        self.tracker = Tracker(
            family,
            node_name,
            allow_external_ips=allow_external_ips,
            started_at=time.time(),
            on_problem=on_problem,
        )

        def refused(name: ServicePortName, problem: Problem) -> None:
            if on_refused is not None:
                loop.call_soon_threadsafe(on_refused, name, problem)

        self.reconciler = Reconciler(backend, on_refused=refused)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"sync-{family.value}")
        self.loop = SyncLoop(
            self.tracker,
            self.reconciler,
            Pacer(pace, loop.time()),
            context=context,
            run_blocking=self.run_blocking,
            hooks=hooks,
            drift_period=drift_period,
        )

    async def run_blocking(self, call: Callable[[], T]) -> T:
        """Run on this family's worker thread, where the backend and the plans live."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def close(self) -> None:
        """Wait for a sync under way, then let go; kernel state stays."""
        await self.run_blocking(self.reconciler.backend.close)
        self._thread.shutdown()
