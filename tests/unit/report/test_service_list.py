"""What `pointsman list` asks, on its way to the proxy, and the answer."""

from __future__ import annotations

import gzip
import tracemalloc

import msgspec
import pytest
from tests import factory

from pointsman.app.offline import plan_objects
from pointsman.config.defaults import with_file_defaults, with_mode
from pointsman.config.types import KubeProxyConfiguration
from pointsman.model.decision import State
from pointsman.report.labels import ServiceLabels, parse_selector
from pointsman.report.service_list import ListQuery, build_list, compress_list


@pytest.mark.parametrize(
    "query",
    [
        ListQuery(),
        ListQuery(
            "shop",
            parse_selector("app=web,!legacy"),
            ("web", "shop/*"),
            (State.DOWN, State.PARTIAL),
            True,
        ),
    ],
)
def test_a_query_travels_as_json(query: ListQuery) -> None:
    assert msgspec.json.decode(msgspec.json.encode(query), type=ListQuery) == query


def test_the_list_of_a_large_cluster_is_made_without_holding_all_its_rows() -> None:
    names = [f"s{number}" for number in range(200)]
    endpoints = [f"10.244.1.{number}" for number in range(1, 60)]
    objects = [factory.service(name, clusterIP=f"10.96.1.{number}") for number, name in enumerate(names, 1)]
    slices = [factory.endpoint_slice(*endpoints, name=name, service_name=name) for name in names]
    config = with_mode(with_file_defaults(KubeProxyConfiguration(hostname_override="n1")), "nftables")
    view, query = plan_objects([*objects, *slices], config).view, ListQuery(detailed=True)
    expected = msgspec.json.encode(build_list(view, ServiceLabels(), query))
    tracemalloc.start()
    try:
        body = compress_list(view, ServiceLabels(), query, "")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert gzip.decompress(body) == expected
    assert peak < len(expected) / 4
