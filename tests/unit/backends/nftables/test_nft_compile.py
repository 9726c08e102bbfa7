"""What each kind of Service becomes in the table."""

from __future__ import annotations

from typing import Any

import pytest
from tests.factory import cidr, context, endpoint, packed, plan, service_port

from pointsman.backends.nftables import text
from pointsman.backends.nftables.compile import compile_fragment
from pointsman.backends.nftables.contents import Contents
from pointsman.backends.nftables.fields import find_traits
from pointsman.backends.nftables.fragment import Slots
from pointsman.backends.nftables.schema import build_static_sets
from pointsman.model.balancing import BalancingDefaults, BalancingRequest, Scheduler
from pointsman.model.endpoint import Endpoint
from pointsman.model.node_context import LocalDetector, LocalMode, NodeContext
from pointsman.model.service import FlowTimeouts, Protocol
from pointsman.node.loopback_node_ports import find_loopback_port

HERE = endpoint("10.244.1.1", local=True)
THERE = endpoint("10.244.2.1")
ELSEWHERE = endpoint("10.244.2.2")


def contents(*endpoints: Endpoint, node: NodeContext | None = None, **fields: Any) -> Contents:
    node = node or context(local=LocalDetector(LocalMode.CIDR, cidr("10.244.0.0/16")))
    made = plan(service_port(**fields), *endpoints, node_context=node)
    found = Contents(node)
    found.load({made.name: compile_fragment(made, node)})
    return found


def elements(found: Contents) -> dict[str, list[str]]:
    """Every filled set and map, without comments."""
    specs, traits = {s.name: s for s in build_static_sets()}, find_traits(found.context.family)
    words = {
        name: [text.format_element(element, "", specs[name], traits) for element, _ in entries]
        for name, entries in found.list_elements().items()
    }
    for name, pools in found.list_pools().items():
        words[name] = [text.format_slot(key, data, specs[name], traits) for key, data in Slots(pools)]
    return {name: sorted(members) for name, members in words.items() if members}


def rules(found: Contents, chain: str) -> list[str]:
    return [rule.text for c in found.list_chains() if c.name == chain for rule in c.rules]


def test_a_cluster_ip_leads_to_the_balancer_of_its_endpoint_count() -> None:
    found = contents(THERE, ELSEWHERE)
    assert elements(found) == {
        "cluster-ips": ["10.96.0.10"],
        "service-ips": ["10.96.0.10 . tcp . 80 : goto lb-2"],
        "endpoints": [
            "10.96.0.10 . tcp . 80 . 0 : 10.244.2.1 . 8080",
            "10.96.0.10 . tcp . 80 . 1 : 10.244.2.2 . 8080",
        ],
    }
    assert rules(found, "lb-2") == [
        "dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 2 map @endpoints"
    ]


def test_ipv6_is_the_same_in_other_words() -> None:
    node = context(family=service_port(cluster_ip="fd00::1").family)
    found = contents(endpoint("fd00:10::1"), node=node, cluster_ip="fd00::1", protocol=Protocol.UDP)
    assert elements(found)["endpoints"] == ["fd00::1 . udp . 80 . 0 : fd00:10::1 . 8080"]
    assert "dnat ip6 to ip6 daddr" in rules(found, "lb-1")[0]


def test_local_endpoints_may_reach_themselves() -> None:
    assert elements(contents(HERE, THERE))["hairpin-connections"] == ["10.244.1.1 . 10.244.1.1 . tcp . 8080"]


@pytest.mark.parametrize("fields", [{"external_ips": ("192.0.2.1",)}, {"load_balancer_ips": ("192.0.2.1",)}])
def test_external_addresses_are_masqueraded_under_policy_cluster(fields: dict[str, Any]) -> None:
    found = contents(THERE, **fields)
    assert "192.0.2.1 . tcp . 80 : goto masq-lb-1" in elements(found)["service-ips"]
    assert rules(found, "masq-lb-1") == ["meta mark set meta mark | 0x00004000 goto lb-1"]


def test_node_ports_have_their_own_maps() -> None:
    found = elements(contents(THERE, node_port=30080))
    assert found["service-nodeports"] == ["tcp . 30080 : goto nodeport-masq-lb-1"]
    assert found["nodeport-endpoints"] == ["tcp . 30080 . 0 : 10.244.2.1 . 8080"]


