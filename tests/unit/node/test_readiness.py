"""/readyz: what must hold before this node serves its packets."""

from __future__ import annotations

from pointsman.backends.contract import Damage, Drift, SyncReport
from pointsman.model.addresses import Family
from pointsman.model.node_context import NodeContext, Situation
from pointsman.node.readiness import Readiness
from pointsman.serve.readiness import Check, readyz_answer
from pointsman.sync.reconcile import SyncFailed, SyncOutcome


class Surroundings:
    """What the others would say."""

    waiting_for = ""
    leaving = False

    def __init__(self) -> None:
        self.closed: dict[str, str] = {}
        self.readiness = Readiness(
            (Family.IPV4,),
            waiting_for=lambda: self.waiting_for,
            closed_ports=lambda: self.closed,
            leaving=lambda: self.leaving,
        )

    @property
    def failing(self) -> dict[str, str]:
        return {check.name: check.reason for check in self.readiness.checks() if check.reason}

    def settle(self) -> None:
        self.readiness.synced(outcome())
        self.readiness.intact(Family.IPV4)


def outcome() -> SyncOutcome:
    return SyncOutcome(
        report=SyncReport(full=True),
        changes={},
        trigger_times={},
        situation=Situation(NodeContext(Family.IPV4, "n")),
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
    node.readiness.synced(outcome())
    assert node.failing == {"IPv4-rules-intact": "not yet"}
    node.readiness.intact(Family.IPV4)
    assert node.failing == {}


def test_a_failed_sync_counts_until_the_next_success() -> None:
    node = Surroundings()
    node.settle()
    node.readiness.failed(Family.IPV4, SyncFailed("no memory", full=True), 1.0)
    assert node.failing == {"IPv4-synced": "no memory"}
    node.readiness.synced(outcome())
    assert node.failing == {}


def test_changed_or_unreadable_rules_count_until_they_are_found_intact() -> None:
    node = Surroundings()
    node.settle()
    drift = Drift("table kube-proxy", Damage.CHANGED)
    node.readiness.drifted(Family.IPV4, drift, 0.0)
    assert node.failing == {"IPv4-rules-intact": f"changed by others: {drift}"}
    node.readiness.intact(Family.IPV4)
    node.readiness.unsure(Family.IPV4, OSError("busy"))
    assert node.failing == {"IPv4-rules-intact": "cannot be read: busy"}
    node.readiness.intact(Family.IPV4)
    assert node.failing == {}


def test_closed_ports_and_leaving_count() -> None:
    node = Surroundings()
    node.settle()
    node.closed["shop/web"] = "port 30990 is taken"
    node.leaving = True
    assert node.failing == {
        "ports-open": "shop/web: port 30990 is taken",
        "staying": "the process was told to end",
    }


def test_the_answer_names_every_check() -> None:
    good = readyz_answer([Check("a"), Check("b")])
    assert (good.status, good.body) == (200, b"[+]a ok\n[+]b ok\nreadyz check passed\n")
    bad = readyz_answer([Check("a"), Check("b", "it is\nlate")])
    assert (bad.status, bad.body) == (503, b"[+]a ok\n[-]b failed: it is late\nreadyz check failed\n")
