"""Plans into rules, where the recordings do not reach: hostile names, odd combinations, the kernel's arithmetic."""

from __future__ import annotations

import base64
import hashlib
import shlex
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.factory import context, endpoint, packed, plan, service_port

from pointsman.backends.iptables.compile import ChainNames, compile_plan
from pointsman.backends.iptables.fragment import FILTER_EXTERNAL, FILTER_SERVICES, Fragment
from pointsman.backends.iptables.render import USUAL_KERNEL
from pointsman.backends.iptables.static import KernelFacts, Settings, build_settings
from pointsman.backends.netfilter import names
from pointsman.backends.netfilter.names import FILTER, NAT
from pointsman.backends.netfilter.rule_text import canonicalize, format_probability, match_comment
from pointsman.model.addresses import Family, cidr_from_text
from pointsman.model.balancing import BalancingRequest, Scheduler
from pointsman.model.node_context import LocalDetector, LocalMode, NodeContext
from pointsman.model.service import Protocol, ServicePortName


def _settings(node: NodeContext | None = None, facts: KernelFacts = USUAL_KERNEL) -> Settings:
    return build_settings(node or context(), facts, localhost_node_ports=True)


def _all_lines(fragment: Fragment) -> list[str]:
    return (fragment.join_rules(NAT) + fragment.join_rules(FILTER)).decode().splitlines()


def test_chain_names_are_upstreams() -> None:
    name = ServicePortName("default", "web", "http", Protocol.TCP)
    assert ChainNames(name).base == "CDGGSHYLG3RE2FKL"
    assert ChainNames(name).build_endpoint_name("10.244.2.1:8080") == "KUBE-SEP-QS3PVI5TRG5S4ZJK"


@pytest.mark.parametrize(
    ("chain", "ours"),
    [("KUBE-SVC-AAAA", True), ("KUBE-XLB-AAAA", True), ("KUBE-SERVICES", False), ("CNI-SVC-A", False)],
)
def test_only_per_service_chains_count_as_such(chain: str, ours: bool) -> None:
    assert names.is_service_chain(chain) is ours


@settings(deadline=None)
@given(st.text(max_size=20), st.text(max_size=20))
def test_names_are_the_base32_of_the_hash(service: str, endpoint_text: str) -> None:
    name = ServicePortName("default", service, "http", Protocol.UDP)
    digest = hashlib.sha256(f"default/{service}:httpudp{endpoint_text}".encode()).digest()
    expected = "KUBE-SEP-" + base64.b32encode(digest).decode()[:16]
    assert ChainNames(name).build_endpoint_name(endpoint_text) == expected


@settings(deadline=None)
@given(st.integers(min_value=1, max_value=100_000))
def test_probabilities_survive_the_kernel_unchanged(choices: int) -> None:
    as_kernel_stores = round(float(format_probability(choices)) * 0x80000000)
    assert as_kernel_stores == round(float(f"{1 / choices:.10f}") * 0x80000000)
    assert f"{as_kernel_stores / 0x80000000:.11f}" == format_probability(choices)


@settings(deadline=None)
@given(st.text(max_size=300))
def test_no_name_breaks_out_of_its_comment(hostile: str) -> None:
    words = shlex.split(match_comment(hostile))
    assert words[:3] == ["-m", "comment", "--comment"]
    assert len(words) == 4
    assert len(words[3].encode()) <= 255


@settings(deadline=None)
@given(st.text(min_size=1, max_size=80))
def test_a_hostile_service_name_yields_as_many_lines_as_a_tame_one(hostile: str) -> None:
    tame = compile_plan(plan(service_port("tame", node_port=30000), endpoint()), _settings())
    wild = compile_plan(plan(service_port(hostile, node_port=30000), endpoint()), _settings())
    assert len(_all_lines(wild)) == len(_all_lines(tame))
    assert all(line.startswith("-A KUBE-") for line in _all_lines(wild))


def test_counts_and_chains_agree_with_the_text() -> None:
    port = service_port(
        node_port=30000,
        load_balancer_ips=["203.0.113.1"],
        source_ranges=(cidr_from_text("10.0.0.0/8"),),
        affinity_seconds=60,
        health_check_node_port=32000,
    )
    fragment = compile_plan(plan(port, endpoint("10.244.1.1"), endpoint("10.244.1.2")), _settings())
    assert fragment.nat_count + fragment.filter_count == len(_all_lines(fragment))
    used = {line.split()[1] for line in fragment.rules.decode().splitlines()}
    assert used == set(fragment.chains)


