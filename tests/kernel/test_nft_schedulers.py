"""Real connections for every scheduler: who gets how many, who stays where, and what a change moves.

Clients are many addresses of one namespace, so that hashes of the source have something to tell apart. Shares are judged
by a chi-squared test with a bound that a correct table exceeds once in 10^9 runs.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.factory import context, endpoint, plan, service_port
from tests.harness.waiting import TIME_FACTOR
from tests.kernel.nft_kernel import KEYWORD, everything, find_drift, needs_nft, new_namespace, part

from pointsman.backends.iptables.apply import IptablesBackend
from pointsman.backends.nftables.apply import NftablesBackend
from pointsman.backends.nftables.fields import FamilyTraits
from pointsman.errors import KernelError
from pointsman.kernel.command import SystemCommands
from pointsman.kernel.iptables import Iptables
from pointsman.kernel.nfnl import NftablesSocket
from pointsman.kernel.sysctl import Sysctls
from pointsman.model.addresses import Family, address_text
from pointsman.model.balancing import BalancingDefaults, BalancingRequest, Capabilities, Scheduler
from pointsman.model.endpoint import Endpoint, Identity
from pointsman.model.plan import ServicePlan
from pointsman.model.service import Protocol
from pointsman.model.shares import compute_shares, compute_warm_up_share, compute_weights
from pointsman.model.slots import assign_slots
from pointsman.model.tracker import PortState
from pointsman.node.share_adjuster import count_open_connections

pytestmark = needs_nft

VIP = {Family.IPV4: "10.96.0.1", Family.IPV6: "fd96::1"}
BITS = {Family.IPV4: "32", Family.IPV6: "128"}
NETWORKS = {
    Family.IPV4: ("10.70.0.0/16", "10.50.0.0/24"),
    Family.IPV6: ("fd70::/64", "fd50::/64"),
}
CHI_SQUARED = {1: 37.4, 9: 62.0}
"""By degrees of freedom: exceeded with probability 1e-9."""


def server(family: Family, number: int) -> str:
    return f"10.50.0.{number}" if family is Family.IPV4 else f"fd50::{number:x}"


def client(family: Family, number: int) -> str:
    return f"10.70.{number >> 8}.{number & 255}" if family is Family.IPV4 else f"fd70::{number:x}"


class SchedulerNode:
    """A namespace in which every address of two networks is local, ten servers and a backend."""

    def __init__(self, family: Family, *, service_metrics: bool = False) -> None:
        self.family = family
        self.namespace = new_namespace()
        flag = ["-6"] if family is Family.IPV6 else []
        self.namespace.run(["sysctl", "-qw", "net.ipv6.ip_nonlocal_bind=1"])
        for network in NETWORKS[family]:
            self.namespace.run(["ip", *flag, "route", "add", "local", network, "dev", "lo"])
        vip = f"{VIP[family]}/{BITS[family]}"
        self.namespace.run(["ip", *flag, "route", "add", vip, "dev", "lo"])
        with self.namespace.entered():
            self.backend = NftablesBackend(family, service_metrics=service_metrics)
            domain = socket.AF_INET if family is Family.IPV4 else socket.AF_INET6
            self.domain = domain
            self.servers = {}
            for number in range(1, 11):
                made = socket.socket(domain, socket.SOCK_DGRAM)
                made.bind((server(family, number), 8080))
                made.setblocking(False)
                self.servers[number] = made

    def load(self, port: Any, *endpoints: Endpoint, seed: int = 1) -> ServicePlan:
        """Program one service port with these endpoints."""
        node = context(self.family, balancing=BalancingDefaults(seed=seed))
        made = plan(port, *endpoints, node_context=node)
        with self.namespace.entered():
            self.backend.sync(everything(node, {made.name: made}))
            assert self.backend.prepare_comparison(everything(node, {made.name: made})).differences() == []
        return made

    def change(self, port: Any, *endpoints: Endpoint) -> None:
        """The same service port with other endpoints, as an incremental sync."""
        node = context(self.family, balancing=BalancingDefaults())
        made = plan(port, *endpoints, node_context=node)
        with self.namespace.entered():
            report = self.backend.sync(part(node, {made.name: made}, made.name))
            assert not report.full
            assert self.backend.prepare_comparison(everything(node, {made.name: made})).differences() == []

    def send(self, clients: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """One datagram from each client (address and port); by client the number of the server that got it."""
        found: dict[tuple[str, int], int] = {}
        with self.namespace.entered():
            for number, (address, port) in enumerate(clients):
                with socket.socket(self.domain, socket.SOCK_DGRAM) as made:
                    made.bind((address, port))
                    made.sendto(struct.pack("!I", number), (VIP[self.family], 80))
                if number % 100 == 99:
                    self._receive(clients, found, number + 1)
            self._receive(clients, found, len(clients))
        assert len(found) == len(clients)
        return {one: found[one] for one in clients}

    def _receive(
        self, clients: Sequence[tuple[str, int]], found: dict[tuple[str, int], int], wanted: int
    ) -> None:
        """Until that many are found: the kernel may deliver some of the last ones a moment after they were sent."""
        until = time.monotonic() + 10 * TIME_FACTOR
        found.update(self._received(clients))
        while len(found) < wanted and time.monotonic() < until:
            time.sleep(0.01)
            found.update(self._received(clients))

    def _received(self, clients: Sequence[tuple[str, int]]) -> Iterator[tuple[tuple[str, int], int]]:
        for name, receiver in self.servers.items():
            while True:
                try:
                    data, sender = receiver.recvfrom(16)
                except BlockingIOError:
                    break
                sent_by = clients[struct.unpack("!I", data)[0]]
                assert sender[0] == sent_by[0]
                yield sent_by, name

    def close(self) -> None:
        self.backend.close()
        for made in self.servers.values():
            made.close()
        self.namespace.close()


@pytest.fixture(scope="module", params=list(Family), ids=lambda family: family.value)
def world(request: pytest.FixtureRequest) -> Iterator[SchedulerNode]:
    made = SchedulerNode(request.param)
    yield made
    made.close()


_next_port = iter(range(10000, 60000))


def clients(family: Family, count: int) -> list[tuple[str, int]]:
    """That many addresses, all with a port that no earlier call used: no connection is met twice."""
    port = next(_next_port)
    return [(client(family, number), port) for number in range(1, count + 1)]


def udp(family: Family, scheduler: Scheduler | None = None, **fields: Any) -> Any:
    return service_port(
        cluster_ip=VIP[family], protocol=Protocol.UDP, balancing=BalancingRequest(scheduler), **fields
    )


def servers(family: Family, weights: Mapping[int, int]) -> list[Endpoint]:
    return [endpoint(server(family, number), weight=weight) for number, weight in weights.items()]


def chi_squared(counts: Counter[int], weights: Mapping[int, int]) -> float:
    total, heavy = sum(counts.values()), sum(weights.values())
    wanted = {name: total * weight / heavy for name, weight in weights.items() if weight}
    return sum((counts[name] - share) ** 2 / share for name, share in wanted.items())


def test_weights_three_to_one(world: SchedulerNode) -> None:
    weights = {1: 3, 2: 1}
    world.load(udp(world.family), *servers(world.family, weights))
    counts = Counter(world.send(clients(world.family, 2000)).values())
    assert set(counts) == {1, 2}
    assert chi_squared(counts, weights) < CHI_SQUARED[1]


def test_many_odd_weights_in_a_bounded_table(world: SchedulerNode) -> None:
    weights = {number: 37 * number + 100 for number in range(1, 11)}
    made = world.load(udp(world.family), *servers(world.family, weights))
    assert made.balancing is not None
    counts = Counter(world.send(clients(world.family, 2000)).values())
    assert chi_squared(counts, weights) < CHI_SQUARED[9]


def test_weight_0_keeps_its_connections_and_gets_no_new_ones(world: SchedulerNode) -> None:
    port = udp(world.family, Scheduler.WEIGHTED)
    world.load(port, *servers(world.family, {1: 1, 2: 1}))
    known = clients(world.family, 200)
    before = world.send(known)
    world.change(port, *servers(world.family, {1: 0, 2: 1}))
    assert world.send(known) == before
    assert 1 in before.values()
    assert set(world.send(clients(world.family, 200)).values()) == {2}


def test_affinity_draws_by_weight_and_then_stays(world: SchedulerNode) -> None:
    weights = {1: 3, 2: 1}
    port = udp(world.family, affinity_seconds=300)
    world.load(port, *servers(world.family, weights))
    first = world.send(clients(world.family, 1500))
    assert chi_squared(Counter(first.values()), weights) < CHI_SQUARED[1]
    again = world.send(clients(world.family, 1500))
    assert {address: name for (address, _), name in again.items()} == {
        address: name for (address, _), name in first.items()
    }


@pytest.mark.parametrize("affinity", [0, 300])
def test_a_source_hash_gives_a_client_the_same_endpoint_and_a_fair_share_to_each(
    world: SchedulerNode, affinity: int
) -> None:
    """With session affinity asked for as well, the hash alone decides."""
    port = udp(world.family, Scheduler.SOURCE_HASH, affinity_seconds=affinity)
    made = world.load(port, *servers(world.family, dict.fromkeys(range(1, 11), 1)))
    assert made.balancing is not None
    first, again = (world.send(clients(world.family, 1000)) for _ in range(2))
    assert [*first.values()] == [*again.values()]
    assert min(Counter(first.values()).values()) > 1000 / 10 / 2


def test_one_of_ten_endpoints_goes_and_comes_and_moves_few_clients(world: SchedulerNode) -> None:
    port = udp(world.family, Scheduler.SOURCE_HASH)
    ten = servers(world.family, dict.fromkeys(range(1, 11), 1))
    world.load(port, *ten)
    before = [*world.send(clients(world.family, 2000)).values()]
    world.change(port, *ten[:4], *ten[5:])
    without = [*world.send(clients(world.family, 2000)).values()]
    world.change(port, *ten)
    assert [*world.send(clients(world.family, 2000)).values()] == before
    moved = sum(old != new for old, new in zip(before, without, strict=True))
    assert before.count(5) <= moved <= 2000 * 1.3 / 10
    assert 5 not in without


def test_with_the_port_in_the_hash_one_client_reaches_every_endpoint(world: SchedulerNode) -> None:
    port = udp(world.family, Scheduler.SOURCE_PORT_HASH)
    world.load(port, *servers(world.family, dict.fromkeys(range(1, 11), 1)))
    address = client(world.family, 1)
    found = world.send([(address, number) for number in range(20000, 20300)])
    assert set(found.values()) == set(range(1, 11))


def test_the_share_of_a_newcomer_follows_the_curve_of_its_slow_start(world: SchedulerNode) -> None:
    port = udp(world.family)
    for second in (0, 15, 30):
        share = compute_warm_up_share(second, 30)
        newcomer = endpoint(server(world.family, 2), share=share)
        world.load(port, endpoint(server(world.family, 1)), newcomer)
        counts = Counter(world.send(clients(world.family, 1500)).values())
        assert chi_squared(counts, {1: 100, 2: share}) < CHI_SQUARED[1]


def test_a_fresh_replica_catches_up_with_those_that_have_long_lived_connections(world: SchedulerNode) -> None:
    """Counted from the kernel's table, with connections that are held open; closed ones must not count."""
    family = world.family
    port = service_port(
        cluster_ip=VIP[family], balancing=BalancingRequest(Scheduler.LEAST_CONNECTIONS), port_name="tcp"
    )
    old, fresh = [endpoint(server(family, number)) for number in (1, 2)], endpoint(server(family, 3))
    with contextlib.ExitStack() as open_sockets, world.namespace.entered():
        for number in (1, 2, 3):
            listener = socket.create_server((server(family, number), 8080), family=world.domain, backlog=1000)
            open_sockets.enter_context(listener)

        def connect(count: int) -> None:
            for _ in range(count):
                made = socket.create_connection((VIP[family], 80), timeout=5)
                open_sockets.enter_context(made)

        def held(endpoints: Sequence[Endpoint]) -> Mapping[Identity, int]:
            return count_open_connections(family, {port.name: PortState(port, tuple(endpoints))})[port.name]

        world.load(port, *old)
        connect(200)
        for _ in range(20):
            socket.create_connection((VIP[family], 80), timeout=5).close()
        assert sum(held(old).values()) == 200
        shares: dict[Identity, float] = {}
        for _ in range(10):
            shares = compute_shares(
                shares, held([*old, fresh]), compute_weights([*old, fresh], port.service.balancing)
            )
            now = [one.with_share(round(shares[one.identity])) for one in (*old, fresh)]
            world.change(port, *now)
            connect(20)
        counts = held([*old, fresh])
    assert sum(counts.values()) == 400
    assert counts[fresh.identity] > 0.65 * 400 / 3, "even chances would have given it 67 of 200"


