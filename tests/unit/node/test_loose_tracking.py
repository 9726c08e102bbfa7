"""A kernel that cannot reset connections to gone endpoints is reported while some Service wants them reset."""

from __future__ import annotations

from tests import factory

from pointsman.backends.contract import SyncReport
from pointsman.machine.settings import LOOSE_TRACKING
from pointsman.model.addresses import Family
from pointsman.model.balancing import BalancingRequest
from pointsman.node.degraded import DegradedChecks
from pointsman.node.loose_tracking import LooseTracking
from pointsman.obs.registry import Metrics
from pointsman.sync.reconcile import PlanChange, SyncOutcome

ASKING = factory.plan(factory.service_port("web", balancing=BalancingRequest(reset_gone=True)))
NOT_ASKING = factory.plan(factory.service_port("web"))


def synced(change: PlanChange | None = None) -> SyncOutcome:
    changes = {ASKING.name: change} if change else {}
    return SyncOutcome(SyncReport(full=False), changes, {}, factory.context(Family.IPV4), 0.0, first=False)


def test_it_is_reported_as_long_as_somebody_asks_and_the_setting_is_0() -> None:
    settings: dict[str, int | None] = {LOOSE_TRACKING: 0}
    degraded = DegradedChecks(Metrics("nftables"))
    check = LooseTracking(degraded, settings.get)
    check.on_synced(synced(PlanChange(None, NOT_ASKING)))
    assert not degraded.current
    check.on_synced(synced(PlanChange(NOT_ASKING, ASKING)))
    (message,) = degraded.current.values()
    assert "gone endpoints of default/web are not reset" in message
    assert "sysctl -w net.netfilter.nf_conntrack_tcp_loose=1" in message
    for value in (1, None):
        settings[LOOSE_TRACKING] = value
        check.on_synced(synced())
        assert not degraded.current
    settings[LOOSE_TRACKING] = 0
    check.on_synced(synced())
    assert degraded.current
    check.on_synced(synced(PlanChange(ASKING, None)))
    assert not degraded.current
