"""Events, metrics and log lines about the start of the process and about objects that it cannot use."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from pointsman.backends.contract import Mode
from pointsman.config.options import KUBE_PROXY, RunOptions
from pointsman.kube.event_recorder import Recorder
from pointsman.model.balancing import BalancingDefaults, Scheduler
from pointsman.model.findings import Finding
from pointsman.obs.log import LogLimiter, get_log
from pointsman.obs.registry import Metrics
from pointsman.wording.findings import render_finding, render_message

_log = get_log(__name__)


def announce(options: RunOptions, mode: Mode, recorder: Recorder) -> None:
    """Record the events that kube-proxy emits at start, and settings that this mode does not support."""
    recorder.node_event("Starting", "", warning=False)
    if options.program == KUBE_PROXY and not options.mode_explicit:
        recorder.node_event(
            "KubeProxyDefaultMode",
            "No proxy mode is configured, so iptables is used; a later release will pick nftables. "
            "Set mode in the configuration to keep it.",
        )
    for announcement in mode.announcements:
        recorder.node_event(announcement.reason, announcement.note)
    for note in _find_unsupported(options.balancing, mode):
        _log.warning("Setting not supported by this mode", mode=mode.name, reason=note)
        recorder.node_event("BalancingNotPossible", note)


def _find_unsupported(requested: BalancingDefaults, mode: Mode) -> Iterator[str]:
    if requested.scheduler is not Scheduler.RANDOM:
        flag = f"--default-scheduler={requested.scheduler.value} has no effect in {mode.name} mode"
        if mode.capabilities.has_default_scheduler:
            yield f"{flag}: --ipvs-scheduler decides there"
        elif requested.scheduler not in mode.capabilities.schedulers:
            yield f"{flag}: endpoints are chosen at random"
    if requested.slow_start and not mode.capabilities.adjusts_shares:
        yield f"--default-slow-start has no effect in {mode.name} mode: new endpoints get their full share at once"
    if requested.dns_timeout and not mode.capabilities.sets_flow_timeouts:
        yield f"--dns-udp-timeout has no effect in {mode.name} mode: DNS flows expire as others do"


class FindingReport:
    """Reports findings of a source: log, metric, event.

    A directory or a server may bring a hundred thousand bad objects at once: the metric counts each, the log is limited.
    """

    def __init__(
        self, metrics: Metrics, recorder: Recorder, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._metrics = metrics
        self._recorder = recorder
        self._log_limiter = LogLimiter(clock)

    def __call__(self, finding: Finding) -> None:
        if finding.is_error:
            reference, code = finding.object, finding.code.value
            self._metrics.objects.skipped.labels(kind=reference.kind, reason=code).inc()
            if reference.kind == "Service" and reference.key:
                self._recorder.service_event(reference.key, code, render_message(finding))
            else:
                self._recorder.node_event(code, render_finding(finding))
        self._log(finding)

    def _log(self, finding: Finding) -> None:
        reference = finding.object
        more = self._log_limiter.admit(reference.kind)
        if more is None:
            return
        fields: dict[str, object] = {
            "kind": reference.kind,
            "object": reference.key,
            "reason": finding.code.value,
        }
        if reference.place:
            fields["place"] = reference.place
        fields |= more
        if finding.is_error:
            _log.error("Object skipped", err=render_message(finding), **fields)
        else:
            _log.warning("Object used with a warning", warning=render_message(finding), **fields)
