"""Source ranges at every external frontend, for Services that ask for that: allowed and denied clients of each kind."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from tests.harness import lab as harness
from tests.harness.waiting import wait_until
from tests.harness.world import FAMILIES, World, running

from pointsman.lab.objects import LabService, backends
from pointsman.lab.probe import Kind, run_probes

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(bool(harness.missing_privilege()), reason=harness.missing_privilege()),
    pytest.mark.skipif(bool(harness.REFERENCE), reason="kube-proxy guards load-balancer addresses only"),
]

CLIENT, NODE, POD = (
    ("172.30.0.100/32", "fd00:30::100/128"),
    ("172.30.0.10/32", "fd00:30::10/128"),
    ("10.244.1.13/32", "fd00:10:244:1::13/128"),
)
"""client, n1 and pod3."""
EVERYWHERE = LabService(
    *("everywhere", 1, backends("pod1", "pod4")),
    type="LoadBalancer",
    external=True,
    source_ranges=CLIENT,
    annotations={"pointsman.dev/source-ranges": "all"},
)
PLAIN = msgspec.structs.replace(EVERYWHERE, name="plain", number=2, annotations={})
INSIDERS = msgspec.structs.replace(EVERYWHERE, name="insiders", number=3, source_ranges=NODE + POD)
UNREADABLE = msgspec.structs.replace(EVERYWHERE, name="unreadable", number=4, source_ranges=("10.0.0.0/33",))
LOCAL = msgspec.structs.replace(
    EVERYWHERE, name="local", number=5, external_policy="Local", backends=backends("pod1")
)
STICKY = msgspec.structs.replace(EVERYWHERE, name="sticky", number=6, affinity_seconds=60)
EMPTY = msgspec.structs.replace(EVERYWHERE, name="empty", number=7, backends=())
SERVICES = [EVERYWHERE, PLAIN, INSIDERS, UNREADABLE, LOCAL, STICKY, EMPTY]
PLACES = ("lb", "external", "nodeport")
HOSTS = ("client", "client2", "pod3", "n1")


@pytest.fixture(scope="module", params=harness.MODES)
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running(tmp_path_factory.mktemp("ranges"), request.param, SERVICES) as made:
        yield made


def admitted(world: World, service: LabService, hosts: tuple[str, ...] = HOSTS) -> dict[str, set[str]]:
    """Who is answered, at each kind of frontend, in both families."""
    asked = [(host, to, family) for to in PLACES for host in hosts for family in FAMILIES]
    outcomes = run_probes(
        world.cluster, [world.probe(host, service, to, family) for host, to, family in asked]
    )
    found: dict[str, set[str]] = {to: set() for to in PLACES}
    for (host, to, family), outcome in zip(asked, outcomes, strict=True):
        if outcome.kind is Kind.ANSWERED:
            found[to].add(f"{host}-v{family}")
    return found


def both(*hosts: str) -> set[str]:
    return {f"{host}-v{family}" for host in hosts for family in FAMILIES}


@pytest.mark.parametrize(
    ("service", "hosts"),
    [
        (EVERYWHERE, ("client",)),
        (LOCAL, ("client",)),
        (STICKY, ("client",)),
        (INSIDERS, ("pod3", "n1")),
        (UNREADABLE, ()),
    ],
    ids=lambda value: value.name if isinstance(value, LabService) else "",
)
def test_only_those_in_the_ranges_are_admitted_at_every_external_frontend(
    world: World, service: LabService, hosts: tuple[str, ...]
) -> None:
    wanted = {to: both(*hosts) for to in PLACES}
    assert wait_until(lambda: admitted(world, service), lambda seen: seen == wanted) == wanted


def test_without_the_annotation_only_the_load_balancer_address_is_guarded(world: World) -> None:
    wanted = {"lb": both("client"), "external": both(*HOSTS), "nodeport": both(*HOSTS)}
    assert wait_until(lambda: admitted(world, PLAIN), lambda seen: seen == wanted) == wanted


def test_the_cluster_address_is_open_and_an_empty_service_refuses_who_may_ask(world: World) -> None:
    assert world.answerers("pod3", EVERYWHERE, "cluster", 4) <= {"pod1", "pod4"}
    for to in PLACES:
        assert world.answerers("client", EMPTY, to, 1) == {"refused"}
