from collections import Counter

from prometheus_client.parser import text_string_to_metric_families

from pointsman.backends.contract import Traffic
from pointsman.model.addresses import Family
from pointsman.model.service import Protocol, ServicePortName
from pointsman.node.service_metrics import (
    CONNECTIONS,
    ENDPOINT_CONNECTIONS,
    ServiceMetrics,
    labels,
    limited,
    reading_of,
)
from pointsman.obs.registry import Metrics
from pointsman.testing.recording import RecordingBackend


def name(service: str) -> ServicePortName:
    return ServicePortName("default", service, "http", Protocol.TCP)


def test_beyond_the_limit_services_share_one_series_and_nothing_is_lost() -> None:
    reading = {
        CONNECTIONS: Counter(
            {labels(name(s), Family.IPV4): n for s, n in (("a", 1), ("b", 2), ("c", 4), ("d", 8))}
        ),
        ENDPOINT_CONNECTIONS: Counter({(*labels(name("d"), Family.IPV4), "10.0.0.1:80"): 8}),
    }
    result = limited(reading, 2)
    assert {key[1]: value for key, value in result[CONNECTIONS].items()} == {"a": 1, "b": 2, "(others)": 12}
    assert result[ENDPOINT_CONNECTIONS] == {("", "(others)", "", "", "IPv4", ""): 8}


def test_within_the_limit_nothing_is_folded() -> None:
    reading = {CONNECTIONS: Counter({labels(name("a"), Family.IPV6): 3})}
    assert limited(reading, 1) is reading


def test_modes_without_counters_have_no_reading() -> None:
    assert not any(reading_of(RecordingBackend().traffic(), Family.IPV4).values())


def test_the_last_reading_is_served_with_its_labels() -> None:
    metrics = Metrics("nftables")
    service_metrics = ServiceMetrics(metrics, 10)
    service_metrics.read(Traffic(connections={name("web"): 3}), Family.IPV4)
    service_metrics.read(Traffic(connections={name("web"): 7}), Family.IPV4)
    families = {f.name: f for f in text_string_to_metric_families(metrics.exposition().decode())}
    (sample,) = families["pointsman_service_connections"].samples
    assert sample.value == 7
    assert sample.labels == {
        "namespace": "default",
        "service": "web",
        "port": "http",
        "protocol": "TCP",
        "ip_family": "IPv4",
    }
