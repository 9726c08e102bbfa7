"""The status of a proxy as text, and the exit status that follows from its conditions."""

from __future__ import annotations

from typing import Any

import pytest

from pointsman.backends.contract import PRESENT, Difference
from pointsman.conditions import Blocks, Condition
from pointsman.report.status import (
    FamilyStatus,
    ProxyState,
    ReloadReport,
    StatusReport,
    WatchReport,
    render_difference,
    render_status,
)

FAMILY = FamilyStatus(
    family="IPv4",
    last_sync_age=1.0,
    pending=0,
    service_ports=3,
    endpoints=3,
    without_local_endpoints=0,
    rejected={},
    last_error="",
    drift_repaired=0,
)
WATCH = {
    "kind": "manifests",
    "connected": True,
    "synced": True,
    "age": 1.0,
    "objects": 3,
    "bad_objects": 0,
    "failures": 0,
    "last_error": "",
}


def report(*conditions: Condition, watch: dict[str, Any] | None = None, **fields: Any) -> StatusReport:
    return StatusReport(
        version="1",
        mode="nftables",
        node="n1",
        zone="",
        addresses=(),
        uptime=1.0,
        families=(FAMILY,),
        watches=(WatchReport(**{**WATCH, **(watch or {})}),),
        reload=ReloadReport(),
        health=ProxyState.of(conditions),
        conditions=conditions,
        **fields,
    )


@pytest.mark.parametrize("blocks", [one for one in Blocks if one is not Blocks.NOTHING])
def test_a_condition_that_blocks_anything_makes_the_exit_status(blocks: Blocks) -> None:
    found = report(Condition.false("SyncIPv4", "SyncFailed", "no memory", "add some", blocks=blocks))
    assert (found.health, found.exit_status) == (ProxyState.FAILING, 1)
    text = render_status(found)
    assert "✗ SyncIPv4: no memory: add some" in text
    assert "✓" not in text


def test_a_condition_that_blocks_nothing_is_shown_after_the_others_and_is_no_failure() -> None:
    score = Condition.false("OOMScore", "NotPermitted", "not permitted")
    found = report(score)
    assert (found.health, found.exit_status) == (ProxyState.DEGRADED, 0)
    text = render_status(found)
    assert "! degraded: OOMScore: not permitted" in text
    assert "✓" not in text
    text = render_status(report(score, Condition.false("Started", "A", "waiting", blocks=Blocks.READINESS)))
    assert text.index("✗ Started: waiting") < text.index("! degraded: OOMScore")


def test_true_and_unknown_conditions_are_no_known_problem() -> None:
    unknown = Condition.unknown("RulesIPv4", "NotCheckedYet", "not checked yet", blocks=Blocks.READINESS)
    found = report(Condition.true("SyncIPv4", Blocks.READINESS), unknown)
    assert (found.health, found.exit_status) == (ProxyState.HEALTHY, 0)
    assert "✓ no known problems\n" in render_status(found) + "\n"


def test_services_that_are_down_are_counted_and_no_problem_of_the_proxy() -> None:
    found = report(service_states={"down": 1, "partial": 2, "healthy": 3})
    assert found.exit_status == 0
    text = render_status(found)
    assert "! 1 of 6 service ports is down; to see which: pointsman list --state down" in text
    assert "! 2 of 6 service ports are partial (some clients fail)" in text
    assert "✓ no known problems of the proxy itself" in text


def test_kinds_of_which_a_proxy_has_no_use_are_no_failure() -> None:
    found = report(watch={"ignored": {"Deployment": 1, "Ingress": 2}})
    assert found.health is ProxyState.HEALTHY
    assert "1 Deployment, 2 Ingress" in render_status(found)


def test_an_object_that_is_gone_is_said_to_be_missing() -> None:
    assert render_difference(Difference("table ip kube-proxy", PRESENT)) == ["table ip kube-proxy: missing"]
