"""What else a node's neighbours see of the proxy: its HTTP ports, its sysctls, and its work through an API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.e2e.http_get import get
from tests.harness import lab as harness
from tests.harness.waiting import wait_until
from tests.harness.world import FAMILIES, World, running

from pointsman.lab import HOSTS
from pointsman.lab.objects import LabService, backends, node_manifest, service_range_manifest

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(bool(harness.missing_privilege()), reason=harness.missing_privilege()),
]

WEB = LabService("web", 1, backends("pod1", "pod4"), type="LoadBalancer", external_policy="Local")
HEALTH_CHECK_PORT = 32001
CONNTRACK = "net/netfilter/nf_conntrack_tcp_timeout_"


@pytest.fixture(scope="module", params=["nftables", "iptables"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Default ports, and objects from an API server."""
    with running(tmp_path_factory.mktemp("surface"), request.param, [WEB], through_api=True) as made:
        yield made


def test_endpoint_changes_arrive_through_the_api_server(world: World) -> None:
    for members in (("pod1", "pod2"), ("pod5",), ("pod1", "pod4")):
        service = msgspec.structs.replace(WEB, backends=backends(*members))
        world.proxy.apply([service])
        assert world.answerers("pod3", service) == set(members)


@pytest.mark.parametrize("family", FAMILIES)
def test_health_is_told_to_everybody_on_10256(world: World, family: int) -> None:
    client, address = world.cluster["client"], HOSTS["n1"].address(family)
    health = get(client, address, 10256, "/healthz")
    assert health.status == 200
    assert json.loads(health.text)["nodeEligible"] is True
    assert get(client, address, 10256, "/livez").status == 200
    assert get(client, address, 10256, "/metrics").status == 404


def test_metrics_are_told_on_loopback_only(world: World) -> None:
    node = world.cluster["n1"]
    assert get(node, "127.0.0.1", 10249, "/proxyMode").text == world.mode
    assert get(node, "127.0.0.1", 10249, "/healthz").text == "ok"
    assert "kubeproxy_sync_proxy_rules_duration_seconds" in get(node, "127.0.0.1", 10249, "/metrics").text
    assert get(node, "127.0.0.1", 10249, "/configz").status == 200
    assert get(node, "127.0.0.1", 10249, "/livez").status == 404
    assert get(world.cluster["client"], HOSTS["n1"].ipv4, 10249, "/metrics").status == 0


def test_a_node_about_to_be_removed_is_not_eligible_but_alive(world: World) -> None:
    leaving = node_manifest("n1")
    leaving["spec"]["taints"] = [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]
    world.proxy.apply([WEB], [leaving, node_manifest("n2"), service_range_manifest()])
    client, address = world.cluster["client"], HOSTS["n1"].ipv4

    def statuses() -> list[int]:
        return [
            get(client, address, 10256, "/healthz").status,
            get(client, address, 10256, "/livez").status,
            get(client, address, HEALTH_CHECK_PORT, "/").status,
        ]

    assert wait_until(statuses, lambda seen: seen[0] == 503) == [503, 200, 200]
    world.proxy.apply([WEB])
    assert wait_until(statuses, lambda seen: seen[0] == 200) == [200, 200, 200]


def test_health_check_node_ports_listen_where_node_ports_answer(world: World) -> None:
    world.proxy.apply([WEB])
    node = world.cluster["n1"]
    on_loopback = {"nftables": 0, "iptables": 200}[world.mode]

    def status() -> int:
        return get(node, HOSTS["n1"].ipv4, HEALTH_CHECK_PORT, "/").status

    assert wait_until(status, lambda seen: seen == 200) == 200
    assert get(node, "127.0.0.1", HEALTH_CHECK_PORT, "/").status == on_loopback


def test_connection_timeouts_are_set_as_kube_proxy_does(world: World) -> None:
    with world.cluster["n1"].entered():
        timeouts = [
            Path(f"/proc/sys/{CONNTRACK}{what}").read_text() for what in ("established", "close_wait")
        ]
        localnet = Path("/proc/sys/net/ipv4/conf/all/route_localnet").read_text().strip()
    assert [int(text) for text in timeouts] == [86400, 3600]
    assert localnet == {"nftables": "0", "iptables": "1"}[world.mode]


def test_rules_of_others_are_left_alone(world: World) -> None:
    node = world.cluster["n1"]
    node.run(("nft", "-f", "-"), "table inet neighbour { chain c { counter; }; }")
    world.proxy.apply([msgspec.structs.replace(WEB, backends=backends("pod2"))])
    assert "chain c" in node.run(("nft", "list", "table", "inet", "neighbour"))
