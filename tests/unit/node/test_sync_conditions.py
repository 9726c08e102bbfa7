"""Results of syncs and drift checks as conditions."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from tests import factory
from tests.harness.assembled import assembled
from tests.harness.waiting import async_wait_until

from pointsman.backends.contract import PRESENT, Difference, OtherProxy, SyncReport
from pointsman.conditions import Blocks, Condition, Status
from pointsman.errors import KernelError
from pointsman.model.addresses import Family
from pointsman.model.node_context import NodeContext
from pointsman.model.service import ServicePortName
from pointsman.node.health import SyncConditions
from pointsman.sync.reconcile import SyncFailed, SyncOutcome

WEB = factory.service_port().name


class Syncs(SyncConditions):
    """One family."""

    def __init__(self) -> None:
        super().__init__([Family.IPV4])

    @property
    def failing(self) -> dict[str, str]:
        found = (*self.conditions(), *self.backend_conditions())
        return {one.type: one.message for one in found if not one.is_true}

    def settle(self) -> None:
        self.on_synced(outcome())
        self.on_drift_check_passed(Family.IPV4)


def outcome(rejected: Mapping[ServicePortName, str] | None = None, *conditions: Condition) -> SyncOutcome:
    return SyncOutcome(
        report=SyncReport(full=True, rejected=rejected or {}, conditions=conditions),
        changes={},
        trigger_times={},
        context=NodeContext(Family.IPV4, "n"),
        seconds=0.1,
        first=True,
    )


def test_a_node_is_ready_after_its_first_sync_was_found_intact() -> None:
    syncs = Syncs()
    assert syncs.failing == {"SyncIPv4": "no sync yet", "RulesIPv4": "not checked yet"}
    assert {one.status for one in syncs.conditions() if not one.is_true} == {Status.UNKNOWN}
    syncs.on_synced(outcome())
    assert syncs.failing == {"RulesIPv4": "not checked yet"}
    syncs.on_drift_check_passed(Family.IPV4)
    assert syncs.failing == {}


def test_a_failed_sync_blocks_readiness_until_the_next_success() -> None:
    syncs = Syncs()
    syncs.settle()
    syncs.on_sync_failed(Family.IPV4, SyncFailed("no memory", full=True), 1.0)
    assert syncs.failing == {"SyncIPv4": "the last sync failed: no memory"}
    assert [one.type for one in syncs.conditions() if one.does_block(Blocks.READINESS)] == ["SyncIPv4"]
    syncs.on_synced(outcome())
    assert syncs.failing == {}


def test_changed_or_unreadable_rules_block_readiness_until_they_are_found_intact() -> None:
    syncs = Syncs()
    syncs.settle()
    drift = Difference("table kube-proxy", PRESENT)
    syncs.on_drift(Family.IPV4, drift, 0.0)
    assert syncs.failing == {"RulesIPv4": f"modified externally: {drift}"}
    assert [one.type for one in syncs.conditions() if one.does_block(Blocks.READINESS)] == ["RulesIPv4"]
    syncs.on_drift_check_passed(Family.IPV4)
    syncs.on_drift_check_failed(Family.IPV4, OSError("busy"))
    assert syncs.failing == {"RulesIPv4": "the rules cannot be read: busy"}
    syncs.on_drift_check_passed(Family.IPV4)
    assert syncs.failing == {}


def test_rejected_service_ports_are_named_and_leave_the_node_ready() -> None:
    syncs = Syncs()
    syncs.settle()
    syncs.on_synced(outcome({WEB: "Invalid argument"}))
    (found,) = [one for one in syncs.conditions() if not one.is_true]
    assert (found.type, found.reason) == ("ServicePortsIPv4", "RejectedByKernel")
    assert f"{WEB}: Invalid argument" in found.message
    assert found.does_block(Blocks.SERVICES)
    assert not found.does_block(Blocks.READINESS)
    syncs.on_synced(outcome())
    assert syncs.failing == {}


def test_conditions_of_the_backend_last_until_the_next_sync() -> None:
    syncs = Syncs()
    syncs.settle()
    syncs.on_synced(outcome(None, Condition.false("KernelFeatures", "HashMissing", "no hash")))
    assert syncs.failing == {"KernelFeatures": "no hash"}
    syncs.on_synced(outcome())
    assert syncs.failing == {}


def test_another_proxy_that_keeps_rewriting_the_rules_is_a_condition_until_it_stops() -> None:
    syncs = Syncs()
    syncs.settle()
    rewritten = Difference("table ip kube-proxy", "ours", "theirs", other_proxy=OtherProxy.KUBE_PROXY)
    syncs.on_drift(Family.IPV4, rewritten, 0.0)
    assert "RuleOwnershipIPv4" not in syncs.failing
    syncs.on_drift(Family.IPV4, rewritten, 2.0)
    assert "kube-proxy keeps rewriting our rules" in syncs.failing["RuleOwnershipIPv4"]
    syncs.on_drift_check_passed(Family.IPV4)
    assert list(syncs.failing) == ["RuleOwnershipIPv4"]
    syncs.on_conflict_ended(Family.IPV4)
    assert syncs.failing == {}


async def test_a_failed_sync_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async with assembled(families=(Family.IPV4,)) as running:
        running.backends[Family.IPV4].failures.append(KernelError("no memory"))
        addresses = [{"type": "InternalIP", "address": "192.168.1.10"}]
        running.source.put(factory.node("n1", addresses=addresses))
        running.source.listed()
        await async_wait_until(lambda: running.condition("SyncIPv4").is_failing)  # type: ignore[union-attr]
        running.board.refresh()
    logged = [record.getMessage() for record in caplog.records if "no memory" in str(record.__dict__)]
    assert logged == ["Sync failed, keeping previous rules"]
