"""What syncs and failures leave in metrics, history and events: all of it is made by the reporter."""

from __future__ import annotations

import logging

import msgspec
import pytest
from tests import factory

from pointsman.backends import mode_named
from pointsman.backends.contract import PRESENT, Difference, SyncReport
from pointsman.kube.event_recorder import Recorder
from pointsman.model.addresses import Family
from pointsman.model.findings import Code, Finding, ObjectReference, Severity, build_bad_annotation
from pointsman.node.reporter import MAX_HISTORY, Reporter
from pointsman.obs.registry import Metrics
from pointsman.sync.reconcile import PlanChange, SyncFailed, SyncOutcome, Totals
from pointsman.wording.findings import render_message

WEB = factory.service_port()


class Events(Recorder):
    """A recorder that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, ...]] = []

    def node_event(self, reason: str, note: str, *, warning: bool = True) -> None:
        self.told.append(("node", "warning" if warning else "normal", reason, note))

    def service_event(self, key: str, reason: str, note: str, *, action: str = "") -> None:
        self.told.append((key, reason, note))


class Desk:
    """A reporter and everything it writes to."""

    def __init__(self, mode: str = "nftables") -> None:
        self.now = 0.0
        self.metrics = Metrics(mode, mode_named(mode).metrics)
        self.events = Events()
        self.reporter = Reporter([Family.IPV4], self.metrics, self.events, clock=lambda: self.now)
        self.record = self.reporter.statuses[Family.IPV4]

    def metric(self, name: str) -> float | None:
        lines = self.metrics.render().decode().splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} ")), None)


CONTESTED = Finding(
    Code.CONTESTED_ADDRESS,
    Severity.WARNING,
    ObjectReference("Service", WEB.name.key, WEB.name.port),
    {"address": "198.51.100.1", "frontend": "198.51.100.1:80", "holder": "default/old"},
)


def outcome(**fields: object) -> SyncOutcome:
    change = PlanChange(None, factory.plan(WEB))
    made: dict[str, object] = {
        "report": SyncReport(
            full=False,
            rejected={WEB.name: "EINVAL"},
            rules_total={"map": 7},
            batch_bytes=99,
        ),
        "changes": {WEB.name: change},
        "trigger_times": {"default/web": (0.0, 1.0)},
        "context": factory.context(),
        "seconds": 0.5,
        "first": True,
        "totals": Totals(3, 12, 1, 2),
    }
    return SyncOutcome(**{**made, **fields})  # type: ignore[arg-type]


def test_one_sync_sets_all_its_metrics_and_its_history() -> None:
    desk = Desk()
    desk.reporter.on_queued(Family.IPV4)
    desk.reporter.on_synced(outcome())
    family = 'ip_family="IPv4"'
    expected = {
        f"pointsman_service_ports{{{family}}}": 3,
        f"pointsman_endpoints{{{family}}}": 12,
        f"pointsman_services_rejected{{{family}}}": 1,
        f"pointsman_batch_bytes{{{family}}}": 99,
        f'pointsman_rules_owned{{{family},table="map"}}': 7,
        f"kubeproxy_sync_partial_proxy_rules_duration_seconds_count{{{family}}}": 1,
        f"kubeproxy_sync_full_proxy_rules_duration_seconds_count{{{family}}}": None,
        f"kubeproxy_network_programming_duration_seconds_count{{{family}}}": 2,
        f"pointsman_programming_latency_seconds_count{{{family}}}": 2,
        f'kubeproxy_sync_proxy_rules_no_local_endpoints_total{{{family},traffic_policy="internal"}}': 1,
        f'kubeproxy_sync_proxy_rules_no_local_endpoints_total{{{family},traffic_policy="external"}}': 2,
    }
    assert {name: desk.metric(name) for name in expected} == expected
    assert [(point.seconds, point.full, point.changed) for point in desk.record.history] == [(0.5, False, 1)]
    assert (desk.record.endpoints, desk.record.without_local_endpoints) == (12, 3)
    assert desk.record.rejected == {str(WEB.name): "EINVAL"}


def test_each_sync_shows_the_rules_that_changed_their_number() -> None:
    desk = Desk()
    for count in (7, 7, 3):
        desk.reporter.on_synced(outcome(report=SyncReport(full=False, rules_total={"map": count, "set": 1})))
        assert desk.metric('pointsman_rules_owned{ip_family="IPv4",table="map"}') == count
    assert desk.metric('pointsman_rules_owned{ip_family="IPv4",table="set"}') == 1


def test_all_syncs_are_counted_beyond_those_that_the_history_keeps() -> None:
    desk = Desk()
    for _ in range(MAX_HISTORY + 5):
        desk.reporter.on_synced(outcome())
    desk.reporter.on_sync_failed(Family.IPV4, SyncFailed("no", full=False), 1.0)
    assert (desk.record.syncs, len(desk.record.history)) == (MAX_HISTORY + 6, MAX_HISTORY)


@pytest.mark.parametrize(("full", "counted"), [(True, 0), (False, 1)])
def test_failed_restores_are_counted_and_partial_ones_apart(full: bool, counted: int) -> None:
    desk = Desk("iptables")
    desk.reporter.on_sync_failed(Family.IPV4, SyncFailed("line 3 refused", full=full), 1.0)
    prefix = "kubeproxy_sync_proxy_rules_iptables"
    assert desk.metric(f'{prefix}_restore_failures_total{{ip_family="IPv4"}}') == 1
    assert desk.metric(f'{prefix}_partial_restore_failures_total{{ip_family="IPv4"}}') == counted
    assert desk.record.last_error == "line 3 refused"
    desk.reporter.on_synced(outcome())
    assert desk.record.last_error == ""
    assert [point.error for point in desk.record.history] == ["line 3 refused", ""]


@pytest.mark.parametrize("failing", [False, True])
def test_a_refusal_becomes_a_metric_and_an_event_on_its_service(failing: bool) -> None:
    desk = Desk()
    findings = (CONTESTED,)
    if failing:
        desk.reporter.on_sync_failed(Family.IPV4, SyncFailed("no", full=True, findings=findings), 1.0)
    else:
        desk.reporter.on_synced(outcome(findings=findings))
    skipped = 'pointsman_objects_skipped_total{kind="Service",reason="ContestedAddress"}'
    assert desk.metric(skipped) == 1
    assert desk.events.told == [
        ("default/web", "ContestedAddress", "198.51.100.1:80 is served by default/old")
    ]


@pytest.mark.parametrize("served", [False, True])
def test_a_flood_of_problems_writes_few_lines_and_hides_no_other_reason(
    served: bool, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk()
    severity = Severity.NOTICE if served else Severity.WARNING
    bad = build_bad_annotation("x", "a", "a number")
    flood = msgspec.structs.replace(bad, object=CONTESTED.object, severity=severity)
    contested = msgspec.structs.replace(CONTESTED, severity=severity)
    desk.reporter.on_synced(outcome(findings=(*[flood] * 5000, contested)))
    lines = [record.__dict__["fields"] for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == 21
    assert lines[-1]["reason"] == "198.51.100.1:80 is served by default/old"
    desk.now = 10.0
    desk.reporter.on_synced(outcome(findings=(flood,)))
    told_again = [record for record in caplog.records if record.levelno >= logging.WARNING][-1]
    assert told_again.__dict__["fields"]["suppressed"] == 4980
    name = "object_warnings" if served else "objects_skipped"
    assert desk.metric(f'pointsman_{name}_total{{kind="Service",reason="BadAnnotation"}}') == 5001


def test_a_warning_about_what_is_served_becomes_a_metric_and_an_event_and_is_not_counted_as_left_out() -> (
    None
):
    desk = Desk()
    parameters = {"address": "10.96.0.77"}
    doubtful = Finding(Code.ADDRESS_IN_SERVICE_RANGE, Severity.NOTICE, CONTESTED.object, parameters)
    desk.reporter.on_synced(outcome(findings=(doubtful,)))
    labels = '{kind="Service",reason="AddressInServiceRange"}'
    assert desk.metric(f"pointsman_object_warnings_total{labels}") == 1
    assert desk.metric(f"pointsman_objects_skipped_total{labels}") is None
    assert desk.events.told == [("default/web", "AddressInServiceRange", render_message(doubtful))]


def test_repaired_drift_is_counted_and_told_on_the_node() -> None:
    desk = Desk()
    desk.reporter.on_drift(Family.IPV4, Difference("table kube-proxy", PRESENT), 0.0)
    assert desk.record.drift_repaired == 1
    assert desk.metric('pointsman_drift_repaired_total{ip_family="IPv4"}') == 1
    assert [entry[:3] for entry in desk.events.told] == [("node", "warning", "ProxyRulesRestored")]


def test_failures_and_repairs_are_counted_from_zero() -> None:
    """A series that begins with 1 shows no increase."""
    desk = Desk()
    family = 'ip_family="IPv4"'
    assert desk.metric(f"pointsman_drift_repaired_total{{{family}}}") == 0
    assert desk.metric(f"kubeproxy_sync_proxy_rules_nftables_sync_failures_total{{{family}}}") == 0
    iptables = Desk("iptables")
    prefix = "kubeproxy_sync_proxy_rules_iptables"
    assert iptables.metric(f"{prefix}_restore_failures_total{{{family}}}") == 0
    assert iptables.metric(f"{prefix}_partial_restore_failures_total{{{family}}}") == 0
