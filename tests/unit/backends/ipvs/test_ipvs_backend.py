"""The backend over a kernel in memory: what it does when most of it is refused."""

from __future__ import annotations

import copy
import errno
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

import msgspec
import pytest
from tests.factory import context, endpoint, plan, service_port
from tests.fake.iptables_tables import IptablesTables

from pointsman.backends.contract import SyncReport, SyncRequest
from pointsman.backends.ipvs import sets
from pointsman.backends.ipvs.apply import IpvsBackend
from pointsman.backends.ipvs.batch import AddReals, AddServers, NetlinkStep
from pointsman.backends.ipvs.known import Known
from pointsman.backends.ipvs.sockets import Sockets
from pointsman.errors import KernelError, Rejected
from pointsman.kernel.ipset_objects import SetHeader
from pointsman.kernel.iptables import Iptables
from pointsman.kernel.ipvs_objects import RealOf, RealServer, VirtualKey
from pointsman.model.addresses import Family, address_text
from pointsman.model.plan import ServicePlan
from pointsman.model.service import ServicePortName


class MemorySockets(Sockets):
    """What was sent is what is held, except for what `refuses` says."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self.held = Known(header.name for header in sets.headers(family))
        self.refuses: Callable[[NetlinkStep[Any], Any], bool] = lambda step, item: False
        self.reason = errno.EINVAL

    def close(self) -> None:
        """Nothing is open."""

    def make_containers(self) -> None:
        """They are there."""

    def read(self, wanted: Container[VirtualKey]) -> Known:
        return copy.deepcopy(self.held)

    def read_again(self, key: VirtualKey, known: Known) -> None:
        """Nobody else is here."""

    def sets(self) -> dict[str, SetHeader]:
        return {}

    def connections(self, keys: Iterable[VirtualKey]) -> dict[RealOf, RealServer]:
        return {}

    def has_scheduler(self, name: str) -> bool:
        return True

    def not_in_force(self, addresses: Sequence[bytes]) -> list[bytes]:
        return []

    def send(self, step: NetlinkStep[Any]) -> dict[Any, KernelError]:
        refused = {
            item: KernelError("the kernel says no", self.reason)
            for item in step.items
            if self.refuses(step, item)
        }
        step.adopt(self.held, refused)
        return refused

    def served(self) -> list[str]:
        return sorted(address_text(key.address) for key in self.held.servers)


class Bench:
    """A backend, and what its kernel holds."""

    def __init__(self) -> None:
        self.tables = IptablesTables()
        self.sockets = MemorySockets(Family.IPV4)
        self.plans: dict[ServicePortName, ServicePlan] = {}
        self.restart()

    def restart(self) -> None:
        runner = Iptables(Family.IPV4, self.tables)
        self.backend = IpvsBackend(Family.IPV4, runner, open_sockets=lambda family: self.sockets)

    def sync(self, *plans: ServicePlan, gone: ServicePlan | None = None) -> SyncReport:
        changed: dict[ServicePortName, ServicePlan | None] = {one.name: one for one in plans}
        self.plans |= {one.name: one for one in plans}
        if gone is not None:
            changed[gone.name] = None
            del self.plans[gone.name]
        return self.backend.sync(SyncRequest(context(), self.plans, changed))

    def refuse_servers(self, *plans: ServicePlan) -> None:
        addresses = [one.port.cluster_ip for one in plans]
        self.sockets.refuses = lambda step, item: (
            isinstance(step, AddServers) and (item.key.address in addresses)
        )


def numbered(number: int, *endpoints: str) -> ServicePlan:
    port = service_port(f"svc-{number}", cluster_ip=f"10.96.0.{number}")
    return plan(port, *map(endpoint, endpoints or (f"10.244.0.{number}",)))


FIVE = [numbered(number) for number in range(1, 6)]
ADDRESSES = [address_text(one.port.cluster_ip) for one in FIVE]


@pytest.mark.parametrize("full", [True, False])
def test_plans_that_cannot_be_compiled_fail_the_sync_when_they_are_most_and_take_nothing_away(
    full: bool,
) -> None:
    bench = Bench()
    bench.sync(*FIVE[:2])
    before = copy.deepcopy(vars(bench.sockets.held))
    if full:
        bench.restart()
    broken = [msgspec.structs.replace(one, cluster_endpoints=(None,)) for one in FIVE[:2]]
    with pytest.raises(Rejected, match="2 of 2 service ports were rejected"):
        bench.sync(*broken)
    assert vars(bench.sockets.held) == before


@pytest.mark.parametrize("reason", [errno.EINVAL, errno.ENOENT])
@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize(("refused", "accepted"), [(2, True), (3, False), (5, False)])
def test_a_sync_that_would_leave_out_most_service_ports_fails_before_anything_is_removed(
    reason: int, full: bool, refused: int, accepted: bool
) -> None:
    bench = Bench()
    bench.sockets.reason = reason
    old = numbered(9)
    bench.sync(old)
    bench.refuse_servers(*FIVE[:refused])
    if full:
        bench.restart()
    if accepted:
        assert len(bench.sync(*FIVE, gone=old).rejected) == refused
        assert "10.96.0.9" not in bench.sockets.served()
        return
    with pytest.raises(Rejected, match=f"{refused} of 5 service ports were rejected"):
        bench.sync(*FIVE, gone=old)
    assert "10.96.0.9" in bench.sockets.served()
    bench.refuse_servers()
    assert bench.sync().rejected == {}
    assert bench.sockets.served() == ADDRESSES


def test_a_refused_service_port_stays_reported_until_it_changes() -> None:
    bench = Bench()
    bench.sync(*FIVE[:2])
    bench.refuse_servers(FIVE[2])
    bench.sync(FIVE[2])
    assert list(bench.sync(numbered(1, "10.244.0.11")).rejected) == [FIVE[2].name]
    bench.refuse_servers()
    assert bench.sync(numbered(3, "10.244.0.33")).rejected == {}


def test_refused_service_ports_add_up_over_several_syncs() -> None:
    bench = Bench()
    bench.sync(*FIVE[:1])
    bench.sockets.refuses = lambda step, item: isinstance(step, AddReals)
    bench.sync(FIVE[1])
    with pytest.raises(Rejected, match="2 of 3 service ports were rejected"):
        bench.sync(FIVE[2])
