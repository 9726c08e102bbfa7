"""What a source finds wrong reaches log, metric and events, in bounded measure."""

from __future__ import annotations

import pytest
from tests.harness.metrics import read_metric

from pointsman.app.announcements import FindingReport
from pointsman.kube.event_recorder import Recorder
from pointsman.model.findings import Code, Finding, ObjectReference, Severity
from pointsman.obs.registry import Metrics

BAD = Finding(
    Code.INVALID,
    Severity.ERROR,
    ObjectReference("Service", "shop/web", place="web.yaml"),
    {"detail": "spec.ports: required"},
)


class Events(Recorder):
    """Records what would become Kubernetes events."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str]] = []

    def node_event(self, reason: str, note: str, *, warning: bool = True) -> None:
        self.seen.append(("node", reason, note))

    def service_event(self, key: str, reason: str, note: str, *, action: str = "") -> None:
        self.seen.append((key, reason, note))


def skipped(metrics: Metrics) -> float:
    text = metrics.render().decode()
    return read_metric(text, "pointsman_objects_skipped_total", kind="Service", reason="Invalid")


def test_a_rejection_is_logged_once_counted_and_told_as_an_event(caplog: pytest.LogCaptureFixture) -> None:
    metrics, events = Metrics("nftables"), Events()
    FindingReport(metrics, events)(BAD)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert skipped(metrics) == 1
    assert events.seen == [("shop/web", "Invalid", "spec.ports: required")]


def test_a_remark_on_a_served_object_is_no_error_and_counts_as_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metrics, events = Metrics("nftables"), Events()
    reference = ObjectReference("Service", "shop/web")
    notice = Finding(Code.NOT_ALLOCATED, Severity.NOTICE, reference, {"detail": "no node port"})
    FindingReport(metrics, events)(notice)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert skipped(metrics) == 0
    assert events.seen == []


def test_a_flood_of_rejections_writes_few_lines_and_counts_all(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    metrics = Metrics("nftables")
    report = FindingReport(metrics, Events(), clock=lambda: now[0])
    for _ in range(200_000):
        report(BAD)
    assert len(caplog.records) == 20
    now[0] = 10.0
    report(BAD)
    assert caplog.records[-1].__dict__["fields"]["suppressed"] == 199_980
    assert skipped(metrics) == 200_001
