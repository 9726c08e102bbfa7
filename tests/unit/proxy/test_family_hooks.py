"""What becomes of a sync's success or failure: health above all."""

from __future__ import annotations

from tests.factory import context

from pointsman.backends.base import SyncReport
from pointsman.errors import KernelError
from pointsman.model.addresses import Family
from pointsman.obs.registry import Metrics
from pointsman.proxy.family import FamilyHooks
from pointsman.serve.health import ProxyHealth
from pointsman.sync.reconcile import SyncOutcome

SECOND = 1_000_000_000
SYNC_PERIOD = 30 * SECOND


def test_a_sync_that_nobody_asked_for_and_that_keeps_failing_makes_the_proxy_unhealthy() -> None:
    now = 0
    health = ProxyHealth(SYNC_PERIOD, monotonic=lambda: now)
    hooks = FamilyHooks(
        Family.IPV4, Metrics("nftables"), health, after_sync=lambda _: None, on_drift=lambda _: None
    )
    outcome = SyncOutcome(SyncReport(full=True), {}, {}, context(), 0.0, first=True)
    hooks.queued()
    hooks.succeeded(outcome)
    now = 3600 * SECOND
    for _ in range(4):
        hooks.failed(KernelError("no"), 30.0)
        now += SYNC_PERIOD
    assert not health.health().healthy
    hooks.succeeded(outcome)
    assert health.health().healthy
