"""What every backend promises about rejected service ports, over kernels in memory."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Protocol

import msgspec
import pytest
from tests.factory import endpoint, plan, service_port
from tests.unit.backends.iptables.test_iptables_backend import IptablesHarness
from tests.unit.backends.ipvs.test_ipvs_backend import IpvsHarness
from tests.unit.backends.nftables.test_nft_faults import NftablesHarness

from pointsman.backends.contract import SyncReport
from pointsman.errors import Rejected
from pointsman.model.plan import ServicePlan


class Harness(Protocol):
    """A backend, the kernel under it and the plans it was given."""

    def sync(self, *plans: ServicePlan, full: bool = False) -> SyncReport: ...

    def restart(self) -> None: ...

    def reject(self, *plans: ServicePlan) -> None:
        """Have the kernel reject the endpoints of these service ports, and of no others."""

    def held(self) -> object:
        """Everything that the kernel holds."""


@pytest.fixture(params=["nftables", "iptables", "ipvs"])
def harness(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Harness:
    if request.param == "nftables":
        return NftablesHarness(monkeypatch)
    return IptablesHarness(tmp_path) if request.param == "iptables" else IpvsHarness()


def numbered(number: int, *endpoints: str) -> ServicePlan:
    port = service_port(f"svc-{number}", cluster_ip=f"10.96.0.{number}")
    return plan(port, *map(endpoint, endpoints or (f"10.244.0.{number}",)))


def uncompilable(number: int) -> ServicePlan:
    """A plan that no mode can compile: its endpoint is no endpoint."""
    nothing = (None,)
    made = numbered(number)
    selected = msgspec.structs.replace(made.endpoints, reachable=nothing, cluster=nothing)
    return msgspec.structs.replace(made, endpoints=selected)


ONE, TWO, THREE = (numbered(number) for number in (1, 2, 3))


@pytest.mark.parametrize("full", [True, False])
def test_a_plan_that_cannot_be_compiled_harms_only_itself(harness: Harness, full: bool) -> None:
    harness.sync(ONE)
    before = copy.deepcopy(harness.held())
    broken = uncompilable(66)
    report = harness.sync(TWO, broken, full=full)
    assert list(report.rejected) == [broken.name]
    assert report.rejected[broken.name].startswith("cannot be compiled: ")
    assert harness.held() != before
    after = copy.deepcopy(harness.held())
    harness.sync(ONE, TWO, full=True)
    assert harness.held() == after


@pytest.mark.parametrize("restarted", [True, False])
def test_plans_that_cannot_be_compiled_fail_the_sync_when_they_are_most_and_take_nothing_away(
    harness: Harness, restarted: bool
) -> None:
    harness.sync(ONE, TWO)
    before = copy.deepcopy(harness.held())
    if restarted:
        harness.restart()
    with pytest.raises(Rejected, match="2 of 2 service ports were rejected"):
        harness.sync(uncompilable(1), uncompilable(2))
    assert harness.held() == before


def test_a_rejected_service_port_stays_reported_until_it_changes(harness: Harness) -> None:
    harness.sync(ONE, TWO)
    harness.reject(THREE)
    harness.sync(THREE)
    assert list(harness.sync(numbered(1, "10.244.0.11")).rejected) == [THREE.name]
    harness.reject()
    assert harness.sync(numbered(3, "10.244.0.33")).rejected == {}


def test_rejected_service_ports_add_up_over_several_syncs(harness: Harness) -> None:
    harness.sync(ONE)
    harness.reject(TWO, THREE)
    harness.sync(TWO)
    with pytest.raises(Rejected, match="2 of 3 service ports were rejected"):
        harness.sync(THREE)
