"""The packet interpreter itself, on a table small enough to check by hand."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest
from tests.golden.nft_packets import Packet, Table, fates, table_from_json

DADDR = {"payload": {"protocol": "ip", "field": "daddr"}}
SADDR = {"payload": {"protocol": "ip", "field": "saddr"}}
MARK = {"meta": {"key": "mark"}}
BASE = {"family": "ip", "table": "kube-proxy"}
HOOKED = {**BASE, "type": "nat", "policy": "accept"}


def rule(chain: str, *expressions: object) -> dict[str, object]:
    return {"rule": {**BASE, "chain": chain, "expr": list(expressions)}}


@pytest.fixture
def table() -> Table:
    picks = {"key": {"numgen": {"mode": "random", "mod": 2, "offset": 0}}}
    targets = {"set": [[0, {"concat": ["10.2.0.1", 80]}], [1, {"concat": ["10.2.0.2", 80]}]]}
    entries = [
        {"set": {**BASE, "name": "denied", "elem": [{"prefix": {"addr": "192.0.2.0", "len": 24}}]}},
        {"chain": {**HOOKED, "name": "pre", "hook": "prerouting", "prio": -100}},
        {"chain": {**HOOKED, "name": "post", "hook": "postrouting", "prio": 100}},
        {"chain": {**BASE, "name": "web"}},
        rule("pre", {"match": {"op": "==", "left": SADDR, "right": "@denied"}}, {"drop": None}),
        rule("pre", {"match": {"op": "==", "left": DADDR, "right": "10.1.0.1"}}, {"goto": {"target": "web"}}),
        rule("web", {"mangle": {"key": MARK, "value": {"|": [MARK, 4]}}}),
        rule("web", {"dnat": {"addr": {"map": {**picks, "data": targets}}}}),
        rule(
            "post",
            {"match": {"op": "!=", "left": {"&": [MARK, 4]}, "right": 0}},
            {"masquerade": None},
        ),
    ]
    return table_from_json(json.dumps({"nftables": entries}), "ip", frozenset(["10.0.0.1"]))


def test_random_choice_splits_the_probability(table: Table) -> None:
    half = Fraction(1, 2)
    assert fates(table, Packet("10.9.0.1", "10.1.0.1", "tcp", 80)) == {
        ("passed", "10.2.0.1", 80, True): half,
        ("passed", "10.2.0.2", 80, True): half,
    }


def test_dropped_packets_keep_the_address_they_were_sent_to(table: Table) -> None:
    packet = Packet("192.0.2.7", "10.1.0.1", "tcp", 80)
    assert fates(table, packet) == {("drop", "10.1.0.1", 80, False): Fraction(1)}


def test_unrelated_packets_pass_untouched(table: Table) -> None:
    packet = Packet("10.9.0.1", "10.3.0.1", "tcp", 80)
    assert fates(table, packet) == {("passed", "10.3.0.1", 80, False): Fraction(1)}
