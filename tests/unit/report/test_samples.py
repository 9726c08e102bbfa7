"""Traffic over time: rates of the last samples, in bounded memory."""

from __future__ import annotations

import pytest
from tests import factory

from pointsman.backends import mode_named
from pointsman.backends.contract import Count
from pointsman.explain.service_port import Identity, Traffic
from pointsman.kernel.flow_count import FlowCount
from pointsman.model.addresses import Family
from pointsman.report.samples import MAX_SAMPLES, MAX_SERIES, PlanPlaces, TrafficSamples
from pointsman.report.traffic import Reading

TCP = 6
WEB: Identity = ("default/web", "http", "TCP", "IPv4")
PLAN = factory.plan(
    factory.service_port("web", node_port=30080),
    factory.endpoint("10.244.1.1"),
    factory.endpoint("10.244.1.2"),
)
PLACES = PlanPlaces({Family.IPV4: {PLAN.name: PLAN}, Family.IPV6: {}})
COUNTING = mode_named("nftables").counting
ONE, TWO = "10.244.1.1:8080", "10.244.1.2:8080"


def reading(
    at: float, connections: int, opened: int = 0, size: int = 0, places: PlanPlaces = PLACES
) -> Reading:
    """A reading in which endpoint ONE has all connections; half of them through the node port."""
    flows = FlowCount(places.owners["IPv4"], places.has_endpoint)
    if opened:
        flows.open[WEB, (factory.packed("10.244.1.1"), 8080)] = opened
    vip = factory.packed("10.96.0.10")
    counts = [
        Count(TCP, vip, 80, connections // 2, bytes=size),
        Count(TCP, b"", 30080, connections - connections // 2),
        Count(TCP, vip, 80, connections, ONE),
    ]
    return Reading(at, {"IPv4": counts}, {"IPv4": flows})


def test_figures_are_those_between_two_readings() -> None:
    samples = TrafficSamples()
    assert samples.is_empty
    samples.add(PLACES, reading(0, 100, size=1000), reading(5, 130, opened=7, size=6000), COUNTING)
    web = samples.find(WEB)
    assert (web.connections_per_second, web.open, web.bytes_per_second, web.rates) == (6.0, 7, 1000, (6.0,))
    assert samples.find_total(Family.IPV4) == Traffic(7, 6.0, True, 0.0, 1000, (6.0,))
    (endpoints,) = samples.find_service("default/web").endpoints.values()
    assert {place: (one.connections_per_second, one.open) for place, one in endpoints.items()} == {
        ONE: (6.0, 7)
    }
    assert samples.find_service("default/we").endpoints == {}
    assert samples.find(("default/other", "", "TCP", "IPv4")).rates == ()
    assert samples.notes == ()


def test_the_last_rates_are_kept_in_their_order_and_zero_when_there_is_no_connection() -> None:
    samples = TrafficSamples()
    total = 0
    for number in range(MAX_SAMPLES + 5):
        grown = total + number
        samples.add(PLACES, reading(number, total), reading(number + 1, grown), COUNTING)
        total = grown
    assert samples.find(WEB).rates == tuple(float(n) for n in range(5, MAX_SAMPLES + 5))
    samples.add(PLACES, reading(0, total), reading(1, total), COUNTING)
    assert samples.find(WEB).rates[-2:] == (MAX_SAMPLES + 4, 0.0)
    assert len(samples.find(WEB).rates) == MAX_SAMPLES


def test_a_series_without_connections_makes_room_for_another() -> None:
    number = MAX_SERIES // 2 + 10
    ports = [
        factory.service_port(f"s{n}", cluster_ip=f"10.96.{n // 250}.{n % 250 + 1}") for n in range(number)
    ]
    plans = {port.name: factory.plan(port, factory.endpoint()) for port in ports}
    places = PlanPlaces({Family.IPV4: plans})
    samples = TrafficSamples()
    no_flows = {"IPv4": FlowCount(places.owners["IPv4"], places.has_endpoint)}

    def at(moment: float, busy: slice) -> Reading:
        counts = [
            Count(TCP, port.cluster_ip, 80, round(moment) + n, endpoint)
            for n, port in enumerate(ports[busy])
            for endpoint in ("", ONE)
        ]
        return Reading(moment, {"IPv4": counts}, no_flows)

    samples.add(places, Reading(0, {"IPv4": []}, no_flows), at(1, slice(None)), COUNTING)
    owners = [(f"default/s{n}", "http", "TCP", "IPv4") for n in range(number)]
    kept = [bool(samples.find(owner).rates) for owner in owners]
    assert not all(kept), "more series than are kept"
    assert kept[-1], "the busiest are kept"
    assert samples.find(owners[0]).connections_per_second == 1, "figures are complete"
    for moment in range(2, MAX_SAMPLES + 3):
        samples.add(places, at(moment, slice(0, 1)), at(moment + 1, slice(0, 1)), COUNTING)
    assert samples.find(owners[0]).rates
    assert not samples.find(owners[-1]).rates


@pytest.mark.parametrize(("address", "found"), [("10.244.1.1", True), ("10.244.1.9", False)])
def test_a_flow_to_a_node_port_counts_only_for_an_endpoint_of_the_service(address: str, found: bool) -> None:
    assert PLACES.has_endpoint(WEB, (factory.packed(address), 8080)) == found
    assert PLACES.owners["IPv4"][TCP, b"", 30080] == WEB
