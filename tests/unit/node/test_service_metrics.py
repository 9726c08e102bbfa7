from collections import Counter

from prometheus_client.parser import text_string_to_metric_families
from tests import factory
from tests.fake.recording import RecordingBackend

from pointsman.backends.contract import Traffic
from pointsman.model.addresses import Family
from pointsman.model.service import Protocol, ServicePortName
from pointsman.node.service_metrics import (
    CONNECTIONS,
    ENDPOINT_CONNECTIONS,
    ZONE_CONNECTIONS,
    ServiceMetrics,
    ZoneTotals,
    build_labels,
    build_reading,
    limit_services,
)
from pointsman.obs.registry import Metrics


def name(service: str) -> ServicePortName:
    return ServicePortName("default", service, "http", Protocol.TCP)


def test_beyond_the_limit_services_share_one_series_and_nothing_is_lost() -> None:
    reading = {
        CONNECTIONS: Counter(
            {build_labels(name(s), Family.IPV4): n for s, n in (("a", 1), ("b", 2), ("c", 4), ("d", 8))}
        ),
        ENDPOINT_CONNECTIONS: Counter({(*build_labels(name("d"), Family.IPV4), "10.0.0.1:80"): 8}),
    }
    result = limit_services(reading, 2)
    assert {key[1]: value for key, value in result[CONNECTIONS].items()} == {"a": 1, "b": 2, "(others)": 12}
    assert result[ENDPOINT_CONNECTIONS] == {("", "(others)", "", "", "IPv4", ""): 8}


def test_connections_are_told_by_zone_and_never_fall_while_endpoints_come_and_go() -> None:
    port = factory.service_port()
    here, there, nowhere = (
        factory.endpoint(f"10.244.1.{number}", zone=zone) for number, zone in ((1, "a"), (2, "b"), (3, ""))
    )
    plans = {port.name: factory.plan(port, here, there, nowhere)}
    totals = ZoneTotals()

    def told(**counts: int) -> dict[str, int]:
        named = {"here": here, "there": there, "nowhere": nowhere}
        figures = {(port.name, str(named[which])): count for which, count in counts.items()}
        return {zone: count for (_, zone), count in totals.add(figures, plans).items()}

    assert told(here=3, there=5) == {"a": 3, "b": 5}
    assert told(here=4, there=5, nowhere=2) == {"a": 4, "b": 5, "": 2}
    assert told(here=6) == {"a": 6, "b": 5, "": 2}, "a zone keeps what its endpoints had"
    assert told(here=6, there=1) == {"a": 6, "b": 6, "": 2}, "an endpoint that came back counts from 0"
    plans.clear()
    assert told() == {}


async def test_zones_are_served_as_a_metric_within_the_limit() -> None:
    port = factory.service_port()
    endpoint = factory.endpoint("10.244.1.1", zone="a")
    metrics = Metrics("nftables")
    await ServiceMetrics(metrics, 10).read(
        Traffic({port.name: 3}, {(port.name, str(endpoint)): 3}),
        Family.IPV4,
        {port.name: factory.plan(port, endpoint)},
    )
    families = {f.name: f for f in text_string_to_metric_families(metrics.render().decode())}
    (sample,) = families["pointsman_service_zone_connections"].samples
    assert (sample.labels["zone"], sample.labels["service"], sample.value) == ("a", port.name.service, 3)
    folded = limit_services({ZONE_CONNECTIONS: Counter({(*build_labels(port.name, Family.IPV4), "a"): 3})}, 0)
    assert folded == {ZONE_CONNECTIONS: {("", "(others)", "", "", "IPv4", ""): 3}}


def test_within_the_limit_nothing_is_folded() -> None:
    reading = {CONNECTIONS: Counter({build_labels(name("a"), Family.IPV6): 3})}
    assert limit_services(reading, 1) is reading


def test_modes_without_counters_have_no_reading() -> None:
    assert not any(build_reading(RecordingBackend().count_traffic(), Family.IPV4).values())


async def test_the_last_reading_is_served_with_its_labels() -> None:
    metrics = Metrics("nftables")
    service_metrics = ServiceMetrics(metrics, 10)
    await service_metrics.read(Traffic(connections={name("web"): 3}), Family.IPV4, {})
    await service_metrics.read(Traffic(connections={name("web"): 7}), Family.IPV4, {})
    families = {f.name: f for f in text_string_to_metric_families(metrics.render().decode())}
    (sample,) = families["pointsman_service_connections"].samples
    assert sample.value == 7
    assert sample.labels == {
        "namespace": "default",
        "service": "web",
        "port": "http",
        "protocol": "TCP",
        "ip_family": "IPv4",
    }
