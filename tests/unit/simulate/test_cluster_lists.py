"""A cluster is listed once, whole or not at all."""

from __future__ import annotations

import pytest
from tests.fake.apiserver import FakeApiServer
from tests.harness.kube_objects import endpoint_slice, node, service, service_cidr

from pointsman.errors import ConfigError
from pointsman.kube.client import ApiClient
from pointsman.simulate.cluster import Cluster, list_cluster


async def read(server: FakeApiServer) -> Cluster:
    client = ApiClient(server.access, qps=0, environ={})
    try:
        return await list_cluster(client, 20)
    finally:
        await client.close()


async def test_all_nodes_and_services_are_listed() -> None:
    async with FakeApiServer() as server:
        for name in ("n1", "n2"):
            server.add(node(name))
        server.add(service_cidr("kubernetes", "10.96.0.0/12"))
        server.add(service("web", trafficDistribution="PreferClose"))
        server.add(endpoint_slice("web-1", "10.1.0.1"))
        cluster = await read(server)
    assert set(cluster.nodes) == {"n1", "n2"}
    assert cluster.services["default/web"].spec.traffic_distribution == "PreferClose"
    assert set(cluster.slices) == {"default/web-1"}
    assert cluster.service_cidrs == ("10.96.0.0/12",)


async def test_a_refused_list_ends_with_its_reason() -> None:
    async with FakeApiServer() as server:
        server.fail_next(403, path="/api/v1/nodes", times=10)
        with pytest.raises(ConfigError, match="403"):
            await read(server)