def test_weights_of_iptables_mode_are_probabilities(
    world: SchedulerNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XTABLES_LOCKFILE", str(tmp_path / "xtables.lock"))
    weights = {1: 3, 2: 1}
    node = context(
        world.family,
        balancing=BalancingDefaults(
            capabilities=Capabilities(schedulers=frozenset((Scheduler.RANDOM, Scheduler.WEIGHTED)))
        ),
    )
    made = plan(udp(world.family), *servers(world.family, weights), node_context=node)
    with contextlib.closing(SchedulerNode(world.family)) as apart:
        with apart.namespace.entered():
            runner = Iptables(world.family, SystemCommands())
            backend = IptablesBackend(world.family, runner=runner, sysctls=Sysctls())
            backend.sync(everything(node, {made.name: made}))
            assert backend.prepare_comparison(everything(node, {made.name: made})).differences() == []
            backend.close()
        counts = Counter(apart.send(clients(world.family, 2000)).values())
    assert chi_squared(counts, weights) < CHI_SQUARED[1]


@pytest.mark.parametrize("scheduler", [Scheduler.RANDOM, Scheduler.SOURCE_HASH])
def test_exchanged_slots_are_drift_and_for_a_hash_also_a_difference_to_another_process(
    world: SchedulerNode, scheduler: Scheduler
) -> None:
    """Random slots may be in any order, hashed ones may not; the order that was committed is always kept."""
    family = world.family
    node = context(family)
    made = plan(udp(family, scheduler), *servers(family, {1: -1, 2: -1}), node_context=node)
    request = everything(node, {made.name: made})
    slots = [address_text(e.address) for e in assign_slots(made.endpoints.cluster, made.balancing)]
    other = next(number for number, address in enumerate(slots) if address != slots[0])
    with world.namespace.entered():
        world.backend.sync(request)
        assert world.backend.find_drift() is None
        for verb, slot, data in (
            ("delete", 0, ""),
            ("delete", other, ""),
            ("add", 0, f" : {slots[other]} . 8080"),
            ("add", other, f" : {slots[0]} . 8080"),
        ):
            element = f"{{ {VIP[family]} . udp . 80 . {slot}{data} }}"
            order = f"{verb} element {KEYWORD[family]} kube-proxy endpoints {element}\n"
            world.namespace.run(["nft", "-f", "-"], order)
        with contextlib.closing(NftablesBackend(family)) as other_process:
            assert bool(other_process.prepare_comparison(request).differences()) is scheduler.is_hash
        found = find_drift(world.backend, request)
        assert found is not None
        assert found.what.startswith("map endpoints ")


def test_connections_are_counted_per_endpoint_whatever_the_number_of_its_slots(world: SchedulerNode) -> None:
    family = world.family
    node = context(family)
    two = servers(family, {1: 3, 2: 1})
    made = plan(udp(family), *two, node_context=node)
    with contextlib.closing(SchedulerNode(family, service_metrics=True)) as apart:
        with apart.namespace.entered():
            apart.backend.sync(everything(node, {made.name: made}))
        sent = Counter(apart.send(clients(family, 300)).values())
        with apart.namespace.entered():
            counted = apart.backend.count_traffic().endpoint_connections
    assert {name: number for (_, name), number in counted.items()} == {
        str(one): sent[number] for number, one in enumerate(two, 1)
    }


def test_a_kernel_without_hashes_balances_at_random_and_says_so(world: SchedulerNode) -> None:
    node = context(world.family)
    made = plan(
        udp(world.family, Scheduler.SOURCE_HASH), *servers(world.family, {1: 1, 2: 1}), node_context=node
    )
    with world.namespace.entered():
        poor = NftablesBackend(world.family, lacks_hash=lambda _socket, _traits: True)
        report = poor.sync(everything(node, {made.name: made}))
        assert [found.reason for found in report.conditions] == ["HashMissing"]
        assert poor.prepare_comparison(everything(node, {made.name: made})).differences() == []
        poor.close()
    found = [Counter(world.send(clients(world.family, 200)).values()) for _ in range(2)]
    assert all(counts.keys() == {1, 2} for counts in found)


def test_hashes_that_were_missing_are_looked_for_again_by_a_full_sync_and_reported_while_asked_for(
    world: SchedulerNode,
) -> None:
    """A module that was not there yet, say: it must not take a restart of the proxy."""
    node = context(world.family)
    answers = iter([True, True, False])
    two = servers(world.family, {1: 1, 2: 1})
    hashed = plan(udp(world.family, Scheduler.SOURCE_HASH), *two, node_context=node)
    plain = plan(udp(world.family), *two, node_context=node)
    name = hashed.name
    with (
        world.namespace.entered(),
        contextlib.closing(
            NftablesBackend(world.family, lacks_hash=lambda _socket, _traits: next(answers))
        ) as backend,
    ):
        assert backend.sync(everything(node, {name: hashed})).conditions
        assert not backend.sync(part(node, {name: plain}, name)).conditions
        assert backend.sync(part(node, {name: hashed}, name)).conditions
        assert backend.sync(everything(node, {name: hashed})).conditions
        assert not backend.sync(everything(node, {name: hashed})).conditions
        assert not backend.sync(everything(node, {name: hashed})).conditions, (
            "what is there is not asked for again"
        )
    first, again = (world.send(clients(world.family, 200)) for _ in range(2))
    assert [*first.values()] == [*again.values()]


def test_a_kernel_that_cannot_say_whether_it_has_hashes_fails_the_sync_and_loses_nothing(
    world: SchedulerNode,
) -> None:
    def out_of_memory(_socket: NftablesSocket, _traits: FamilyTraits) -> bool:
        raise KernelError("no memory", errno.ENOMEM)

    node = context(world.family)
    two = servers(world.family, {1: 1, 2: 1})
    hashed = plan(udp(world.family, Scheduler.SOURCE_HASH), *two, node_context=node)
    others = [
        plan(udp(world.family, name=name, port=port), *two, node_context=node)
        for name, port in (("a", 81), ("b", 82))
    ]
    plans = {made.name: made for made in (hashed, *others)}
    with (
        world.namespace.entered(),
        contextlib.closing(NftablesBackend(world.family, lacks_hash=out_of_memory)) as backend,
        pytest.raises(KernelError, match="no memory"),
    ):
        backend.sync(everything(node, plans))


@pytest.mark.parametrize("family", list(Family), ids=lambda family: family.value)
def test_two_nodes_choose_alike_for_every_client_and_another_seed_chooses_differently(
    family: Family,
) -> None:
    port = udp(family, Scheduler.SOURCE_HASH)
    ten = servers(family, dict.fromkeys(range(1, 11), 1))
    one, other = SchedulerNode(family), SchedulerNode(family)
    try:
        one.load(port, *ten)
        other.load(port, *reversed(ten))
        asked = clients(family, 1000)
        chosen = one.send(asked)
        assert other.send(asked) == chosen
        other.load(port, *ten, seed=2)
        assert other.send(clients(family, 1000)) != chosen
    finally:
        one.close()
        other.close()
