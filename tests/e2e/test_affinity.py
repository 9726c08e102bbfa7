"""Session affinity: one memory per service port, prolonged by use, freed with its backend, kept over a restart."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec
import pytest
from tests.harness import lab as harness
from tests.harness.world import FAMILIES, World, running

from pointsman.lab.objects import LabService, backends
from pointsman.lab.probe import LONG_TIMEOUT_SECONDS, Kind, Outcome, run_probes

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(bool(harness.missing_privilege()), reason=harness.missing_privilege()),
]

CLIENTS = ("pod1", "pod2", "pod3", "pod6", "client", "client2", "n1", "n2")
PLACES = ("cluster", "lb", "external", "nodeport")
STICKY = LabService(
    *("sticky", 1, backends("pod1", "pod2", "pod4")),
    type="LoadBalancer",
    external=True,
    ports=(80, 443),
    affinity_seconds=600,
)
SHORT = msgspec.structs.replace(STICKY, name="short", number=2, affinity_seconds=2)
DATAGRAMS = msgspec.structs.replace(STICKY, name="datagrams", number=3, protocols=("UDP",))

Choice = dict[tuple[str, int], str]


@pytest.fixture(scope="module", params=["nftables", "iptables"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("affinity")
    with running(directory, request.param, [STICKY, SHORT, DATAGRAMS]) as made:
        yield made


def _choices(
    world: World,
    service: LabService,
    to: str = "cluster",
    port: int = 0,
    tries: int = 1,
    protocol: str = "TCP",
) -> Choice:
    """The backend of every client in both families; several are joined with `+`."""
    clients = [(host, family) for host in CLIENTS for family in FAMILIES]
    seen: dict[tuple[str, int], set[str]] = {client: set() for client in clients}
    for _ in range(tries):
        probes = [world.probe(host, service, to, family, protocol) for host, family in clients]
        if port:
            probes = [msgspec.structs.replace(probe, port=port) for probe in probes]
        for client, outcome in zip(
            clients, run_probes(world.cluster, probes, LONG_TIMEOUT_SECONDS), strict=True
        ):
            seen[client].add(_name(outcome))
    return {client: "+".join(sorted(names)) for client, names in seen.items()}


def _name(outcome: Outcome) -> str:
    return outcome.by if outcome.kind is Kind.ANSWERED else outcome.kind.value


def test_a_client_keeps_its_backend_at_every_frontend(world: World) -> None:
    first = _choices(world, STICKY)
    # 16 clients: that all of them get the same backend happens by chance once in 14 million.
    assert set(first.values()) <= {"pod1", "pod2", "pod4"}
    assert len(set(first.values())) > 1
    for to in PLACES:
        assert _choices(world, STICKY, to, tries=10) == first


def test_each_port_has_a_memory_of_its_own(world: World) -> None:
    # 16 clients and three backends: equal by chance once in 43 million.
    assert _choices(world, STICKY) != _choices(world, STICKY, port=443)


def test_datagrams_stick_as_connections_do(world: World) -> None:
    first = _choices(world, DATAGRAMS, protocol="UDP")
    for to in PLACES:
        assert _choices(world, DATAGRAMS, to, tries=5, protocol="UDP") == first


def test_use_prolongs_and_disuse_forgets(world: World) -> None:
    began = time.monotonic()
    first = _choices(world, SHORT)
    for _ in range(3):
        time.sleep(1.0)
        since, began = began, time.monotonic()
        now = _choices(world, SHORT)
        if time.monotonic() - since > SHORT.affinity_seconds:
            first = now  # a machine so slow that some may rightly have been forgotten
        assert now == first
    time.sleep(2.6)
    assert _choices(world, SHORT) != first


def test_a_restart_forgets_nothing(world: World) -> None:
    first = _choices(world, STICKY)
    world.proxy.stop()
    world.proxy.write([STICKY, SHORT, DATAGRAMS])
    world.proxy.start()
    world.proxy.wait()
    assert _choices(world, STICKY) == first


def test_a_vanished_backend_frees_only_its_own_clients(world: World) -> None:
    first = _choices(world, STICKY)
    fewer = msgspec.structs.replace(STICKY, backends=backends("pod1", "pod2"))
    world.proxy.apply([fewer, SHORT, DATAGRAMS])
    after = _choices(world, fewer, tries=5)
    stayed = {client: by for client, by in first.items() if by != "pod4"}
    assert {client: after[client] for client in stayed} == stayed
    assert {after[client] for client in first if client not in stayed} <= {"pod1", "pod2"}
    world.proxy.apply([STICKY, SHORT, DATAGRAMS])
    assert _choices(world, STICKY, tries=5) == after