def test_policy_local_binds_outside_clients_only() -> None:
    found = contents(HERE, THERE, ELSEWHERE, load_balancer_ips=("192.0.2.1",), external_local=True)
    assert "192.0.2.1 . tcp . 80 : goto local-lb-1-of-3" in elements(found)["service-ips"]
    assert elements(found)["local-endpoints"] == ["192.0.2.1 . tcp . 80 . 0 : 10.244.1.1 . 8080"]
    assert rules(found, "local-lb-1-of-3") == [
        "ip saddr 10.244.0.0/16 goto lb-3",
        "fib saddr type local meta mark set meta mark | 0x00004000 goto lb-3",
        "dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 1 map @local-endpoints",
    ]


def test_policy_local_without_local_endpoints_drops_outside_and_serves_inside() -> None:
    found = contents(THERE, node_port=30080, external_local=True)
    assert elements(found)["no-endpoint-nodeports"] == ["tcp . 30080 : drop"]
    assert elements(found)["service-nodeports"] == ["tcp . 30080 : goto nodeport-local-lb-0-of-1"]
    assert len(rules(found, "nodeport-local-lb-0-of-1")) == 2


def test_without_local_detection_pods_have_no_short_circuit_and_nothing_is_masqueraded() -> None:
    found = contents(HERE, THERE, node=context(), node_port=30080, external_local=True)
    assert rules(found, "nodeport-local-lb-1-of-2")[0].startswith("fib saddr type local")
    assert not any("mark set" in rule for rule in rules(found, "services"))


def test_internal_policy_local_uses_local_endpoints_for_the_cluster_ip() -> None:
    found = elements(contents(HERE, THERE, internal_local=True))
    assert found["endpoints"] == ["10.96.0.10 . tcp . 80 . 0 : 10.244.1.1 . 8080"]


def test_internal_policy_local_without_local_endpoints_is_dropped() -> None:
    found = elements(contents(THERE, internal_local=True))
    assert found["no-endpoint-services"] == ["10.96.0.10 . tcp . 80 : drop"]
    assert "service-ips" not in found


def test_no_endpoints_are_refused_at_every_address() -> None:
    found = elements(contents(node_port=30080, external_ips=("192.0.2.1",)))
    assert found["no-endpoint-services"] == [
        "10.96.0.10 . tcp . 80 : goto reject-chain",
        "192.0.2.1 . tcp . 80 : goto reject-chain",
    ]
    assert found["no-endpoint-nodeports"] == ["tcp . 30080 : goto reject-chain"]
    assert "service-ips" not in found


def test_source_ranges_are_merged_and_apply_without_endpoints_too() -> None:
    ranges = tuple(cidr(text) for text in ("10.0.0.0/9", "10.128.0.0/9", "10.1.0.0/16", "192.0.2.64/26"))
    found = elements(contents(load_balancer_ips=("192.0.2.1",), source_ranges=ranges))
    assert found["firewall-frontends"] == ["192.0.2.1 . tcp . 80"]
    assert found["firewall-allow"] == [
        "192.0.2.1 . tcp . 80 . 10.0.0.0/8",
        "192.0.2.1 . tcp . 80 . 192.0.2.64/26",
    ]


def test_a_range_with_the_nodes_own_address_admits_the_balancer_addresses_too() -> None:
    node = context(node_ips=(packed("172.30.0.10"),))
    found = contents(
        THERE,
        node=node,
        load_balancer_ips=("192.0.2.1", "192.0.2.2"),
        source_ranges=(cidr("172.30.0.0/24"),),
    )
    assert elements(found)["firewall-allow"] == [
        "192.0.2.1 . tcp . 80 . 172.30.0.0/24",
        "192.0.2.1 . tcp . 80 . 192.0.2.1-192.0.2.2",
        "192.0.2.2 . tcp . 80 . 172.30.0.0/24",
        "192.0.2.2 . tcp . 80 . 192.0.2.1-192.0.2.2",
    ]


