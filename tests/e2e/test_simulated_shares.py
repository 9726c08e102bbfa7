"""`pointsman simulate` predicts what real connections then do: shares of endpoints, and an overload."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec
import pytest
from tests.harness import lab as harness
from tests.harness.world import World, running

from pointsman.lab import HOSTS
from pointsman.lab.objects import Backend, LabService, backends
from pointsman.simulate.cluster import Cluster, WeightFile, build_cluster, weigh_by_file
from pointsman.simulate.report import Limits, build_report
from pointsman.simulate.traffic import Clients, Simulation, simulate
from pointsman.simulate.whatif import WhatIf
from pointsman.source.manifest_files import load_objects

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(bool(harness.missing_privilege()), reason=harness.missing_privilege()),
]

CONNECTIONS = 400
EVEN = LabService("even", 1, backends("pod1", "pod2", "pod4"))
WEIGHTED = LabService(
    "weighted", 2, backends("pod1", "pod4"), annotations={"pointsman.dev/weights": "node/n1=3"}
)
HINTED = LabService("hinted", 3, (Backend("pod1", zones=("zone-a",)), Backend("pod4", zones=("zone-b",))))
LOCAL = LabService("local", 4, backends("pod1", "pod4"), internal_policy="Local")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running(tmp_path_factory.mktemp("simulated"), "nftables", [EVEN, WEIGHTED, HINTED, LOCAL]) as made:
        yield made


def read_cluster(world: World) -> Cluster:
    objects, findings = load_objects(world.proxy.manifests)
    assert findings == []
    return build_cluster(objects)


def simulate_clients_of_n1(cluster: Cluster) -> Simulation:
    """All clients are on n1, the node with the proxy."""
    return simulate(cluster, weigh_by_file(cluster, WeightFile(nodes={"n1": 1}), "clients"))


def predict(simulation: Simulation, service: LabService) -> dict[str, float]:
    (traffic,) = (
        one
        for one in simulation.traffic
        if (one.service, one.family, one.clients) == (service.name, "IPv4", Clients.INTERNAL)
    )
    hosts = {host.address(4): name for name, host in HOSTS.items()}
    return {hosts[one.address.partition(":")[0]]: one.share for one in traffic.shares if one.share}


def count_answers(world: World, service: LabService) -> Counter[str]:
    return Counter(outcome.by for outcome in world.ask("pod3", service, count=CONNECTIONS, family=4))


def check_shares(found: Mapping[str, int], predicted: Mapping[str, float]) -> None:
    """Each count is within five standard deviations of its binomial distribution."""
    assert set(found) == set(predicted)
    for host, share in predicted.items():
        spread = 5 * math.sqrt(CONNECTIONS * share * (1 - share))
        assert abs(found[host] - CONNECTIONS * share) <= spread, (host, share, found)


@pytest.mark.parametrize("service", [EVEN, WEIGHTED, HINTED, LOCAL], ids=lambda service: service.name)
def test_shares_are_those_of_real_connections(world: World, service: LabService) -> None:
    predicted = predict(simulate_clients_of_n1(read_cluster(world)), service)
    check_shares(count_answers(world, service), predicted)


def test_a_predicted_overload_is_seen_after_the_change(world: World) -> None:
    cluster = read_cluster(world)
    change = WhatIf(settings=["lab/even:internalTrafficPolicy=Local"])
    after = change.apply_to(cluster)
    report = build_report(simulate_clients_of_n1(cluster), simulate_clients_of_n1(after), Limits(growth=1.4))
    grown = {one.address for change in report.changes for one in change.grown}
    assert {f"{HOSTS[name].address(4)}:8080" for name in ("pod1", "pod2")} <= grown

    changed = msgspec.structs.replace(EVEN, internal_policy="Local")
    world.proxy.apply([changed, WEIGHTED, HINTED, LOCAL])
    predicted = predict(simulate_clients_of_n1(after), EVEN)
    assert predicted == {"pod1": pytest.approx(0.5), "pod2": pytest.approx(0.5)}
    check_shares(count_answers(world, EVEN), predicted)
