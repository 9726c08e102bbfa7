"""Objects change while connections come and live on."""

from __future__ import annotations

import http.client
from collections import Counter
from collections.abc import Iterator

import msgspec
import pytest
from tests.e2e import harness
from tests.e2e.world import FAMILIES, World, running, settles

from pointsman.lab import HOSTS
from pointsman.lab.objects import Backend, LabService, backends, node_manifest, service_range_manifest
from pointsman.lab.probe import Kind

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(bool(harness.missing_privilege()), reason=harness.missing_privilege()),
]

SERVING = {"ready": False, "serving": True, "terminating": True}
PLACES = ("cluster", "nodeport", "lb", "external")
WEB = LabService(
    *("web", 1, backends("pod1")),
    type="LoadBalancer",
    external=True,
    protocols=("TCP", "UDP"),
)


@pytest.fixture(scope="module", params=["nftables", "iptables"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running(tmp_path_factory.mktemp("changes"), request.param) as made:
        yield made


def _with(service: LabService, *members: Backend | str, **more: object) -> LabService:
    made = tuple(Backend(m) if isinstance(m, str) else m for m in members)
    return msgspec.structs.replace(service, backends=made, **more)


def test_new_connections_follow_the_endpoints(world: World) -> None:
    for members in (("pod1", "pod2"), ("pod2", "pod4"), ("pod1", "pod2", "pod4", "pod5"), ("pod5",)):
        service = _with(WEB, *members)
        world.proxy.apply([service])
        assert {to: world.answerers("client", service, to) for to in PLACES} == {
            key: set(members) for key in PLACES
        }


def test_last_endpoint_gone_refuses_and_its_return_serves_again(world: World) -> None:
    world.proxy.apply([_with(WEB, "pod1")])
    assert world.answerers("pod3", WEB) == {"pod1"}
    world.proxy.apply([_with(WEB)])
    assert {to: world.answerers("pod3", WEB, to, 2) for to in PLACES} == {key: {"refused"} for key in PLACES}
    world.proxy.apply([_with(WEB, "pod4")])
    assert world.answerers("pod3", WEB) == {"pod4"}


def test_a_changed_port_is_served_and_the_old_one_is_not(world: World) -> None:
    world.proxy.apply([WEB])
    moved = msgspec.structs.replace(WEB, ports=(8000,))
    world.proxy.apply([moved])
    assert world.answerers("pod3", moved, count=2) == {"pod1"}
    gone = {"nftables": "refused", "iptables": "silent"}[world.mode]
    assert world.answerers("pod3", WEB, count=2) == {gone}
    assert world.answerers("client", WEB, "lb", count=2) == {"silent"}


def test_a_type_change_takes_the_outer_frontends_away(world: World) -> None:
    world.proxy.apply([WEB])
    assert world.answerers("client", WEB, "nodeport", 2) == {"pod1"}
    world.proxy.apply([msgspec.structs.replace(WEB, type="ClusterIP", external=False)])
    assert world.answerers("client", WEB, "cluster", 2) == {"pod1"}
    assert world.answerers("client", WEB, "nodeport", 2) == {"refused"}
    assert world.answerers("client", WEB, "lb", 2) == {"silent"}
    assert world.answerers("client", WEB, "external", 2) == {"silent"}


def test_a_deleted_service_answers_no_more(world: World) -> None:
    world.proxy.apply([WEB])
    world.proxy.apply([])
    assert world.answerers("client", WEB, "cluster", 2) == {"silent"}
    assert world.answerers("client", WEB, "nodeport", 2) == {"refused"}


def test_one_address_in_two_slices_counts_once(world: World) -> None:
    twice = _with(WEB, "pod1", "pod4", slices=1)
    extra = LabService("web", 1, backends("pod1"), protocols=("TCP", "UDP")).manifests()[1:]
    for made in extra:
        made["metadata"]["name"] += "-again"
    others = [node_manifest("n1"), node_manifest("n2"), service_range_manifest(), *extra]
    world.proxy.apply([twice], others)
    shares = Counter(o.by for o in world.ask("pod3", twice, count=500))
    # Expected 500 of 1000, 667 if it were counted twice; 5 standard deviations from either.
    assert shares["pod1"] < 583
    assert set(shares) == {"pod1", "pod4"}


def test_a_zone_label_of_the_node_takes_effect_without_restart(world: World) -> None:
    zoned = _with(WEB, Backend("pod1", zones=("zone-a",)), Backend("pod4", zones=("zone-b",)))
    world.proxy.apply([zoned])
    assert world.answerers("pod3", zoned) == {"pod1"}
    moved = [node_manifest("n1", zone="zone-b"), node_manifest("n2"), service_range_manifest()]
    world.proxy.apply([zoned], moved)
    assert settles(lambda: world.answerers("pod3", zoned), lambda seen: seen == {"pod4"}) == {"pod4"}
    world.proxy.apply([zoned])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "after",
    [
        pytest.param([_with(WEB, "pod4")], id="endpoint-gone"),
        pytest.param([_with(WEB, Backend("pod1", SERVING), "pod4")], id="endpoint-draining"),
        pytest.param([], id="service-deleted"),
    ],
)
def test_an_open_tcp_connection_is_never_cut(world: World, family: int, after: list[LabService]) -> None:
    world.proxy.apply([WEB])
    with (
        world.flow("client", WEB, "lb", family) as outside,
        world.flow("pod3", WEB, "cluster", family) as inside,
    ):
        assert outside.ask().by == inside.ask().by == "pod1"
        world.proxy.apply(after)
        assert outside.ask().by == inside.ask().by == "pod1"


@pytest.mark.parametrize("to", PLACES)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_udp_flow_moves_when_its_endpoint_is_gone(world: World, family: int, to: str) -> None:
    world.proxy.apply([WEB])
    with world.flow("client", WEB, to, family, "UDP") as flow:
        assert flow.ask().by == "pod1"
        world.proxy.apply([_with(WEB, "pod4")])
        assert settles(flow.ask, lambda answer: answer.by == "pod4").by == "pod4"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_udp_flow_moves_when_its_endpoint_no_longer_serves(world: World, family: int) -> None:
    world.proxy.apply([WEB])
    dead = Backend("pod1", {"ready": False, "serving": False, "terminating": True})
    with world.flow("pod3", WEB, "cluster", family, "UDP") as flow:
        assert flow.ask().by == "pod1"
        world.proxy.apply([_with(WEB, dead, "pod4")])
        assert settles(flow.ask, lambda answer: answer.by == "pod4").by == "pod4"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_udp_flow_stays_on_an_endpoint_that_drains_and_serves(world: World, family: int) -> None:
    world.proxy.apply([WEB])
    with world.flow("pod3", WEB, "cluster", family, "UDP") as flow:
        assert flow.ask().by == "pod1"
        world.proxy.apply([_with(WEB, Backend("pod1", SERVING), "pod4")])
        assert {flow.ask().by for _ in range(20)} == {"pod1"}
        assert world.answerers("pod3", WEB) == {"pod4"}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("to", ["cluster", "lb", "external"])
def test_a_udp_flow_is_refused_when_all_endpoints_are_gone(world: World, family: int, to: str) -> None:
    world.proxy.apply([WEB])
    with world.flow("client", WEB, to, family, "UDP") as flow:
        assert flow.ask().by == "pod1"
        world.proxy.apply([_with(WEB)])
        assert settles(flow.ask, lambda answer: answer.kind is Kind.REFUSED).kind is Kind.REFUSED


@pytest.mark.parametrize("family", FAMILIES)
def test_a_udp_flow_is_caught_when_endpoints_appear(world: World, family: int) -> None:
    world.proxy.apply([_with(WEB)])
    with world.flow("client", WEB, "cluster", family, "UDP") as flow:
        assert flow.ask().kind is Kind.REFUSED
        world.proxy.apply([WEB])
        assert settles(flow.ask, lambda answer: answer.by == "pod1").by == "pod1"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_udp_flow_that_began_before_the_service_is_caught(world: World, family: int) -> None:
    world.proxy.apply([])
    with world.flow("client", WEB, "lb", family, "UDP") as flow:
        assert flow.ask().kind is Kind.SILENT
        world.proxy.apply([WEB])
        assert settles(flow.ask, lambda answer: answer.by == "pod1").by == "pod1"


@pytest.mark.skipif(bool(harness.REFERENCE), reason="kube-proxy leaves such flows on their old backend")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_udp_flow_of_a_deleted_service_ends(world: World, family: int) -> None:
    world.proxy.apply([WEB])
    with world.flow("client", WEB, "lb", family, "UDP") as flow:
        assert flow.ask().by == "pod1"
        world.proxy.apply([])
        assert settles(flow.ask, lambda answer: not answer.by).by == ""


def _health(world: World, port: int, address: str) -> tuple[int, str | None]:
    with world.cluster["client"].entered():
        connection = http.client.HTTPConnection(address, port, timeout=2)
        connection.connect()
    try:
        connection.request("GET", "/anything")
        answer = connection.getresponse()
        answer.read()
        return answer.status, answer.getheader("X-Load-Balancing-Endpoint-Weight")
    finally:
        connection.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_health_check_node_port_counts_ready_local_endpoints(world: World, family: int) -> None:
    local = _with(WEB, "pod1", "pod2", "pod4", external_policy="Local")
    address, port = HOSTS["n1"].address(family), 32001
    world.proxy.apply([local])

    def asked() -> tuple[int, str | None]:
        return _health(world, port, address)

    assert settles(asked, lambda answer: answer == (200, "2")) == (200, "2")
    world.proxy.apply([_with(local, Backend("pod1", SERVING), "pod4")])
    assert settles(asked, lambda answer: answer == (503, "0")) == (503, "0")