@pytest.mark.parametrize("admitted", [True, False])
def test_a_guarded_node_port_has_a_chain_before_its_balancer_and_at_loopback_the_node_must_be_admitted(
    admitted: bool,
) -> None:
    node = context(node_ips=(packed("172.30.0.10"),))
    ranges = (cidr("172.30.0.0/24" if admitted else "198.51.100.0/24"),)
    port = service_port(node_port=30080, source_ranges=ranges, ranges_everywhere=True)
    made = plan(port, THERE, node_context=node)
    (guard,) = compile_fragment(made, node).chains
    own = ["fib saddr type local goto nodeport-masq-lb-1"] if admitted else []
    assert [rule.text for rule in guard.rules] == [
        f"ip saddr {ranges[0]} goto nodeport-masq-lb-1",
        *own,
        "drop",
    ]
    assert (find_loopback_port(made, node.node_ips) is not None) is admitted


def test_an_address_that_is_external_and_balancer_address_keeps_its_source_ranges() -> None:
    found = elements(
        contents(
            THERE,
            external_ips=("192.0.2.1",),
            load_balancer_ips=("192.0.2.1",),
            source_ranges=(cidr("10.0.0.0/8"),),
        )
    )
    assert found["firewall-frontends"] == ["192.0.2.1 . tcp . 80"]
    assert [e for e in found["service-ips"] if e.startswith("192.")] == [
        "192.0.2.1 . tcp . 80 : goto masq-lb-1"
    ]


def test_affinity_shares_one_memory_between_all_frontends() -> None:
    found = contents(THERE, ELSEWHERE, affinity_seconds=60, node_port=30080)
    (cluster,) = [e.split("goto ")[1] for e in elements(found)["service-ips"]]
    (external,) = [e.split("goto ")[1] for e in elements(found)["service-nodeports"]]
    assert rules(found, external) == [f"meta mark set meta mark | 0x00004000 goto {cluster}"]
    sticky = [rule for rule in rules(found, cluster) if "@affinity" in rule]
    assert len(sticky) == 2
    assert rules(found, cluster)[-1].startswith("goto endpoint-")
    endpoint_chain = sticky[0].split("goto ")[1]
    assert rules(found, endpoint_chain) == [
        f"update @{sticky[0].split('@')[1].split()[0]} {{ ip saddr timeout 60s }}",
        "meta l4proto tcp dnat to 10.244.2.1:8080",
    ]
    assert "endpoints" not in elements(found)


def test_affinity_names_do_not_depend_on_the_timeout_so_that_memory_survives_its_change() -> None:
    short, long = (contents(THERE, affinity_seconds=seconds) for seconds in (60, 600))
    assert [s.name for s in short.list_sets()] == [s.name for s in long.list_sets()]


def test_masquerade_all_marks_every_cluster_ip_packet() -> None:
    found = contents(THERE, node=context(masquerade_all=True, masquerade_bit=20))
    assert rules(found, "services")[0] == "ip daddr @cluster-ips meta mark set meta mark | 0x00100000"


@pytest.mark.parametrize(
    ("mode", "interface", "expected"),
    [
        (LocalMode.INTERFACE, "cni0", 'iifname != "cni0"'),
        (LocalMode.INTERFACE_PREFIX, "veth", 'iifname != "veth*"'),
    ],
)
def test_local_pods_are_told_by_interface(mode: LocalMode, interface: str, expected: str) -> None:
    found = contents(THERE, node=context(local=LocalDetector(mode, interface=interface)))
    assert expected in rules(found, "services")[0]


def test_unallocated_service_addresses_are_dropped_after_known_ones_were_rejected() -> None:
    found = contents(THERE, node=context(service_cidrs=(cidr("10.96.0.0/12"),)))
    assert rules(found, "cluster-ips-check") == ["ip daddr @cluster-ips reject", "ip daddr 10.96.0.0/12 drop"]


def weighing(*weights: int) -> tuple[Endpoint, ...]:
    return tuple(endpoint(f"10.244.2.{n}", weight=weight) for n, weight in enumerate(weights, 1))


def test_weights_are_shares_of_the_slots() -> None:
    found = contents(*weighing(3, 1, 0))
    assert elements(found)["service-ips"] == ["10.96.0.10 . tcp . 80 : goto lb-4"]
    assert elements(found)["endpoints"] == [
        *(f"10.96.0.10 . tcp . 80 . {slot} : 10.244.2.1 . 8080" for slot in range(3)),
        "10.96.0.10 . tcp . 80 . 3 : 10.244.2.2 . 8080",
    ]


