"""Plans to IPVS objects."""

from __future__ import annotations

from typing import Any

import pytest
from tests.factory import context, endpoint, packed, plan, service_port

from pointsman.backends.ipvs.compile import (
    ADDRESS,
    BLOCKED,
    SERVER,
    Compiler,
    Schedulers,
    ServerRow,
    find_node_addresses,
    find_node_port_addresses,
)
from pointsman.backends.ledger import Row
from pointsman.kernel.ipvs_objects import PERSISTENT, SCHEDULER_2, RealKey, SetEntry, VirtualKey
from pointsman.model.addresses import Family, cidr_from_text
from pointsman.model.balancing import BalancingRequest, Scheduler, parse_balancing_request
from pointsman.model.endpoint import Endpoint
from pointsman.model.findings import Finding
from pointsman.model.node_context import NodeContext, NodePortAddresses
from pointsman.model.objects import Meta
from pointsman.model.service import Protocol, ServicePort

NODE = packed("172.30.0.10")
HERE = context(node_ips=(NODE,), addresses_in_rules=(packed("127.0.0.1"), NODE))
LOCAL = endpoint("10.244.1.1", local=True)
REMOTE = endpoint("10.244.2.1")


def compiled(port: ServicePort, *endpoints: Endpoint, node: NodeContext = HERE) -> tuple[Row, ...]:
    return Compiler(node, Schedulers("rr")).compile(plan(port, *endpoints, node_context=node))


def reals(fragment: tuple[Row, ...]) -> dict[str, list[str]]:
    return {str(row.server.key): [str(real) for real in row.weights] for row in servers(fragment)}


def servers(fragment: tuple[Row, ...]) -> list[ServerRow]:
    return [row.value for row in fragment if row.kind == SERVER]


def keys(fragment: tuple[Row, ...], kind: str) -> tuple[Any, ...]:
    return tuple(row.key for row in fragment if row.kind == kind)


def members(fragment: tuple[Row, ...]) -> list[tuple[str, SetEntry]]:
    return [(row.kind, row.key) for row in fragment if isinstance(row.key, SetEntry)]


def entries(fragment: tuple[Row, ...]) -> set[str]:
    return {f"{name} {entry}" for name, entry in members(fragment)}


def test_a_cluster_ip_gets_a_server_an_address_and_its_sets() -> None:
    fragment = compiled(service_port(), REMOTE)
    assert reals(fragment) == {"tcp 10.96.0.10:80": ["10.244.2.1:8080"]}
    assert keys(fragment, ADDRESS) == (packed("10.96.0.10"),)
    assert entries(fragment) == {"KUBE-CLUSTER-IP 10.96.0.10,tcp:80", "KUBE-IPVS-IPS 10.96.0.10"}


def test_no_endpoints_means_an_empty_server() -> None:
    assert reals(compiled(service_port())) == {"tcp 10.96.0.10:80": []}


def test_local_endpoints_are_in_the_hairpin_set_whatever_their_state() -> None:
    fragment = compiled(
        service_port(), endpoint("10.244.1.1", local=True, ready=False, serving=False), REMOTE
    )
    assert "KUBE-LOOP-BACK 10.244.1.1,tcp:8080,10.244.1.1" in entries(fragment)
    assert reals(fragment) == {"tcp 10.96.0.10:80": ["10.244.2.1:8080"]}


def test_node_ports_answer_at_every_address_of_the_node_but_loopback() -> None:
    fragment = compiled(service_port(node_port=30080), REMOTE)
    assert "tcp 172.30.0.10:30080" in reals(fragment)
    assert not any("127.0.0.1" in key for key in reals(fragment))
    assert "KUBE-NODE-PORT-TCP 30080" in entries(fragment)
    assert keys(fragment, ADDRESS) == (packed("10.96.0.10"),)


def test_sctp_node_ports_are_told_apart_by_address() -> None:
    fragment = compiled(service_port(node_port=30080, protocol=Protocol.SCTP, external_local=True), REMOTE)
    assert {
        "KUBE-NODE-PORT-SCTP-HASH 172.30.0.10,sctp:30080",
        "KUBE-NODE-PORT-LOCAL-SCTP-HASH 172.30.0.10,sctp:30080",
    } <= entries(fragment)


def test_without_any_node_port_address_there_is_no_trace_of_the_node_port() -> None:
    nowhere = context(node_port_addresses=NodePortAddresses(match_all=False), addresses_in_rules=(NODE,))
    fragment = compiled(service_port(node_port=30080), REMOTE, node=nowhere)
    assert not any("30080" in text for text in [*reals(fragment), *entries(fragment)])


