"""/readyz: what must hold before this node serves its packets."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests import factory

from pointsman.backends.contract import PRESENT, Difference, SyncReport
from pointsman.model.addresses import Family
from pointsman.model.node_context import NodeContext
from pointsman.node.readiness import Readiness
from pointsman.serve.health import ProxyHealth
from pointsman.serve.readiness import Check, readyz_answer
from pointsman.sync.reconcile import SyncFailed, SyncOutcome

SECOND = 1_000_000_000


class Surroundings:
    """What the others would say."""

    waiting_for = ""
    now = 0.0

    def __init__(self) -> None:
        self.closed: dict[str, str] = {}
        self.health = ProxyHealth(
            30 * SECOND, waiting_for=lambda: self.waiting_for, monotonic=lambda: int(self.now * SECOND)
        )
        self.health.node_changed(factory.node())
        self.readiness = Readiness(
            (Family.IPV4,),
            self.health,
            unserved=dict,
            waiting_for=lambda: self.waiting_for,
            closed_ports=lambda: self.closed,
        )

    @property
    def failing(self) -> dict[str, str]:
        return {check.name: check.reason for check in self.readiness.checks() if check.reason}

    def settle(self) -> None:
        self.readiness.on_synced(outcome())
        self.readiness.on_drift_check_passed(Family.IPV4)
        self.health.updated(Family.IPV4)


def outcome() -> SyncOutcome:
    return SyncOutcome(
        report=SyncReport(full=True),
        changes={},
        trigger_times={},
        context=NodeContext(Family.IPV4, "n"),
        seconds=0.1,
        first=True,
    )


def test_a_node_is_ready_after_its_first_sync_was_found_intact() -> None:
    node = Surroundings()
    node.waiting_for = "the first list of Service"
    assert node.failing == {
        "sources-listed": "waiting for the first list of Service",
        "IPv4-synced": "not yet",
        "IPv4-rules-intact": "not yet",
    }
    node.waiting_for = ""
    node.readiness.on_synced(outcome())
    assert node.failing == {"IPv4-rules-intact": "not yet"}
    node.readiness.on_drift_check_passed(Family.IPV4)
    assert node.failing == {}


def test_a_failed_sync_counts_until_the_next_success() -> None:
    node = Surroundings()
    node.settle()
    node.readiness.on_sync_failed(Family.IPV4, SyncFailed("no memory", full=True), 1.0)
    assert node.failing == {"IPv4-synced": "no memory"}
    node.readiness.on_synced(outcome())
    assert node.failing == {}


def test_changed_or_unreadable_rules_count_until_they_are_found_intact() -> None:
    node = Surroundings()
    node.settle()
    drift = Difference("table kube-proxy", PRESENT, "something else")
    node.readiness.on_drift(Family.IPV4, drift, 0.0)
    assert node.failing == {"IPv4-rules-intact": f"changed by others: {drift}"}
    node.readiness.on_drift_check_passed(Family.IPV4)
    node.readiness.on_drift_check_failed(Family.IPV4, OSError("busy"))
    assert node.failing == {"IPv4-rules-intact": "cannot be read: busy"}
    node.readiness.on_drift_check_passed(Family.IPV4)
    assert node.failing == {}


def test_closed_ports_and_leaving_count() -> None:
    node = Surroundings()
    node.settle()
    node.closed["shop/web"] = "port 30990 is taken"
    node.health.leave()
    assert node.failing == {
        "ports-open": "shop/web: port 30990 is taken",
        "staying": "the process was told to end",
    }


def hang(node: Surroundings) -> None:
    node.health.busy(Family.IPV4)
    node.now += 60


def lag(node: Surroundings) -> None:
    node.health.queued(Family.IPV4)
    node.now += 60


def wait(node: Surroundings) -> None:
    node.waiting_for = "the Node n1"
    node.now += 60


@pytest.mark.parametrize(
    ("happen", "why"),
    [
        (hang, {"IPv4-keeping-up": "the worker thread has not come back for 60 s"}),
        (lag, {"IPv4-keeping-up": "no sync has succeeded for 60 s"}),
        (wait, {"sources-listed": "waiting for the Node n1"}),
        (lambda node: node.health.leave(), {"staying": "the process was told to end"}),
        (
            lambda node: node.health.node_changed(None),
            {"staying": "the Node is unknown, gone or on its way out"},
        ),
    ],
    ids=["hang", "lag", "wait", "leave", "node"],
)
def test_whatever_makes_healthz_fail_makes_readyz_fail(
    happen: Callable[[Surroundings], None], why: dict[str, str]
) -> None:
    node = Surroundings()
    node.settle()
    assert (node.health.healthz().status, node.failing) == (200, {})
    happen(node)
    assert (node.health.healthz().status, node.failing) == (503, why)


def test_the_answer_names_every_check() -> None:
    good = readyz_answer([Check("a"), Check("b")])
    assert (good.status, good.body) == (200, b"[+]a ok\n[+]b ok\nreadyz check passed\n")
    bad = readyz_answer([Check("a"), Check("b", "it is\nlate")])
    assert (bad.status, bad.body) == (503, b"[+]a ok\n[-]b failed: it is late\nreadyz check failed\n")
