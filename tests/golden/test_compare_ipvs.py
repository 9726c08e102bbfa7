"""The comparer sees what matters and overlooks what does not."""

from __future__ import annotations

import pytest
from tests.golden import compare_ipvs

SERVERS = "-A -t 10.0.0.1:80 -s rr\n-a -t 10.0.0.1:80 -r 10.1.0.1:80 -m -w 1\n-a -t 10.0.0.1:80 -r 10.1.0.2:80 -m -w 1\n"
SETS = "create A hash:ip family inet hashsize 1024 maxelem 65536 bucketsize 12 initval 0x1\nadd A 10.0.0.1\nadd A 10.0.0.2\n"
RULES = "*nat\n:KUBE-X - [0:0]\n-A KUBE-X -s 10.0.0.1/32 -j A\n-A KUBE-X -s 10.0.0.2/32 -j B\nCOMMIT\n"


def _servers(a: str, b: str) -> list[str]:
    return compare_ipvs.differences("ipvs", compare_ipvs.virtual_servers(a), compare_ipvs.virtual_servers(b))


def _sets(a: str, b: str) -> list[str]:
    return compare_ipvs.differences("ipset", compare_ipvs.ip_sets(a), compare_ipvs.ip_sets(b))


def _rules(a: str, b: str) -> list[str]:
    return compare_ipvs.differences("rules", compare_ipvs.rules(a), compare_ipvs.rules(b))


def test_order_of_servers_does_not_count() -> None:
    lines = SERVERS.splitlines()
    assert _servers(SERVERS, "\n".join([lines[2], lines[1], lines[0]])) == []


@pytest.mark.parametrize(
    "changed",
    [
        SERVERS.replace("-s rr", "-s rr -p 300"),
        SERVERS.replace("-w 1", "-w 0", 1),
        SERVERS.replace("-r 10.1.0.2:80", "-r 10.1.0.2:81"),
        SERVERS.replace("10.0.0.1:80", "10.0.0.1:81"),
        SERVERS + "-A -u 10.0.0.1:80 -s rr\n",
        "".join(SERVERS.splitlines(keepends=True)[:2]),
    ],
)
def test_every_change_of_a_server_is_seen(changed: str) -> None:
    assert _servers(SERVERS, changed) != []
    assert _servers(changed, SERVERS) != []


def test_tuning_of_sets_and_order_of_entries_do_not_count() -> None:
    other = "create A hash:ip family inet hashsize 2048 maxelem 65536 bucketsize 14 initval 0x2\nadd A 10.0.0.2\nadd A 10.0.0.1\n"
    assert _sets(SETS, other) == []


@pytest.mark.parametrize(
    "changed",
    [
        SETS.replace("hash:ip ", "hash:ip,port "),
        SETS.replace("maxelem 65536", "maxelem 1"),
        SETS + "add A 10.0.0.3\n",
        "",
    ],
)
def test_every_change_of_a_set_is_seen(changed: str) -> None:
    assert _sets(SETS, changed) != []


def test_order_of_rules_counts_except_where_addresses_are_hidden() -> None:
    lines = RULES.splitlines()
    swapped = "\n".join([*lines[:2], lines[3], lines[2], lines[4]])
    assert _rules(RULES, swapped) == ["rules nat KUBE-X: the same lines in another order"]
    free = RULES.replace("KUBE-X", "KUBE-IPVS-OUT-FILTER")
    assert _rules(free, swapped.replace("KUBE-X", "KUBE-IPVS-OUT-FILTER")) == []


def test_a_doubled_rule_is_seen() -> None:
    assert _rules(RULES, RULES.replace("COMMIT", "-A KUBE-X -s 10.0.0.2/32 -j B\nCOMMIT")) != []


def test_everything_ipv6_can_be_left_out() -> None:
    assert compare_ipvs.virtual_servers("-A -t [fd00::1]:80 -s rr\n", ipv4_only=True) == {}
    assert compare_ipvs.ip_sets("create KUBE-6-A hash:ip family inet6\n", ipv4_only=True) == {}


def test_link_local_addresses_do_not_count() -> None:
    dump = '[{"addr_info": [{"local": "fe80::1", "prefixlen": 64, "scope": "link"}, {"local": "10.0.0.1", "prefixlen": 32, "scope": "global"}]}]'
    assert compare_ipvs.addresses(dump) == {"kube-ipvs0": ["10.0.0.1/32 global"]}
