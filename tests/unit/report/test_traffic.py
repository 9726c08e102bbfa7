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
from pointsman.backends.nftables.fields import pack_port, pack_protocol, pack_slot_numbers
from pointsman.backends.nftables.reader import KernelElement
from pointsman.backends.nftables.schema import ENDPOINTS, SERVICE_NODEPORTS, build_static_sets
from pointsman.explain.service_port import Traffic
from pointsman.kernel.flow_count import FlowCount
from pointsman.kernel.tracked_flows import FlowPath, Sighting
from pointsman.report.labels import ServiceLabels
from pointsman.report.service_list import ListQuery, build_list
from pointsman.report.traffic import (
    Directory,
    Reading,
    TrafficReport,
    build_traffic_report,
    merge_traffic,
    render_traffic,
)
from pointsman.screen import Screen

VIP, ONE, TWO = factory.packed("10.96.0.10"), factory.packed("10.244.1.1"), factory.packed("10.244.1.2")
NODE = factory.packed("192.168.1.10")
TCP = 6
VIEW = view_of(
    factory.service(type="NodePort", ports=[{"name": "http", "port": 80, "nodePort": 30080}]),
    factory.endpoint_slice("10.244.1.1", "10.244.1.2"),
)
DIRECTORY = Directory(build_list(VIEW, ServiceLabels(), ListQuery(detailed=True)).ports)


def flow(
    number: int,
    to: bytes = VIP,
    port: int = 80,
    by: bytes = ONE,
    by_port: int = 8080,
    *,
    is_open: bool = True,
) -> Sighting:
    return Sighting(FlowPath(to, port, by, by_port), is_open, number)


def reading(at: float, *flows: Sighting, counts: list[Count] | None = None, partial: bool = False) -> Reading:
    count = FlowCount(DIRECTORY.owners["IPv4"], DIRECTORY.has_endpoint, max_flows=100)
    for one in flows:
        count.add(TCP, one)
    count.is_partial = partial
    return Reading(at, {"IPv4": counts}, {"IPv4": count})


def figures(before: Reading, now: Reading, mode: str = "nftables") -> tuple[Traffic, list[Traffic]]:
    """Of the one service port, and of its endpoints."""
    (port,) = build_traffic_report(DIRECTORY, before, now, node="n1", mode=mode_named(mode)).ports
    return port.measured, [endpoint.traffic for endpoint in port.endpoints if endpoint.traffic is not None]


def test_flows_are_those_of_frontends_and_of_node_ports_that_an_endpoint_answers() -> None:
    now = reading(
        2,
        flow(1),
        flow(2, by=TWO),
        flow(3, NODE, 30080, TWO),
        flow(4, NODE, 30080, factory.packed("192.168.1.10"), 30080),
        flow(5, factory.packed("10.96.0.99")),
        flow(6, is_open=False),
    )
    port, endpoints = figures(reading(0, flow(1)), now)
    assert (port.open, [endpoint.open for endpoint in endpoints]) == (3, [1, 2])
    assert (port.connections_per_second, port.counted) == (1.5, False), "a short connection is new, not open"


def test_counters_count_and_one_that_went_backwards_has_started_again() -> None:
    def counts(frontend: int, one: int, two: int) -> list[Count]:
        return [
            Count(TCP, VIP, 80, frontend),
            Count(TCP, VIP, 80, one, "10.244.1.1:8080"),
            Count(TCP, b"", 30080, two, "10.244.1.2:8080"),
            Count(TCP, VIP, 81, 1000),
        ]

    port, endpoints = figures(reading(0, counts=counts(100, 50, 70)), reading(2, counts=counts(120, 62, 8)))
    assert (port.connections_per_second, port.counted) == (10.0, True)
    assert [endpoint.connections_per_second for endpoint in endpoints] == [6.0, 4.0]
    assert [endpoint.share for endpoint in endpoints] == [0.6, 0.4]


