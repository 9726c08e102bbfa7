"""The frame of iptables rules around the sets."""

from __future__ import annotations

from typing import Any

from tests.factory import context, packed

from pointsman.backends.ipvs import sets
from pointsman.backends.ipvs.rules import CHAINS, JUMPS, build_rules
from pointsman.kernel.ipvs_objects import VirtualKey
from pointsman.model.addresses import Family, cidr_from_text
from pointsman.model.node_context import LocalDetector, LocalMode

ALL_SETS = sets.list_names(Family.IPV4)


def cluster_ip_rule(**fields: Any) -> str:
    rules = build_rules(context(**fields), ("KUBE-CLUSTER-IP",), ())
    (rule,) = [rule for rule in rules.nat if "KUBE-CLUSTER-IP" in rule and rule.endswith("KUBE-MARK-MASQ")]
    return rule


def test_rules_of_empty_sets_are_left_out() -> None:
    few, many = build_rules(context(), (), ()), build_rules(context(), ALL_SETS, ())
    assert len(few.nat) < len(many.nat)
    assert len(few.filter) < len(many.filter)
    assert not any("KUBE-LOOP-BACK" in rule for rule in few.nat)
    assert set(few.filter) <= set(many.filter)


def test_unused_ports_of_service_addresses_are_refused_whatever_the_sets_hold() -> None:
    rules = build_rules(context(), (), ())
    assert [rule for rule in rules.filter if "KUBE-IPVS-FILTER" in rule][-1].endswith(
        "--match-set KUBE-IPVS-IPS dst -j REJECT --reject-with icmp-port-unreachable"
    )


def test_local_node_ports_return_before_the_masquerade() -> None:
    rules = [
        rule for rule in build_rules(context(), ALL_SETS, ()).nat if rule.startswith("-A KUBE-NODE-PORT ")
    ]
    assert [rule.rpartition(" ")[2] for rule in rules] == ["RETURN", "KUBE-MARK-MASQ"] * 3


def test_who_counts_as_local_decides_what_is_masqueraded() -> None:
    cidr = LocalDetector(LocalMode.CIDR, cidr_from_text("10.244.0.0/16"))
    assert "! -s 10.244.0.0/16" in cluster_ip_rule(local=cidr)
    assert "! -i cni0 " in cluster_ip_rule(local=LocalDetector(LocalMode.INTERFACE, interface="cni0"))
    assert "! -i veth+ " in cluster_ip_rule(local=LocalDetector(LocalMode.INTERFACE_PREFIX, interface="veth"))
    assert "KUBE-CLUSTER-IP src,dst" in cluster_ip_rule()
    assert "! -s" not in cluster_ip_rule(local=cidr, masquerade_all=True)
    assert "KUBE-CLUSTER-IP dst,dst" in cluster_ip_rule(masquerade_all=True)


def test_an_interface_name_cannot_smuggle_options_into_a_rule() -> None:
    hostile = LocalDetector(LocalMode.INTERFACE, interface='x -j ACCEPT "')
    assert "-j ACCEPT" not in cluster_ip_rule(local=hostile)


def test_blocked_addresses_are_dropped_on_their_way_out() -> None:
    keys = (VirtualKey(17, packed("203.0.113.2"), 53), VirtualKey(6, packed("203.0.113.1"), 80))
    rules = [rule for rule in build_rules(context(), (), keys).filter if "KUBE-IPVS-OUT-FILTER" in rule]
    assert rules == [
        "-A KUBE-IPVS-OUT-FILTER -s 203.0.113.1/32 -m ipvs --vproto 6 --vaddr 203.0.113.1 --vport 80 -j DROP",
        "-A KUBE-IPVS-OUT-FILTER -s 203.0.113.2/32 -m ipvs --vproto 17 --vaddr 203.0.113.2 --vport 53 -j DROP",
    ]


def test_one_restore_replaces_all_chains_and_adds_only_missing_jumps() -> None:
    rules = build_rules(context(Family.IPV6), (), ())
    text = rules.render_restore([JUMPS[0], JUMPS[-1]]).decode()
    assert text.count("COMMIT\n") == 2
    assert [line for line in text.splitlines() if line.startswith("-I ")] == [
        '-I OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES',
        '-I OUTPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-OUT-FILTER',
    ]
    for table, chains in CHAINS.items():
        section = text.partition(f"*{table}\n")[2].partition("COMMIT")[0]
        assert all(f":{chain} - [0:0]\n" in section for chain in chains)
        targets = {rule.split(" ", 2)[1] for rule in section.splitlines() if rule.startswith("-A")}
        assert targets <= set(chains)


def test_old_tools_masquerade_without_random_ports() -> None:
    plain = build_rules(context(), (), (), random_fully=False)
    assert any(rule.endswith("-j MASQUERADE") for rule in plain.nat)
    assert not any("--random-fully" in rule for rule in plain.nat)


def test_ipv6_set_names_fit_the_kernels_limit_and_stay_distinct() -> None:
    names = [spec.name(Family.IPV6) for spec in sets.ALL]
    assert max(map(len, names)) == 31
    assert len(set(names)) == len(names)
    assert sets.NODE_PORT_LOCAL_SCTP.name(Family.IPV6) == "KUBE-6-NODE-PORT-LOCAL-SCTP-HAS"
