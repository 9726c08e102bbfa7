"""What the process tells the cluster about itself and about objects it cannot use."""

from __future__ import annotations

from collections.abc import Callable

from pointsman.backends.contract import Mode
from pointsman.config.command_line import KUBE_PROXY, RunOptions
from pointsman.node.surroundings import Recorder
from pointsman.obs.log import get_log
from pointsman.obs.registry import Metrics

_log = get_log(__name__)


def announce(options: RunOptions, mode: Mode, recorder: Recorder) -> None:
    """The events kube-proxy emits at start."""
    recorder.node_event("Starting", "", warning=False)
    if options.program == KUBE_PROXY and not options.mode_explicit:
        recorder.node_event(
            "KubeProxyDefaultMode",
            "No proxy mode is configured, so iptables is used; a later release will pick nftables. "
            "Set mode in the configuration to keep it.",
        )
    for announcement in mode.announcements:
        recorder.node_event(announcement.reason, announcement.note)


def bad_object_report(metrics: Metrics, recorder: Recorder) -> Callable[[str, str, str], None]:
    """What to do about an object that cannot be read: log, metric, event; everything else goes on."""

    def report(kind: str, key: str, error: str) -> None:
        metrics.objects_skipped.labels(kind=kind, reason="Undecodable").inc()
        _log.error("An object cannot be read and is skipped", kind=kind, object=key, err=error)
        if kind == "Service":
            recorder.service_event(key, "Undecodable", error)
        else:
            recorder.node_event("Undecodable", f"{kind} {key}: {error}")

    return report
