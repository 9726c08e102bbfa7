"""Reports of syncs: every outcome and failure becomes metrics, history, log lines and events here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from pointsman.backends.contract import Difference
from pointsman.kube.event_recorder import Recorder
from pointsman.model.addresses import Family
from pointsman.model.findings import Finding, Severity
from pointsman.model.objects import Meta
from pointsman.model.service_findings import ServiceFindings
from pointsman.obs.log import LogLimiter, get_log
from pointsman.obs.registry import Metrics
from pointsman.report.status import FamilyStatus, SyncPoint
from pointsman.sync.loop import SyncListener
from pointsman.sync.reconcile import SyncFailed, SyncOutcome
from pointsman.wording.findings import render_message

MAX_HISTORY = 240
"""Syncs kept for `status` and the status page."""

_log = get_log(__name__)


class Reporter(SyncListener):
    """Turns syncs into metrics, history, log lines and events."""

    def __init__(
        self,
        families: Iterable[Family],
        metrics: Metrics,
        recorder: Recorder,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.service_findings = ServiceFindings()
        self.statuses = {family: FamilyStatus(family.value) for family in families}
        self._rules_owned: dict[Family, dict[str, int]] = {family: {} for family in self.statuses}
        """As in the metrics: there are many tables, and one change concerns few of them."""
        self._metrics = metrics
        self._recorder = recorder
        self._log_limiter = LogLimiter(clock)
        for family in self.statuses:
            self._create_counters(family.value)

    def _create_counters(self, label: str) -> None:
        """Create the series with 0: one that begins with 1 hides its first event from alerts on an increase."""
        metrics = self._metrics
        for counter in (
            metrics.sync.drift_repaired,
            metrics.modes.nftables_failures,
            metrics.modes.restore_failures,
            metrics.modes.partial_restore_failures,
        ):
            counter.labels(ip_family=label)

    def on_queued(self, family: Family) -> None:
        self._metrics.sync.last_queued.labels(ip_family=family.value).set(time.time())

    def on_synced(self, outcome: SyncOutcome) -> None:
        family, report, now = outcome.family, outcome.report, time.time()
        self._measure(outcome, now)
        self.report_findings(outcome.findings)
        totals, status = outcome.totals, self.statuses[family]
        status.rejected = {str(name): reason for name, reason in report.rejected.items()}
        status.service_ports, status.endpoints = totals.service_ports, totals.endpoints
        status.without_local_endpoints = totals.without_local_internal + totals.without_local_external
        status.last_error = ""
        _remember(status, SyncPoint(now, outcome.seconds, report.full, len(outcome.changes)))
        for difference in report.corrected:
            _log.info("Corrected kernel state", ipFamily=family.value, what=str(difference))
        _log.info(
            "Synced",
            v=0 if outcome.first else 2,
            ipFamily=family.value,
            changed=len(outcome.changes),
            full=report.full,
            ms=round(outcome.seconds * 1000, 1),
        )

    def on_sync_failed(self, family: Family, failure: SyncFailed, retry_in: float) -> None:
        metrics, label = self._metrics, family.value
        metrics.modes.nftables_failures.labels(ip_family=label).inc()
        metrics.modes.restore_failures.labels(ip_family=label).inc()
        if not failure.full:
            metrics.modes.partial_restore_failures.labels(ip_family=label).inc()
        self.report_findings(failure.findings)
        status = self.statuses[family]
        status.last_error = str(failure)
        _remember(status, SyncPoint(time.time(), 0.0, failure.full, changed=0, error=str(failure)))
        _log.error(
            "Sync failed, keeping previous rules", err=failure, ipFamily=label, retryIn=f"{retry_in:.0f}s"
        )

    def on_drift_check_failed(self, family: Family, error: Exception) -> None:
        _log.warning("Drift check failed, rewriting the rules", err=error, ipFamily=family.value)

    def on_drift(self, family: Family, drift: Difference, restored_in: float) -> None:
        self.statuses[family].drift_repaired += 1
        self._metrics.sync.drift_repaired.labels(ip_family=family.value).inc()
        _log.warning(
            "Rules were modified externally, restoring them",
            ipFamily=family.value,
            what=str(drift),
            restoredIn=f"{restored_in:.0f}s",
        )
        note = f"{family.value} rules were modified externally: {drift}"
        self._recorder.node_event("ProxyRulesRestored", note)

    def on_finding(self, meta: Meta, finding: Finding) -> None:
        """Take a finding of a tracker about an object, or a part of it."""
        self.service_findings.add(meta, finding)
        self.report_findings((finding,))

    def report_findings(self, findings: Iterable[Finding]) -> None:
        """Count each in a metric, log it within bounds, and emit an event on a Service."""
        for finding in findings:
            reference, code, message = finding.object, finding.code.value, render_message(finding)
            if finding.severity is Severity.NOTICE:
                self._metrics.objects.warnings.labels(kind=reference.kind, reason=code).inc()
                text = "Object used with a warning"
            else:
                self._metrics.objects.skipped.labels(kind=reference.kind, reason=code).inc()
                text = "Object, or part of it, ignored"
            more = self._log_limiter.admit(code)
            if more is not None:
                _log.warning(text, kind=reference.kind, object=reference.name, reason=message, **more)
            if reference.kind == "Service":
                self._recorder.service_event(reference.key, code, message)

    def _measure(self, outcome: SyncOutcome, now: float) -> None:
        label, metrics, report = outcome.family.value, self._metrics, outcome.report
        metrics.sync.last.labels(ip_family=label).set(now)
        metrics.sync.seconds.labels(ip_family=label).observe(outcome.seconds)
        detail = metrics.sync.full_seconds if report.full else metrics.sync.partial_seconds
        detail.labels(ip_family=label).observe(outcome.seconds)
        programming = metrics.sync.programming_seconds.labels(ip_family=label)
        latency = metrics.sync.programming_latency.labels(ip_family=label)
        for times in outcome.trigger_times.values():
            for when in times:
                programming.observe(max(0.0, now - when))
                latency.observe(max(0.0, now - when))
        owned = dict(report.rules_total)
        for table, count in owned.items() - self._rules_owned[outcome.family].items():
            metrics.sync.rules_owned.labels(ip_family=label, table=table).set(count)
            metrics.modes.iptables_rules.labels(table=table, ip_family=label).set(count)
        self._rules_owned[outcome.family] = owned
        for table, count in report.rules_last.items():
            metrics.modes.iptables_rules_written.labels(table=table, ip_family=label).set(count)
        metrics.sync.batch_bytes.labels(ip_family=label).set(report.batch_bytes)
        metrics.sync.address_conflicts.labels(ip_family=label).set(sum(map(len, outcome.conflicts.values())))
        metrics.sync.services_rejected.labels(ip_family=label).set(len(report.rejected))
        totals = outcome.totals
        metrics.sync.service_ports.labels(ip_family=label).set(totals.service_ports)
        metrics.sync.endpoints.labels(ip_family=label).set(totals.endpoints)
        for policy, lacking in (
            ("internal", totals.without_local_internal),
            ("external", totals.without_local_external),
        ):
            metrics.sync.no_local_endpoints.labels(traffic_policy=policy, ip_family=label).set(lacking)


def _remember(status: FamilyStatus, point: SyncPoint) -> None:
    status.syncs += 1
    status.history.append(point)
    del status.history[:-MAX_HISTORY]