def test_where_only_frontends_are_counted_shares_are_those_of_flows() -> None:
    def counts(cluster_ip: int, node_port: int) -> list[Count]:
        return [Count(TCP, VIP, 80, cluster_ip), Count(TCP, NODE, 30080, node_port)]

    now = reading(1, flow(1), flow(2), flow(3), flow(4, by=TWO), counts=counts(9, 12))
    port, endpoints = figures(reading(0, counts=counts(4, 10)), now, IPVS_MODE.name)
    assert port.connections_per_second == 7.0
    assert [(e.connections_per_second, e.share) for e in endpoints] == [(None, 0.75), (None, 0.25)]


def test_an_endpoint_that_is_gone_still_shows_its_flows() -> None:
    now = reading(1, flow(1, by=factory.packed("10.244.1.7")))
    (port,) = build_traffic_report(DIRECTORY, reading(0), now, node="n1", mode=mode_named("nftables")).ports
    gone = port.endpoints[-1]
    assert (gone.address, gone.used, gone.traffic and gone.traffic.open) == ("10.244.1.7:8080", False, 1)


@pytest.mark.parametrize(
    ("mode", "counts", "said"),
    [
        ("nftables", None, "--service-metrics"),
        ("nftables", [Count(TCP, VIP, 80, 1)], "session affinity"),
        ("iptables", None, "counts no connections"),
        ("ipvs", [Count(TCP, VIP, 80, 1)], "not per endpoint"),
    ],
)
def test_what_is_not_counted_is_said(mode: str, counts: list[Count] | None, said: str) -> None:
    readings = (reading(0, counts=counts and []), reading(1, counts=counts, partial=True))
    report = build_traffic_report(DIRECTORY, *readings, node="n1", mode=mode_named(mode))
    assert said in report.notes[0]
    assert "a part of them" in report.notes[1]


def test_no_note_is_shown_where_every_endpoint_is_counted() -> None:
    counts = [Count(TCP, VIP, 80, 1), Count(TCP, VIP, 80, 1, "10.244.1.1:8080")]
    readings = (reading(0, counts=[]), reading(1, counts=counts))
    assert build_traffic_report(DIRECTORY, *readings, node="n1", mode=mode_named("nftables")).notes == ()


@pytest.mark.parametrize("width", [30, 60, 100, 200])
def test_columns_follow_the_width_and_endpoints_stay_indented(width: int) -> None:
    now = reading(1, flow(1), flow(2, by=TWO))
    report = build_traffic_report(DIRECTORY, reading(0), now, node="n1", mode=mode_named("iptables"))
    lines = render_traffic(report, Screen(colour=False, width=width)).splitlines()[2:5]
    assert max(map(len, lines)) <= width
    assert [line.index(word) for line, word in zip(lines, ("SERVICE", "default/", "10.2"), strict=True)] == [
        0,
        0,
        2,
    ]
    assert ("STATE" in lines[0], "OPEN" in lines[0]) == (width >= 60, True)
    assert lines[1].startswith("default/web:http ") == (width > 30)
    assert msgspec.json.encode(report)


def test_figures_of_several_nodes_are_added() -> None:
    def report(*flows: Sighting) -> TrafficReport:
        return build_traffic_report(
            DIRECTORY, reading(0), reading(2, *flows), node="n1", mode=mode_named("iptables")
        )

    merged = merge_traffic({"n1": report(flow(1), flow(2)), "n2": report(flow(3), flow(4, by=TWO))})
    (port,) = merged.ports
    assert (merged.node, port.measured.open, port.measured.connections_per_second) == ("2 nodes", 4, 2.0)
    shares = [endpoint.traffic.share for endpoint in port.endpoints if endpoint.traffic is not None]
    assert shares == [0.75, 0.25]


def test_the_key_of_an_element_tells_whose_counter_it_is() -> None:
    specs = {spec.name: spec for spec in build_static_sets(counters=True)}
    frontend = VIP + pack_protocol(TCP) + pack_port(80)
    element = KernelElement(frontend + pack_slot_numbers(4)[3], data=ONE + pack_port(8080), packets=7)
    assert list(parse_counts(specs[ENDPOINTS], [element])) == [Count(TCP, VIP, 80, 7, "10.244.1.1:8080")]
    node_port = KernelElement(pack_protocol(TCP) + pack_port(30080), packets=3)
    assert list(parse_counts(specs[SERVICE_NODEPORTS], [node_port])) == [Count(TCP, b"", 30080, 3)]
