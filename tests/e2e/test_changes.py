"""Objects change while connections come and live on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import pytest
from tests.e2e.http_get import get
from tests.harness import lab as harness
from tests.harness.waiting import wait_until
from tests.harness.world import FAMILIES, World, answers, running, wait_answers

from pointsman.lab import HOSTS
from pointsman.lab.objects import Backend, LabService, backends, node_manifest, service_range_manifest
from pointsman.lab.probe import run_probes

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(bool(harness.missing_privilege()), reason=harness.missing_privilege()),
]

flaky_there = pytest.mark.skipif(bool(harness.REFERENCE), reason="kube-proxy misses it in one of four runs")

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
    if world.mode == "nftables":
        assert world.answerers("pod3", WEB, count=2) == {"refused"}
    else:
        assert world.is_dropped("pod3", WEB)
    assert world.is_dropped("client", WEB, "lb")


def test_a_type_change_takes_the_outer_frontends_away(world: World) -> None:
    world.proxy.apply([WEB])
    assert world.answerers("client", WEB, "nodeport", 2) == {"pod1"}
    world.proxy.apply([msgspec.structs.replace(WEB, type="ClusterIP", external=False)])
    assert world.answerers("client", WEB, "cluster", 2) == {"pod1"}
    assert world.answerers("client", WEB, "nodeport", 2) == {"refused"}
    assert world.is_dropped("client", WEB, "lb")
    assert world.is_dropped("client", WEB, "external")


def test_a_deleted_service_answers_no_more(world: World) -> None:
    world.proxy.apply([WEB])
    world.proxy.apply([])
    assert world.is_dropped("client", WEB, "cluster")
    assert world.answerers("client", WEB, "nodeport", 2) == {"refused"}


def test_one_address_in_two_slices_counts_once(world: World) -> None:
    twice = _with(WEB, "pod1", "pod4", slices=1)
    extra = LabService("web", 1, backends("pod1"), protocols=("TCP", "UDP")).manifests()[1:]
    for made in extra:
        made["metadata"]["name"] += "-again"
    others = [node_manifest("n1"), node_manifest("n2"), service_range_manifest(), *extra]
    world.proxy.apply([twice], others)
    shares = Counter(o.by or str(o) for o in world.ask("pod3", twice, count=500))
    # Expected 500 of 1000, 667 if it were counted twice; 5 standard deviations from either.
    assert shares["pod1"] < 583
    assert set(shares) == {"pod1", "pod4"}


@pytest.mark.skipif(bool(harness.REFERENCE), reason="in kube-proxy chance decides who has the address")
def test_an_external_address_in_the_service_range_is_served_until_it_is_a_cluster_ip(world: World) -> None:
    external = [WEB.address("external", family) for family in FAMILIES]
    wider = service_range_manifest()
    wider["metadata"]["name"] = "wider"
    wider["spec"]["cidrs"] = ["198.51.100.0/24", "fd00:198::/112"]
    others = [node_manifest("n1"), node_manifest("n2"), service_range_manifest(), wider]
    owner = LabService("owner", 2, backends("pod4"), ports=(443,)).manifests()
    owner[0]["spec"] |= {"clusterIP": external[0], "clusterIPs": external}
    at_443 = msgspec.structs.replace(WEB, ports=(443,))

    world.proxy.apply([WEB], others)
    assert {host: world.answerers(host, WEB, "external", 2) for host in ("client", "pod3")} == {
        "client": {"pod1"},
        "pod3": {"pod1"},
    }
    world.proxy.apply([WEB], [*others, *owner])
    assert "pod1" not in world.answerers("pod3", WEB, "external", 2)
    assert world.answerers("pod3", at_443, "external", 2) == {"pod4"}
    world.proxy.apply([WEB], others)
    assert world.answerers("pod3", WEB, "external", 2) == {"pod1"}


class Ranges(NamedTuple):
    """Source ranges, and in which IP families they admit a client at 172.30.0.100 and fd00:30::100."""

    given: tuple[str, ...]
    ours: tuple[int, ...]
    kube_proxy: tuple[int, ...]


HERE, ELSEWHERE = ("172.30.0.100/32", "fd00:30::100/128"), ("192.0.2.0/24", "2001:db8::/32")
BAD_RANGES = (
    Ranges(("garbage",), (), FAMILIES),
    Ranges(("10.0.0.0/33", "fd00::/129"), (), FAMILIES),
    Ranges(("10.0.0.0/-1",), (), FAMILIES),
    Ranges(("10.0.0/8",), (), FAMILIES),
    Ranges(("172.30.0.100", "fd00:30::100"), (), FAMILIES),
    Ranges(("",), (), FAMILIES),
    Ranges(("garbage", *HERE), FAMILIES, FAMILIES),
    Ranges(("garbage", *ELSEWHERE), (), ()),
    Ranges(("garbage", "0.0.0.0/0", "::/0"), FAMILIES, FAMILIES),
    Ranges(("garbage", ELSEWHERE[1]), (), (4,)),
    Ranges((ELSEWHERE[1],), (4,), (4,)),
    Ranges(("0172.030.00.0/016", "fd00:30::100/64"), FAMILIES, FAMILIES),
)


def test_source_ranges_that_cannot_be_read_close_what_they_open_in_kube_proxy(world: World) -> None:
    services = [
        msgspec.structs.replace(WEB, name=f"ranges-{number}", number=number, source_ranges=ranges.given)
        for number, ranges in enumerate(BAD_RANGES, 1)
    ]
    world.proxy.apply(services)
    expected = {r.given: r.kube_proxy if harness.REFERENCE else r.ours for r in BAD_RANGES}
    probes = [world.probe("client", service, "lb", family) for service in services for family in FAMILIES]
    outcomes = iter(run_probes(world.cluster, probes))
    admitted = {
        ranges.given: tuple(family for family in FAMILIES if next(outcomes).by) for ranges in BAD_RANGES
    }
    assert admitted == expected


def test_a_zone_label_of_the_node_takes_effect_without_restart(world: World) -> None:
    zoned = _with(WEB, Backend("pod1", zones=("zone-a",)), Backend("pod4", zones=("zone-b",)))
    world.proxy.apply([zoned])
    assert world.answerers("pod3", zoned) == {"pod1"}
    moved = [node_manifest("n1", zone="zone-b"), node_manifest("n2"), service_range_manifest()]
    world.proxy.apply([zoned], moved)
    assert wait_until(lambda: world.answerers("pod3", zoned), lambda seen: seen == {"pod4"}) == {"pod4"}
    world.proxy.apply([zoned])


@pytest.mark.parametrize(
    "after",
    [
        pytest.param([_with(WEB, "pod4")], id="endpoint-gone"),
        pytest.param([_with(WEB, Backend("pod1", SERVING), "pod4")], id="endpoint-draining"),
        pytest.param([], id="service-deleted"),
    ],
)
def test_an_open_tcp_connection_is_never_cut(world: World, after: list[LabService]) -> None:
    world.proxy.apply([WEB])
    with world.flows("client", WEB, *PLACES) as outside, world.flows("pod3", WEB, *PLACES) as inside:
        assert set(answers(outside).values()) == set(answers(inside).values()) == {"pod1"}
        world.proxy.apply(after)
        assert set(answers(outside).values()) == set(answers(inside).values()) == {"pod1"}


def test_a_udp_flow_moves_when_its_endpoint_is_gone(world: World) -> None:
    world.proxy.apply([WEB])
    with world.flows("client", WEB, *PLACES, protocol="UDP") as flows:
        assert set(answers(flows).values()) == {"pod1"}
        world.proxy.apply([_with(WEB, "pod4")])
        wait_answers(flows, "pod4")


def test_a_udp_flow_moves_when_its_endpoint_no_longer_serves(world: World) -> None:
    world.proxy.apply([WEB])
    dead = Backend("pod1", {"ready": False, "serving": False, "terminating": True})
    with world.flows("pod3", WEB, *PLACES, protocol="UDP") as flows:
        assert set(answers(flows).values()) == {"pod1"}
        world.proxy.apply([_with(WEB, dead, "pod4")])
        wait_answers(flows, "pod4")


def test_a_udp_flow_stays_on_an_endpoint_that_drains_and_serves(world: World) -> None:
    world.proxy.apply([WEB])
    with world.flows("pod3", WEB, *PLACES, protocol="UDP") as flows:
        assert set(answers(flows).values()) == {"pod1"}
        world.proxy.apply([_with(WEB, Backend("pod1", SERVING), "pod4")])
        assert world.answerers("pod3", WEB) == {"pod4"}
        assert set(answers(flows).values()) == {"pod1"}


@pytest.mark.skipif(bool(harness.REFERENCE), reason="kube-proxy moves flows off endpoints that do not serve")
def test_where_asked_a_udp_flow_stays_on_a_terminating_endpoint_until_it_is_removed(world: World) -> None:
    """The flows of another Service, which move with the same change, show that flows were checked."""
    keeps = _with(WEB, "pod1", annotations={"pointsman.dev/udp-draining": "keep"})
    moves = LabService("moves", 2, backends("pod1"), protocols=("UDP",))
    ends = Backend("pod1", {"ready": False, "serving": False, "terminating": True})
    world.proxy.apply([keeps, moves])
    with (
        world.flows("pod3", keeps, *PLACES, protocol="UDP") as kept,
        world.flows("pod3", moves, "cluster", protocol="UDP") as moved,
    ):
        on_pod1 = dict.fromkeys(kept, "pod1")
        assert answers(kept) == on_pod1
        assert set(answers(moved).values()) == {"pod1"}
        world.proxy.apply([_with(keeps, ends, "pod4"), _with(moves, ends, "pod4")])
        wait_answers(moved, "pod4")
        assert world.answerers("pod3", keeps) == {"pod4"}
        assert answers(kept) == on_pod1
        world.proxy.apply([_with(keeps, ends), _with(moves, "pod5")])
        wait_answers(moved, "pod5")
        assert answers(kept) == on_pod1, "also where no endpoint is left for new flows"
        world.proxy.apply([_with(keeps, "pod4")])
        wait_answers(kept, "pod4")


def test_a_udp_flow_is_refused_when_all_endpoints_are_gone_and_served_when_there_is_one(world: World) -> None:
    world.proxy.apply([WEB])
    with (
        world.flows("client", WEB, "cluster", "lb", "external", protocol="UDP") as flows,
        world.flows("client", WEB, "nodeport", protocol="UDP") as node_port_flows,
    ):
        assert set(answers(flows).values()) == set(answers(node_port_flows).values()) == {"pod1"}
        world.proxy.apply([_with(WEB)])
        wait_answers(flows, "refused")
        world.proxy.apply([_with(WEB, "pod4")])
        wait_answers(flows, "pod4")
        wait_answers(node_port_flows, "pod4")


@flaky_there
def test_a_udp_flow_that_began_before_the_service_is_caught(world: World) -> None:
    world.proxy.apply([])
    with world.flows("client", WEB, "lb", "external", protocol="UDP") as flows:
        assert set(answers(flows).values()) == {"timed out"}
        world.proxy.apply([WEB])
        wait_answers(flows, "pod1")


@pytest.mark.skipif(bool(harness.REFERENCE), reason="kube-proxy leaves such flows on their old backend")
@pytest.mark.parametrize(
    ("after", "places"),
    [
        pytest.param([], PLACES, id="deleted"),
        pytest.param([_with(WEB, "pod1", type="ClusterIP", external=False)], PLACES[1:], id="type-changed"),
        pytest.param([_with(WEB, "pod1", ports=(8000,))], ("cluster", "lb", "external"), id="port-changed"),
    ],
)
def test_a_udp_flow_to_a_frontend_that_went_away_ends(
    world: World, after: list[LabService], places: tuple[str, ...]
) -> None:
    world.proxy.apply([WEB])
    with world.flows("client", WEB, *places, protocol="UDP") as flows:
        assert set(answers(flows).values()) == {"pod1"}
        world.proxy.apply(after)
        ended = wait_until(lambda: answers(flows), lambda seen: "pod1" not in seen.values())
        assert "pod1" not in ended.values()


def test_the_health_check_node_port_counts_ready_local_endpoints(world: World) -> None:
    local = _with(WEB, "pod1", "pod2", "pod4", external_policy="Local")

    def asked() -> set[tuple[int, str | None]]:
        answers = [get(world.cluster["client"], HOSTS["n1"].address(f), 32001, "/anything") for f in FAMILIES]
        return {(answer.status, answer.headers.get("X-Load-Balancing-Endpoint-Weight")) for answer in answers}

    world.proxy.apply([local])
    assert wait_until(asked, lambda answer: answer == {(200, "2")}) == {(200, "2")}
    world.proxy.apply([_with(local, Backend("pod1", SERVING), "pod4")])
    assert wait_until(asked, lambda answer: answer == {(503, "0")}) == {(503, "0")}