@pytest.mark.parametrize("field", ["external_ips", "load_balancer_ips"])
def test_an_address_of_the_node_itself_is_served_and_never_bound(field: str) -> None:
    addresses: dict[str, Any] = {field: ("172.30.0.10", "203.0.113.1")}
    fragment = compiled(service_port(**addresses), REMOTE)
    assert {"tcp 172.30.0.10:80", "tcp 203.0.113.1:80"} <= reals(fragment).keys()
    assert keys(fragment, ADDRESS) == (packed("10.96.0.10"), packed("203.0.113.1"))
    assert "KUBE-IPVS-IPS 172.30.0.10" not in entries(fragment)


def test_external_ips_are_in_one_of_two_sets_by_policy() -> None:
    cluster = compiled(service_port(external_ips=("198.51.100.1",)), REMOTE)
    local = compiled(service_port(external_ips=("198.51.100.1",), external_local=True), REMOTE)
    assert "KUBE-EXTERNAL-IP 198.51.100.1,tcp:80" in entries(cluster)
    assert "KUBE-EXTERNAL-IP-LOCAL 198.51.100.1,tcp:80" in entries(local)
    assert "KUBE-EXTERNAL-IP 198.51.100.1,tcp:80" not in entries(local)


def test_local_load_balancer_addresses_are_in_both_sets() -> None:
    fragment = compiled(
        service_port(
            load_balancer_ips=("203.0.113.1",),
            node_port=30080,
            external_local=True,
            health_check_node_port=32000,
        ),
        LOCAL,
    )
    assert {
        "KUBE-LOAD-BALANCER 203.0.113.1,tcp:80",
        "KUBE-LOAD-BALANCER-LOCAL 203.0.113.1,tcp:80",
        "KUBE-NODE-PORT-TCP 30080",
        "KUBE-NODE-PORT-LOCAL-TCP 30080",
        "KUBE-HEALTH-CHECK-NODE-PORT 32000",
    } <= entries(fragment)


def test_a_local_policy_uses_local_endpoints_and_falls_back_to_all() -> None:
    port = service_port(load_balancer_ips=("203.0.113.1",), external_local=True)
    assert reals(compiled(port, LOCAL, REMOTE)) == {
        "tcp 10.96.0.10:80": ["10.244.1.1:8080", "10.244.2.1:8080"],
        "tcp 203.0.113.1:80": ["10.244.1.1:8080"],
    }
    assert reals(compiled(port, REMOTE))["tcp 203.0.113.1:80"] == ["10.244.2.1:8080"]


def test_an_internal_local_policy_without_local_endpoints_is_empty_inside_the_cluster_only() -> None:
    assert reals(compiled(service_port(internal_local=True), REMOTE)) == {"tcp 10.96.0.10:80": []}
    outside = compiled(service_port(internal_local=True, node_port=30080), REMOTE)
    assert reals(outside)["tcp 10.96.0.10:80"] == ["10.244.2.1:8080"]


@pytest.mark.parametrize(("ranges", "allowed"), [(("172.30.0.0/24",), True), (("10.0.0.0/8",), False)])
def test_the_node_may_use_a_restricted_address_only_from_within_its_ranges(
    ranges: tuple[str, ...], allowed: bool
) -> None:
    port = service_port(
        load_balancer_ips=("203.0.113.1",), source_ranges=tuple(cidr_from_text(r) for r in ranges)
    )
    fragment = compiled(port, REMOTE)
    assert ("KUBE-LOAD-BALANCER-SOURCE-IP 203.0.113.1,tcp:80,203.0.113.1" in entries(fragment)) is allowed
    assert keys(fragment, BLOCKED) == (() if allowed else (VirtualKey(6, packed("203.0.113.1"), 80),))
    assert f"KUBE-LOAD-BALANCER-SOURCE-CIDR 203.0.113.1,tcp:80,{ranges[0]}" in entries(fragment)
    assert "KUBE-LOAD-BALANCER-FW 203.0.113.1,tcp:80" in entries(fragment)


def test_affinity_and_scheduler_are_the_servers_settings() -> None:
    (server, _, _), *_ = servers(compiled(service_port(affinity_seconds=300), REMOTE))
    assert (server.scheduler, server.flags, server.timeout) == ("rr", PERSISTENT, 300)
    (server, _, _), *_ = servers(compiled(service_port(ipvs_scheduler="mh"), REMOTE))
    assert (server.scheduler, server.flags, server.timeout) == ("mh", SCHEDULER_2, 0)
    (server, _, _), *_ = servers(compiled(service_port(ipvs_scheduler="sh"), REMOTE))
    assert server.flags == 0


