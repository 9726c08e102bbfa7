"""Two readings of the kernel become figures, whatever the mode counts."""

from __future__ import annotations

import msgspec
import pytest
from tests import factory
from tests.unit.explain.explaining import view_of

from pointsman.backends import mode_named
from pointsman.backends.contract import Count
from pointsman.backends.ipvs.mode import MODE as IPVS_MODE
from pointsman.backends.nftables.counters import parse_counts
from pointsman.backends.nftables.key_fields import pack_port, pack_protocol, pack_slot_numbers
from pointsman.backends.nftables.reader import KernelElement
from pointsman.backends.nftables.schema import ENDPOINTS, SERVICE_NODEPORTS, build_static_sets
from pointsman.kernel.tracked_flows import Flow
from pointsman.report.labels import ServiceLabels
from pointsman.report.service_list import ListQuery, build_list
from pointsman.report.traffic import Directory, Reading, ServiceTraffic, traffic_report, traffic_text
from pointsman.screen import Screen

VIP, ONE, TWO = factory.packed("10.96.0.10"), factory.packed("10.244.1.1"), factory.packed("10.244.1.2")
NODE = factory.packed("192.168.1.10")
TCP = 6
VIEW = view_of(
    factory.service(type="NodePort", ports=[{"name": "http", "port": 80, "nodePort": 30080}]),
    factory.endpoint_slice("10.244.1.1", "10.244.1.2"),
)
DIRECTORY = Directory(build_list(VIEW, ServiceLabels(), ListQuery(detailed=True)).ports)


def flow(number: int, to: bytes = VIP, port: int = 80, by: bytes = ONE, by_port: int = 8080) -> Flow:
    source = factory.packed("10.244.9.9")
    return Flow(TCP, source, number, to, port, by, by_port, source, number, number.to_bytes(4, "big"))


def reading(at: float, *flows: Flow, counts: list[Count] | None = None, partial: bool = False) -> Reading:
    return Reading(at, {"IPv4": counts}, {"IPv4": flows}, partial)


def figures(before: Reading, now: Reading, mode: str = "nftables") -> ServiceTraffic:
    (row,) = traffic_report(DIRECTORY, before, now, node="n1", mode=mode_named(mode)).rows
    return row


def test_flows_are_those_of_frontends_and_of_node_ports_that_an_endpoint_answers() -> None:
    now = reading(
        2,
        flow(1),
        flow(2, by=TWO),
        flow(3, NODE, 30080, TWO),
        flow(4, NODE, 30080, factory.packed("192.168.1.10"), 30080),
        flow(5, factory.packed("10.96.0.99")),
    )
    row = figures(reading(0, flow(1)), now)
    assert row.active == 3
    assert {endpoint.address: endpoint.active for endpoint in row.endpoints} == {
        "10.244.1.1:8080": 1,
        "10.244.1.2:8080": 2,
    }
    assert (row.connections_per_second, row.counted) == (1.0, False)


def test_counters_count_and_one_that_went_backwards_has_started_again() -> None:
    def counts(frontend: int, one: int, two: int) -> list[Count]:
        return [
            Count(TCP, VIP, 80, frontend),
            Count(TCP, VIP, 80, one, "10.244.1.1:8080"),
            Count(TCP, b"", 30080, two, "10.244.1.2:8080"),
            Count(TCP, VIP, 81, 1000),
        ]

    row = figures(reading(0, counts=counts(100, 50, 70)), reading(2, counts=counts(120, 62, 8)))
    assert (row.connections_per_second, row.counted) == (10.0, True)
    assert [endpoint.connections_per_second for endpoint in row.endpoints] == [6.0, 4.0]
    assert [endpoint.share for endpoint in row.endpoints] == [0.6, 0.4]


def test_where_only_frontends_are_counted_shares_are_those_of_flows() -> None:
    def counts(cluster_ip: int, node_port: int) -> list[Count]:
        return [Count(TCP, VIP, 80, cluster_ip), Count(TCP, NODE, 30080, node_port)]

    now = reading(1, flow(1), flow(2), flow(3), flow(4, by=TWO), counts=counts(9, 12))
    row = figures(reading(0, counts=counts(4, 10)), now, IPVS_MODE.name)
    assert row.connections_per_second == 7.0
    assert [(e.connections_per_second, e.share) for e in row.endpoints] == [(None, 0.75), (None, 0.25)]


def test_an_endpoint_that_is_gone_still_shows_its_flows() -> None:
    row = figures(reading(0), reading(1, flow(1, by=factory.packed("10.244.1.7"))))
    assert [(e.address, e.used, e.active) for e in row.endpoints][-1] == ("10.244.1.7:8080", False, 1)


@pytest.mark.parametrize(
    ("mode", "counts", "said"),
    [
        ("nftables", None, "--service-metrics"),
        ("nftables", [], "session affinity"),
        ("iptables", None, "counts no connections"),
        ("ipvs", [], "not per endpoint"),
    ],
)
def test_what_is_not_counted_is_said(mode: str, counts: list[Count] | None, said: str) -> None:
    readings = (reading(0, counts=counts), reading(1, counts=counts, partial=True))
    report = traffic_report(DIRECTORY, *readings, node="n1", mode=mode_named(mode))
    assert said in report.notes[0]
    assert "a part of them" in report.notes[1]
    assert "bypass connection tracking" in report.notes[-1]


def test_a_screen_with_few_lines_says_what_it_hides() -> None:
    report = traffic_report(
        DIRECTORY, reading(0), reading(1, flow(1), flow(2, by=TWO)), node="n1", mode=mode_named("iptables")
    )
    text = traffic_text(report, Screen(colour=False, width=50), lines=2)
    assert "and 1 more lines" in text
    assert ">=2.0" in text
    assert max(map(len, text.splitlines())) <= 50
    assert msgspec.json.encode(report)


def test_the_key_of_an_element_tells_whose_counter_it_is() -> None:
    specs = {spec.name: spec for spec in build_static_sets(counters=True)}
    frontend = VIP + pack_protocol(TCP) + pack_port(80)
    element = KernelElement(frontend + pack_slot_numbers(4)[3], data=ONE + pack_port(8080), packets=7)
    assert list(parse_counts(specs[ENDPOINTS], [element])) == [Count(TCP, VIP, 80, 7, "10.244.1.1:8080")]
    node_port = KernelElement(pack_protocol(TCP) + pack_port(30080), packets=3)
    assert list(parse_counts(specs[SERVICE_NODEPORTS], [node_port])) == [Count(TCP, b"", 30080, 3)]