def test_interface_prefix_is_a_wildcard() -> None:
    node = context(local=LocalDetector(LocalMode.INTERFACE_PREFIX, interface="cali"))
    rules = compile_plan(plan(service_port(), endpoint(), node_context=node), _settings(node)).rules.decode()
    assert "-d 10.96.0.10/32 ! -i cali+ -p tcp" in rules


def test_local_policy_without_any_cluster_endpoint_makes_no_dangling_jump() -> None:
    port = service_port(node_port=30000, external_local=True, internal_local=True)
    fragment = compile_plan(plan(port, endpoint("10.244.1.1", local=True)), _settings())
    targets = {line.split(" -j ")[1].split()[0] for line in _all_lines(fragment) if " -j " in line}
    assert targets - set(fragment.chains) <= {"KUBE-MARK-MASQ", "DNAT", "DROP", "ACCEPT"}


def test_the_node_may_use_the_balancer_when_its_address_is_in_the_ranges() -> None:
    port = service_port(load_balancer_ips=["203.0.113.1"], source_ranges=(cidr_from_text("172.30.0.0/24"),))
    inside = context(node_ips=(packed("172.30.0.10"),))
    outside = context(node_ips=(packed("192.0.2.1"),))
    rule = b"-s 203.0.113.1/32"
    assert rule in compile_plan(plan(port, endpoint()), _settings(inside)).rules
    assert rule not in compile_plan(plan(port, endpoint()), _settings(outside)).rules


def test_no_endpoints_means_no_chains() -> None:
    fragment = compile_plan(plan(service_port(node_port=30000)), _settings())
    assert fragment.chains == []
    assert fragment.join_rules(NAT) == b""
    assert b"REJECT" in fragment.get_lines(FILTER_SERVICES)


def test_ipv6_rejects_with_its_own_icmp() -> None:
    node = context(Family.IPV6)
    fragment = compile_plan(plan(service_port(cluster_ip="fd00::1")), _settings(node))
    assert b"icmp6-port-unreachable" in fragment.get_lines(FILTER_SERVICES)
    assert b"-d fd00::1/128" in fragment.get_lines(FILTER_SERVICES)


def test_where_asked_clients_of_gone_endpoints_are_reset_and_nobody_else() -> None:
    asked: dict[str, Any] = {"node_port": 30000, "balancing": BalancingRequest(reset_gone=True)}
    asking = service_port(**asked)
    empty = compile_plan(plan(asking), _settings())
    assert b"-j REJECT --reject-with tcp-reset\n" in empty.get_lines(FILTER_SERVICES)
    assert b"icmp" not in empty.get_lines(FILTER_SERVICES) + empty.get_lines(FILTER_EXTERNAL)
    elsewhere = compile_plan(
        plan(service_port(external_local=True, **asked), endpoint(local=False)), _settings()
    )
    known, new = elsewhere.get_lines(FILTER_EXTERNAL).splitlines()
    assert known.endswith(b"! --tcp-flags FIN,SYN,RST,ACK SYN -j REJECT --reject-with tcp-reset")
    assert new.endswith(b"-j DROP")


def test_saved_spellings_of_variants_become_one() -> None:
    legacy = (
        "[5:300] -A X -m conntrack --ctstate RELATED,ESTABLISHED -m nfacct --nfacct-name  a -m tcp -j DNAT"
    )
    assert (
        canonicalize(legacy)
        == "-A X -m conntrack --ctstate ESTABLISHED,RELATED -m nfacct --nfacct-name a -j DNAT"
    )


def test_weights_become_probabilities_of_what_is_left() -> None:
    port = service_port(balancing=BalancingRequest(Scheduler.WEIGHTED))
    heavy, light, drained = (
        endpoint("10.244.1.1", weight=6),
        endpoint("10.244.1.2", weight=2),
        endpoint("10.244.1.3", weight=0),
    )
    made = compile_plan(plan(port, heavy, light, endpoint("10.244.1.4"), drained), _settings())
    chances = [line.split("--probability ")[1].split()[0] for line in _all_lines(made) if "statistic" in line]
    assert [round(float(chance), 6) for chance in chances] == [round(6 / 9, 6), round(2 / 3, 6)]
    assert "10.244.1.3" not in "".join(_all_lines(made))
