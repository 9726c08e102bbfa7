"""A kernel that cannot reset connections to gone endpoints is reported while some Service wants them reset."""

from __future__ import annotations

from tests import factory

from pointsman.backends.contract import SyncReport
from pointsman.machine.settings import LOOSE_TRACKING
from pointsman.model.addresses import Family
from pointsman.model.balancing import BalancingRequest
from pointsman.node.checks import LooseTrackingCheck
from pointsman.sync.reconcile import PlanChange, SyncOutcome

ASKING = factory.plan(factory.service_port("web", balancing=BalancingRequest(reset_gone=True)))
NOT_ASKING = factory.plan(factory.service_port("web"))


def synced(change: PlanChange | None = None) -> SyncOutcome:
    changes = {ASKING.name: change} if change else {}
    return SyncOutcome(SyncReport(full=False), changes, {}, factory.context(Family.IPV4), 0.0, first=False)


def test_it_is_reported_as_long_as_a_service_asks_and_the_setting_is_0() -> None:
    settings: dict[str, int | None] = {LOOSE_TRACKING: 0}
    check = LooseTrackingCheck(settings.get)
    check.on_synced(synced(PlanChange(None, NOT_ASKING)))
    assert not list(check.conditions())
    check.on_synced(synced(PlanChange(NOT_ASKING, ASKING)))
    (found,) = check.conditions()
    assert "removed endpoints of default/web are not reset" in found.message
    assert "sysctl -w net.netfilter.nf_conntrack_tcp_loose=1" in found.remedy
    for value in (1, None):
        settings[LOOSE_TRACKING] = value
        check.on_synced(synced())
        assert not list(check.conditions())
    settings[LOOSE_TRACKING] = 0
    check.on_synced(synced())
    assert list(check.conditions())
    check.on_synced(synced(PlanChange(ASKING, None)))
    assert not list(check.conditions())
