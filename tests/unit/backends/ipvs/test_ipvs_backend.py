"""The backend over a kernel in memory: what it does when most of it is refused."""

from __future__ import annotations

import copy
import errno
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from tests.factory import context, endpoint, plan, service_port
from tests.fake.iptables_tables import IptablesTables

from pointsman.backends.contract import SyncReport, SyncRequest
from pointsman.backends.ipvs import sets
from pointsman.backends.ipvs.apply import IpvsBackend
from pointsman.backends.ipvs.sockets import Sockets
from pointsman.backends.ipvs.steps import AddReals, AddServers, KernelState, NetlinkStep
from pointsman.backends.ledger import Ledger
from pointsman.errors import KernelError, Rejected
from pointsman.kernel.iptables import Iptables
from pointsman.kernel.ipvs_objects import RealOf, RealServer, SetHeader, VirtualKey
from pointsman.model.addresses import Family, address_text
from pointsman.model.plan import ServicePlan
from pointsman.model.service import ServicePortName


class MemorySockets(Sockets):
    """What was sent is what is held, except for what `refuses` says."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self.held = KernelState(header.name for header in sets.build_headers(family))
        self.refuses: Callable[[NetlinkStep[Any], Any], bool] = lambda step, item: False
        self.reason = errno.EINVAL
        self.probe_error: KernelError | None = None
        self.open_connections = 0
        """Of every real server."""

    def close(self) -> None:
        """Nothing is open."""

    def make_containers(self) -> None:
        """They are there."""

    def read(self, desired: Ledger, *, only_desired: bool = False) -> KernelState:
        return copy.deepcopy(self.held)

    def reread(self, key: VirtualKey, state: KernelState) -> None:
        """There is no other program."""

    def read_sets(self) -> dict[str, SetHeader]:
        return {}

    def read_connections(self, keys: Iterable[VirtualKey]) -> dict[RealOf, RealServer]:
        return {
            RealOf(key, real): RealServer(real, weight, self.open_connections)
            for key in keys
            for real, weight in self.held.weights.get(key, {}).items()
        }

    def has_scheduler(self, name: str) -> bool:
        if self.probe_error is not None:
            raise self.probe_error
        return True

    def find_unrouted(self, addresses: Sequence[bytes]) -> list[bytes]:
        return []

    def send(self, step: NetlinkStep[Any]) -> dict[Any, KernelError]:
        refused = {
            item: KernelError("the kernel says no", self.reason)
            for item in step.items
            if self.refuses(step, item)
        }
        step.apply_to(self.held, refused)
        return refused

    def served(self) -> list[str]:
        return sorted(address_text(key.address) for key in self.held.servers)


class IpvsHarness:
    """A backend, and what its kernel holds."""

    def __init__(self) -> None:
        self.tables = IptablesTables()
        self.sockets = MemorySockets(Family.IPV4)
        self.plans: dict[ServicePortName, ServicePlan] = {}
        self.seconds = 0.0
        self.restart()

    def restart(self) -> None:
        runner = Iptables(Family.IPV4, self.tables)
        self.backend = IpvsBackend(
            Family.IPV4, runner, clock=lambda: self.seconds, open_sockets=lambda family: self.sockets
        )

    def sync(self, *plans: ServicePlan, gone: ServicePlan | None = None, full: bool = False) -> SyncReport:
        changed: dict[ServicePortName, ServicePlan | None] = {one.name: one for one in plans}
        self.plans |= {one.name: one for one in plans}
        if gone is not None:
            changed[gone.name] = None
            del self.plans[gone.name]
        return self.backend.sync(SyncRequest(context(), self.plans, changed, full))

    def reject(self, *plans: ServicePlan) -> None:
        addresses = [one.port.cluster_ip for one in plans]
        self.sockets.refuses = lambda step, item: (
            isinstance(step, AddReals) and item.server.address in addresses
        )

    def held(self) -> object:
        return vars(self.sockets.held)

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


@pytest.mark.parametrize("reason", [errno.EINVAL, errno.ENOENT])
@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize(("refused", "accepted"), [(2, True), (3, False), (5, False)])
def test_a_sync_that_would_leave_out_most_service_ports_fails_before_anything_is_removed(
    reason: int, full: bool, refused: int, accepted: bool
) -> None:
    harness = IpvsHarness()
    harness.sockets.reason = reason
    old = numbered(9)
    harness.sync(old)
    harness.refuse_servers(*FIVE[:refused])
    if full:
        harness.restart()
    if accepted:
        assert len(harness.sync(*FIVE, gone=old).rejected) == refused
        assert "10.96.0.9" not in harness.sockets.served()
        return
    with pytest.raises(Rejected, match=f"{refused} of 5 service ports were rejected"):
        harness.sync(*FIVE, gone=old)
    assert "10.96.0.9" in harness.sockets.served()
    harness.refuse_servers()
    assert harness.sync().rejected == {}
    assert harness.sockets.served() == ADDRESSES


@pytest.mark.parametrize("full", [True, False])
def test_a_kernel_that_is_busy_when_a_scheduler_is_probed_fails_the_sync_and_rejects_no_service(
    full: bool,
) -> None:
    """A temporary error says nothing about the Service: the sync is repeated, and then it gets its scheduler."""
    harness = IpvsHarness()
    harness.sync(*FIVE)
    if full:
        harness.restart()
    requesting = plan(
        service_port("sed", cluster_ip="10.96.0.7", ipvs_scheduler="sed"), endpoint("10.244.0.7")
    )
    harness.sockets.probe_error = KernelError("try IPVS scheduler sed", errno.ENOMEM)
    with pytest.raises(KernelError, match="try IPVS scheduler sed"):
        harness.sync(requesting)
    assert harness.sockets.served() == ADDRESSES
    harness.sockets.probe_error = None
    assert harness.sync().rejected == {}
    key = VirtualKey(6, requesting.port.cluster_ip, 80)
    assert harness.sockets.held.servers[key].scheduler == "sed"


def test_drained_servers_are_removed_between_syncs_once_a_minute() -> None:
    harness = IpvsHarness()
    key = VirtualKey(6, FIVE[0].port.cluster_ip, 80)

    def weights() -> list[int]:
        return sorted(harness.sockets.held.weights[key].values())

    harness.sync(FIVE[0])
    harness.sockets.open_connections = 3
    harness.sync(numbered(1, "10.244.0.11"))
    assert weights() == [0, 1]
    harness.backend.maintain()
    assert (weights(), harness.backend.draining) == ([0, 1], 1)
    harness.sockets.open_connections = 0
    harness.seconds = 59.0
    harness.backend.maintain()
    assert weights() == [0, 1]
    harness.seconds = 60.0
    harness.backend.maintain()
    assert (weights(), harness.backend.draining) == ([1], 0)
