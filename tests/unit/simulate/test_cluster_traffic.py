"""Shares of endpoints over a cluster: equal to what the planning of every single node says."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import factory

from pointsman.app.offline import plan_objects
from pointsman.config.types import KubeProxyConfiguration
from pointsman.errors import ConfigError
from pointsman.model.decision import State
from pointsman.model.objects import EndpointSlice, KubeObject
from pointsman.simulate.cluster import WeightFile, build_cluster, weigh_by_file, weigh_nodes, weigh_pods
from pointsman.simulate.traffic import Clients, PortTraffic, Simulation, simulate

ZONES = ("a", "b", "")
NODES = ("n1", "n2", "n3", "n4")


def simulate_objects(objects: list[KubeObject]) -> Simulation:
    cluster = build_cluster(objects)
    return simulate(cluster, weigh_nodes(cluster))


def find(simulation: Simulation, clients: Clients = Clients.INTERNAL) -> PortTraffic:
    (found,) = (one for one in simulation.traffic if one.clients is clients)
    return found


def build_endpoint(number: int, node: str, zone: str, **more: Any) -> dict[str, Any]:
    return {"addresses": [f"10.244.0.{number}"], "nodeName": node, "zone": zone, **more}


def build_slice(*endpoints: dict[str, Any]) -> EndpointSlice:
    return factory.endpoint_slice(*endpoints, ports=[{"name": "http", "port": 8080}])


hints = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {"forZones": st.lists(st.sampled_from("ab").map(lambda zone: {"name": zone}), max_size=2)}
    ),
    st.fixed_dictionaries(
        {
            "forZones": st.just([{"name": "a"}]),
            "forNodes": st.lists(st.sampled_from(NODES).map(lambda node: {"name": node}), max_size=2),
        }
    ),
)
conditions = st.sampled_from(
    (
        {"ready": True},
        {"ready": False},
        {"ready": False, "serving": True, "terminating": True},
    )
)
policies = st.sampled_from(("Cluster", "Local"))


@st.composite
def services(draw: st.DrawFn, number: int) -> list[KubeObject]:
    """A Service of both IP families that may want what another one has, and its endpoints."""
    name, index = f"s{number}", draw(st.sampled_from((1, number)))
    weights = draw(st.sampled_from(("", "zone/a=3", "node/n1=0, node/n2=5")))
    service = factory.service(
        name,
        clusterIP=f"10.96.0.{index}",
        clusterIPs=[f"10.96.0.{index}", f"fd00:10:96::{index}"],
        metadata={"annotations": {"pointsman.dev/weights": weights} if weights else {}},
        type=draw(st.sampled_from(("ClusterIP", "NodePort"))),
        ports=[{"name": "http", "port": 80, "nodePort": draw(st.sampled_from((0, 30080, 30080 + number)))}],
        externalIPs=draw(st.sampled_from(([], ["203.0.113.1"], ["203.0.113.1", "2001:db8::1"]))),
        internalTrafficPolicy=draw(policies),
        externalTrafficPolicy=draw(policies),
    )
    slices: list[KubeObject] = []
    for family, address in (("IPv4", "10.244.{}.{}"), ("IPv6", "fd00:10:244:{}::{}")):
        endpoints = [
            {
                "addresses": [address.format(number, position)],
                "nodeName": draw(st.sampled_from((*NODES, "gone"))),
                "zone": draw(st.sampled_from("ab")),
                "conditions": draw(conditions),
                "hints": draw(hints),
            }
            for position in range(1, draw(st.integers(0, 5)) + 1)
        ]
        ports = [{"name": "http", "port": 8080}]
        slices.append(
            factory.endpoint_slice(
                *endpoints, name=f"{name}-{family}", service_name=name, family=family, ports=ports
            )
        )
    return [service, *slices]


@st.composite
def clusters(draw: st.DrawFn) -> list[KubeObject]:
    nodes: list[KubeObject] = [factory.node(name, draw(st.sampled_from(ZONES))) for name in NODES]
    return [*nodes, *draw(services(1)), *draw(services(2))]


@settings(max_examples=100, deadline=None)
@given(clusters())
def test_shares_are_those_of_the_plans_of_all_nodes(objects: list[KubeObject]) -> None:
    expected: dict[tuple[str, str, Clients], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for name in NODES:
        config = KubeProxyConfiguration(hostname_override=name, mode="nftables")
        for family, request in plan_objects(objects, config).requests.items():
            for plan in request.plans.values():
                for kind, endpoints in (
                    (Clients.INTERNAL, plan.internal_endpoints),
                    (Clients.EXTERNAL, plan.external_endpoints if len(plan.frontends) > 1 else ()),
                ):
                    weights = {
                        str(one): plan.balancing.weight(one) if plan.balancing is not None else 1
                        for one in endpoints
                    }
                    for address, weight in weights.items():
                        share = weight / sum(weights.values()) / len(NODES)
                        expected[plan.name.service, family.value, kind][address] += share
    traffic = simulate_objects(objects).traffic
    for one in traffic:
        wanted = expected.pop((one.service, one.family, one.clients), {})
        assert {found.address: found.share for found in one.shares if found.share} == pytest.approx(wanted)
        assert one.delivered == pytest.approx(sum(wanted.values()))
        assert one.delivered + sum(found.share for found in one.unserved) == pytest.approx(1)
    assert not expected


def test_connections_are_counted_by_node_and_zone() -> None:
    nodes = [factory.node("n1", "a"), factory.node("n2", "a"), factory.node("n3", "b")]
    endpoints = (build_endpoint(1, "n1", "a"), build_endpoint(2, "n3", "b"))
    found = find(simulate_objects([*nodes, factory.service(), build_slice(*endpoints)]))
    # Two of three clients are in zone a, where one of the two endpoints is.
    assert found.same_node == pytest.approx(1 / 3 * 1 / 2 + 1 / 3 * 1 / 2)
    assert found.same_zone == pytest.approx(2 / 3 * 1 / 2 + 1 / 3 * 1 / 2)
    assert found.cross_zone == pytest.approx(1 - found.same_zone)
    assert found.skew == pytest.approx(1)


def test_flows_are_summed_by_zone() -> None:
    nodes = [factory.node("n1", "a"), factory.node("n2", "b")]
    simulation = simulate_objects([*nodes, factory.service(), build_slice(build_endpoint(1, "n1", "a"))])
    assert simulation.flows == {"a": {"a": pytest.approx(0.5)}, "b": {"a": pytest.approx(0.5)}}


def test_without_zones_nothing_is_said_to_cross_them() -> None:
    found = find(
        simulate_objects(
            [factory.node("n1", ""), factory.service(), build_slice(build_endpoint(1, "n1", ""))]
        )
    )
    assert (found.same_node, found.same_zone, found.cross_zone) == (1, 0, 0)


def test_a_load_balancer_uses_only_nodes_with_endpoints_where_the_policy_is_local() -> None:
    nodes = [factory.node(name, "a") for name in NODES]
    service = factory.service(
        type="LoadBalancer",
        externalTrafficPolicy="Local",
        healthCheckNodePort=30900,
        status={"loadBalancer": {"ingress": [{"ip": "203.0.113.1"}]}},
    )
    endpoints = (build_endpoint(1, "n1", "a"), build_endpoint(2, "n1", "a"), build_endpoint(3, "n2", "a"))
    found = find(simulate_objects([*nodes, service, build_slice(*endpoints)]), Clients.EXTERNAL)
    assert found.state is State.HEALTHY
    assert [one.share for one in found.shares] == [0.5, 0.25, 0.25]
    assert found.skew == pytest.approx(1.5)


def test_a_node_port_with_policy_local_names_the_nodes_that_drop() -> None:
    service = factory.service(
        type="NodePort",
        ports=[{"name": "http", "port": 80, "nodePort": 30080}],
        externalTrafficPolicy="Local",
    )
    objects: list[KubeObject] = [
        *(factory.node(name, "a") for name in NODES),
        service,
        build_slice(build_endpoint(1, "n2", "a")),
    ]
    found = find(simulate_objects(objects), Clients.EXTERNAL)
    (unserved,) = found.unserved
    assert found.state is State.PARTIAL
    assert (unserved.reason, unserved.nodes, unserved.names) == ("NoLocalEndpoint", 3, ("n1", "n3", "n4"))


def test_ignored_hints_are_told_with_the_number_that_decided() -> None:
    nodes = [factory.node("n1", "a"), factory.node("n2", "b")]
    hinted = build_endpoint(1, "n1", "a", hints={"forZones": [{"name": "a"}]})
    found = find(simulate_objects([*nodes, factory.service(), build_slice(hinted)]))
    assert [(use.mode, use.share) for use in found.hints] == [("PreferSameZone", 0.5), ("", 0.5)]
    assert "0 of 1 ready endpoints are hinted for zone b" in found.hints[1].note


def test_a_service_without_its_cluster_ip_is_down_with_the_reason() -> None:
    services = [factory.service("aa"), factory.service("web")]
    objects: list[KubeObject] = [
        factory.node("n1", "a"),
        *services,
        build_slice(build_endpoint(1, "n1", "a")),
    ]
    down = [one for one in simulate_objects(objects).traffic if one.service == "web"]
    assert [one.unserved[0].reason for one in down] == ["ContestedClusterIP"]


def test_external_clients_of_an_address_that_another_service_holds_are_not_served() -> None:
    older, younger = (
        factory.service(
            name,
            clusterIP=f"10.96.0.{number}",
            metadata={"creationTimestamp": f"2026-01-0{number}T00:00:00Z"},
            externalIPs=["203.0.113.1"],
        )
        for number, name in ((1, "older"), (2, "web"))
    )
    objects: list[KubeObject] = [
        factory.node("n1", "a"),
        older,
        younger,
        build_slice(build_endpoint(1, "n1", "a")),
    ]
    external, internal = [one for one in simulate_objects(objects).traffic if one.service == "web"]
    assert (external.clients, external.state, internal.state) == (
        Clients.EXTERNAL,
        State.DOWN,
        State.HEALTHY,
    )
    assert [one.reason for one in external.unserved] == ["ContestedAddress"]


def test_clients_can_be_weighed_by_pods_and_by_a_file() -> None:
    nodes = [factory.node("n1", "a"), factory.node("n2", "a"), factory.node("n3", "b")]
    pods = [build_endpoint(n, "n1", "a", targetRef={"kind": "Pod", "name": f"p{n}"}) for n in (1, 2)]
    cluster = build_cluster([*nodes, build_slice(*pods)])
    assert weigh_pods(cluster).by_node == {"n1": 2, "n2": 0, "n3": 0}
    found = weigh_by_file(cluster, WeightFile(nodes={"n1": 5}, zones={"a": 1, "b": 2}), "weights.yaml")
    assert found.by_node == {"n1": 5, "n2": 1, "n3": 2}


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (WeightFile(nodes={"n9": 1}), "the cluster has no node n9"),
        (WeightFile(zones={"x": 1}), "the cluster has no zone x"),
        (WeightFile(), "at least one node must have clients"),
        (WeightFile(nodes={"n1": -1}), "weights must be positive"),
    ],
)
def test_bad_weights_are_refused(weights: WeightFile, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        weigh_by_file(build_cluster([factory.node("n1", "a")]), weights, "weights.yaml")


def test_services_of_no_interest_are_left_out() -> None:
    cluster = build_cluster(
        [factory.node("n1", "a"), factory.service(), build_slice(build_endpoint(1, "n1", "a"))]
    )
    assert simulate(cluster, weigh_nodes(cluster), lambda _name: False).traffic == ()