@pytest.mark.parametrize(
    ("word", "scheduler", "flags"),
    [
        ("random", "rr", 0),
        ("weighted", "wrr", 0),
        ("least-connections", "lc", 0),
        ("source-hash", "mh", 0),
        ("source-port-hash", "mh", SCHEDULER_2),
        ("mh", "mh", SCHEDULER_2),
        ("sed", "sed", 0),
    ],
)
def test_the_annotation_for_all_modes_is_understood(word: str, scheduler: str, flags: int) -> None:
    findings: list[Finding] = []
    meta = Meta(annotations={"pointsman.dev/scheduler": word})
    port = service_port(balancing=parse_balancing_request(meta, findings))
    (server, _, _), *_ = servers(compiled(port, REMOTE))
    assert (server.scheduler, server.flags, findings) == (scheduler, flags, [])


def test_the_annotation_for_this_mode_wins_over_the_one_for_all() -> None:
    port = service_port(ipvs_scheduler="lc", balancing=BalancingRequest(Scheduler.SOURCE_HASH, "source-hash"))
    (server, _, _), *_ = servers(compiled(port, REMOTE))
    assert server.scheduler == "lc"


def test_ipv6_sets_have_their_own_names() -> None:
    six = packed("fd00:30::10")
    node = context(Family.IPV6, node_ips=(six,), addresses_in_rules=(packed("::1"), packed("fe80::1"), six))
    fragment = compiled(
        service_port(cluster_ip="fd00:10:96::a", node_port=30080), endpoint("fd00:10:244::1"), node=node
    )
    assert {name for name, _ in members(fragment)} == {
        "KUBE-6-CLUSTER-IP",
        "KUBE-6-IPVS-IPS",
        "KUBE-6-NODE-PORT-TCP",
    }
    assert reals(fragment).keys() == {"tcp [fd00:10:96::a]:80", "tcp [fd00:30::10]:30080"}


def test_loopback_and_link_local_are_not_the_nodes_own() -> None:
    four = context(addresses_in_rules=(packed("127.0.0.1"), packed("127.9.9.9"), NODE))
    assert find_node_addresses(four) == (NODE,)
    chosen = NodePortAddresses(match_all=False, addresses=(packed("127.0.0.1"), NODE))
    assert find_node_port_addresses(context(node_port_addresses=chosen)) == (NODE,)


def test_endpoints_keep_their_own_ports() -> None:
    fragment = compiled(service_port(), endpoint("10.244.1.1", 8080), endpoint("10.244.1.1", 9090))
    assert servers(fragment)[0].weights == {
        RealKey(packed("10.244.1.1"), 8080): 1,
        RealKey(packed("10.244.1.1"), 9090): 1,
    }


def test_weights_are_those_of_real_servers_and_choose_a_scheduler_that_heeds_them() -> None:
    heavy, light = endpoint("10.244.1.1", weight=3), endpoint("10.244.1.2")
    for request, scheduler in (
        (BalancingRequest(), "wrr"),
        (BalancingRequest(Scheduler.LEAST_CONNECTIONS, "least-connections"), "wlc"),
        (BalancingRequest(Scheduler.SOURCE_HASH, "source-hash"), "mh"),
    ):
        server, weights, _ = servers(compiled(service_port(balancing=request), heavy, light))[0]
        assert server.scheduler == scheduler
        assert weights == {RealKey(heavy.address, 8080): 3, RealKey(light.address, 8080): 1}


def test_where_asked_terminating_endpoints_keep_their_flows_and_get_no_new_ones() -> None:
    ready = endpoint("10.244.1.1")
    ends = endpoint("10.244.1.2", ready=False, serving=False, terminating=True)
    unready = endpoint("10.244.1.3", ready=False, serving=False)
    real, kept = (RealKey(e.address, 8080) for e in (ready, ends))

    def weights(protocol: Protocol, *endpoints: Endpoint) -> object:
        port = service_port(protocol=protocol, keep_draining_udp=True)
        return servers(compiled(port, *endpoints))[0].weights

    assert weights(Protocol.UDP, ready, ends, unready) == {real: 1, kept: 0}
    assert weights(Protocol.TCP, ready, ends, unready) == {real: 1}
    assert weights(Protocol.UDP, ends) == {kept: 0}
    serving = endpoint("10.244.1.2", ready=False, serving=True, terminating=True)
    assert weights(Protocol.UDP, ready, serving) == {real: 1, kept: 0}
    assert weights(Protocol.UDP, serving) == {kept: 1}, "the last one that serves gets new flows, too"


def test_nothing_is_listed_twice() -> None:
    fragment = compiled(
        service_port(external_ips=("198.51.100.1",), load_balancer_ips=("198.51.100.1",)), REMOTE
    )
    assert len(members(fragment)) == len(set(members(fragment)))
    assert keys(fragment, ADDRESS).count(packed("198.51.100.1")) == 1
    assert SetEntry(packed("198.51.100.1")) in [entry for _, entry in members(fragment)]