def test_a_source_hash_draws_the_slot_in_a_chain_shared_by_all_of_that_size() -> None:
    node = context(balancing=BalancingDefaults(seed=42))
    request = BalancingRequest(Scheduler.SOURCE_HASH, hash_slots=64)
    found = contents(THERE, ELSEWHERE, node=node, balancing=request)
    assert elements(found)["service-ips"] == ["10.96.0.10 . tcp . 80 : goto hash-lb-64"]
    assert rules(found, "hash-lb-64") == [
        "dnat ip to ip daddr . meta l4proto . th dport . jhash ip saddr mod 64 seed 0x2a map @endpoints"
    ]
    assert len(elements(found)["endpoints"]) == 64
    assert [c.name for c in found.list_chains() if "lb-" in c.name] == ["hash-lb-64"]
    by_port = contents(
        THERE, ELSEWHERE, balancing=BalancingRequest(Scheduler.SOURCE_PORT_HASH, hash_slots=64)
    )
    assert "jhash ip saddr . th sport mod 64" in rules(by_port, "hash-port-lb-64")[0]


def test_policy_local_hashes_over_its_own_endpoints() -> None:
    request = BalancingRequest(Scheduler.SOURCE_HASH, hash_slots=64)
    found = contents(HERE, THERE, node_port=30080, external_local=True, balancing=request)
    assert elements(found)["service-nodeports"] == ["tcp . 30080 : goto hash-nodeport-local-lb-1-of-64"]
    assert rules(found, "hash-nodeport-local-lb-1-of-64")[-1] == (
        "dnat ip to meta l4proto . th dport . jhash ip saddr mod 1 seed 0x1 map @local-nodeport-endpoints"
    )


def test_affinity_draws_the_first_endpoint_of_a_client_by_weight() -> None:
    found = contents(*weighing(3, 1), affinity_seconds=60)
    (view,) = [c for c in found.list_chains() if c.name.startswith("service-") and "check" not in c.name]
    assert view.rules[2].text.split(" goto")[0] == "numgen random mod 4 < 3"


def test_a_source_hash_is_an_affinity_by_itself() -> None:
    request = BalancingRequest(Scheduler.SOURCE_HASH, hash_slots=64)
    found = contents(THERE, ELSEWHERE, affinity_seconds=60, balancing=request)
    assert elements(found)["service-ips"] == ["10.96.0.10 . tcp . 80 : goto hash-lb-64"]
    assert not [s.name for s in found.list_sets() if s.name.startswith("affinity-")]


def test_a_timeout_of_flows_is_one_object_for_all_services_with_it() -> None:
    node = context()
    names = ("dns", "games", "others")
    made = [
        plan(
            service_port(
                name=name,
                cluster_ip=f"10.96.0.{number}",
                protocol=Protocol.UDP,
                flow_timeouts=FlowTimeouts(udp=0 if name == "others" else 5),
            ),
            THERE,
            ELSEWHERE,
            node_context=node,
        )
        for number, name in enumerate(names, 1)
    ]
    found = Contents(node)
    found.load({one.name: compile_fragment(one, node) for one in made})
    assert sorted(elements(found)["service-ips"]) == [
        "10.96.0.1 . udp . 80 : goto udp-timeout-5-lb-2",
        "10.96.0.2 . udp . 80 : goto udp-timeout-5-lb-2",
        "10.96.0.3 . udp . 80 : goto lb-2",
    ]
    assert rules(found, "udp-timeout-5-lb-2") == ['ct timeout set "udp-timeout-5" goto lb-2']
    assert found.render().count("ct timeout udp-timeout-5 {") == 1


def test_a_timeout_comes_before_all_that_a_frontend_does() -> None:
    fields: dict[str, Any] = {
        "node_port": 30080,
        "external_local": True,
        "flow_timeouts": FlowTimeouts(tcp_established=60),
    }
    found = contents(HERE, THERE, **fields)
    first = "tcp-timeout-60-nodeport-local-lb-1-of-2"
    assert elements(found)["service-nodeports"] == [f"tcp . 30080 : goto {first}"]
    assert rules(found, first) == ['ct timeout set "tcp-timeout-60" goto nodeport-local-lb-1-of-2']
    sticky = contents(HERE, THERE, affinity_seconds=600, **fields)
    redirects = [
        rule.text for chain in sticky.list_chains() for rule in chain.rules if "dnat to" in rule.text
    ]
    assert len(redirects) == 2
    assert all('ct timeout set "tcp-timeout-60" dnat to' in text for text in redirects)
