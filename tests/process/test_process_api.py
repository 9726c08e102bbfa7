"""The process against an API server: what it waits for, what it survives, what it tells load balancers."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.harness.api_thread import ApiThread
from tests.harness.kube_objects import node_object, web_service, web_slices
from tests.harness.node import HEALTH_PORT, NODE_IP, NODE_IP6, SECOND_IP, LabNode, NodeProcess, needs_root
from tests.harness.waiting import wait_until

from pointsman.node.node_status import SERVICES_READY, STARTUP_TAINT

pytestmark = needs_root

PROBE = "--probe-addresses=192.0.2.77,2001:db8::77"

RANGE = {
    "kind": "ServiceCIDR",
    "apiVersion": "networking.k8s.io/v1",
    "metadata": {"name": "kubernetes"},
    "spec": {"cidrs": ["10.96.0.0/16", "fd00:10:96::/112"]},
}
NODE_PORT = {"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080, "nodePort": 30080}
WEB = web_service(type="NodePort", externalTrafficPolicy="Cluster", ports=[NODE_PORT])


@pytest.fixture
def serving(node: LabNode, process: NodeProcess, api: ApiThread) -> Iterator[NodeProcess]:
    api.load(WEB, *web_slices(), node_object(), RANGE)
    process.configure(clientConnection={"kubeconfig": str(api.kubeconfig), "qps": 100, "burst": 100})
    with node.backend():
        process.start(from_api=True)
        process.wait_synced()
        node.wait_served("10.96.0.10")
        yield process


def _updated(api: ApiThread, item: dict[str, Any]) -> None:
    api.call(lambda server: server.update(item))


def _tables(node: LabNode) -> list[str]:
    return [line for line in node.run("nft", "list", "tables").splitlines() if "kube-proxy" in line]


def test_nothing_is_programmed_before_every_kind_was_listed(
    node: LabNode, process: NodeProcess, api: ApiThread
) -> None:
    api.load(WEB, *web_slices(), node_object(), RANGE)
    api.call(lambda server: server.fail_next(503, path="endpointslices", times=10_000))
    process.configure(clientConnection={"kubeconfig": str(api.kubeconfig)})
    process.start(from_api=True)
    wait_until(lambda: api.call(lambda s: sum("endpointslices" in seen.path for seen in s.requests)) >= 2)
    assert node.get("/healthz").status == 200
    assert _tables(node) == []
    with node.backend():
        api.call(lambda server: server.clear_faults())
        process.wait_synced(30)
        node.wait_served("10.96.0.10")


def test_a_pod_that_finds_no_api_server_says_where_it_looked_and_what_to_do(
    node: LabNode, process: NodeProcess, tmp_path: Path
) -> None:
    """A cluster without a proxy: nobody answers at the address of the Service kubernetes."""
    pod = tmp_path / "pod"
    pod.write_text(
        "#!/bin/sh -e\nmount -t tmpfs none /run\nmkdir -p /run/secrets/kubernetes.io/serviceaccount\n"
        "echo token > /run/secrets/kubernetes.io/serviceaccount/token\nmount --bind /run /var/run\n"
        'KUBERNETES_SERVICE_HOST=10.96.0.1 KUBERNETES_SERVICE_PORT=443 exec "$@"\n'
    )
    pod.chmod(0o755)
    control = tmp_path / "control.sock"
    node.run("ip", "neigh", "replace", "10.96.0.1", "lladdr", "02:00:00:00:00:01", "dev", "eth0")
    process.start(f"--control-socket={control}", from_api=True, wrap=("unshare", "--mount", str(pod)))
    line = wait_until(
        lambda: [one for one in process.log_text.splitlines() if "cannot reach the API server" in one],
        seconds=60,
    )[0]
    assert 'type="APIServer" reason="NoAnswer"' in line
    assert "https://10.96.0.1:443: no answer for 3 s" in line
    assert "--master=https://HOST:PORT" in line
    status = subprocess.run(
        [sys.executable, "-m", "pointsman", "status", f"--control-socket={control}"],
        capture_output=True,
        text=True,
    )
    assert status.returncode == 1
    (trouble,) = [one for one in status.stdout.splitlines() if "10.96.0.1" in one]
    assert trouble.startswith("✗ APIServer: cannot reach the API server at https://10.96.0.1:443")
    assert "--master=https://HOST:PORT" in trouble
    assert "✗ Watch" not in status.stdout


def test_a_node_on_its_way_out_fails_healthz_but_not_livez(
    node: LabNode, serving: NodeProcess, api: ApiThread
) -> None:
    def health() -> tuple[int, int]:
        return node.get("/healthz", HEALTH_PORT).status, node.get("/livez", HEALTH_PORT).status

    assert health() == (200, 200)
    taint = {"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}
    _updated(api, node_object(taints=[taint]))
    wait_until(lambda: health() == (503, 200))
    assert json.loads(node.get("/healthz", HEALTH_PORT).body)["nodeEligible"] is False
    _updated(api, node_object())
    wait_until(lambda: health() == (200, 200))
    _updated(api, node_object(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}))
    wait_until(lambda: health() == (503, 200))
    api.call(lambda server: server.delete("Node", "n1"))
    wait_until(lambda: health() == (503, 200))
    node.assert_served("10.96.0.10")
    api.load(node_object())
    wait_until(lambda: health() == (200, 200))


def test_a_configuration_that_does_not_fit_the_node_is_turned_down_and_the_old_one_goes_on(
    node: LabNode, serving: NodeProcess, api: ApiThread
) -> None:
    connection = {"kubeconfig": str(api.kubeconfig), "qps": 100, "burst": 100}
    with node.traffic(("10.96.0.10", 80)) as traffic:
        serving.configure(clientConnection=connection, detectLocalMode="NodeCIDR")
        wait_until(lambda: node.metric("pointsman_config_reloads_total", result="rejected") == 1)
        assert "the Node n1 has no spec.podCIDRs" in serving.log_text
        _updated(api, node_object(podCIDRs=["10.244.1.0/24"]))
        serving.configure(clientConnection=connection, detectLocalMode="NodeCIDR", bindAddress=NODE_IP6)
        wait_until(lambda: node.metric("pointsman_config_reloads_total", result="rejected") == 2)
        assert node.metric("pointsman_config_reloads_total", result="restarted") == 1
        assert "the cluster is IPv6-primary, but the Node's podCIDRs is IPv4 only" in serving.log_text
        serving.wait_synced()
        assert '"bindAddress":"0.0.0.0"' in node.get("/configz").body
        traffic.more(20)
    assert traffic.failures == []
    assert serving.alive


def test_a_new_node_address_takes_effect_without_an_exit(
    node: LabNode, serving: NodeProcess, api: ApiThread
) -> None:
    node.wait_served(NODE_IP, 30080)
    assert node.is_unreachable(SECOND_IP, 30080)
    pid = serving.pid
    with node.traffic(("10.96.0.10", 80)) as traffic:
        _updated(api, node_object(SECOND_IP, NODE_IP6, zone="zone-b"))
        node.wait_served(SECOND_IP, 30080)
        node.wait_unreachable(NODE_IP, 30080)
    assert traffic.failures == []
    assert serving.alive
    assert serving.pid == pid


def test_a_new_zone_moves_traffic_without_an_exit(
    node: LabNode, serving: NodeProcess, api: ApiThread
) -> None:
    def hinted(address: str, zone: str) -> dict[str, Any]:
        return {
            "addresses": [address],
            "conditions": {"ready": True},
            "hints": {"forZones": [{"name": zone}]},
        }

    slices = web_slices()
    slices[0]["endpoints"] = [hinted(NODE_IP, "zone-a"), hinted("172.30.0.99", "zone-b")]
    _updated(api, slices[0])
    wait_until(lambda: node.metric("pointsman_endpoints", ip_family="IPv4") == 2)
    for _ in range(20):
        node.assert_served("10.96.0.10")
    _updated(api, node_object(zone="zone-b"))
    node.wait_unreachable("10.96.0.10")
    assert serving.alive


def test_an_object_that_cannot_be_read_harms_only_itself(
    node: LabNode, serving: NodeProcess, api: ApiThread
) -> None:
    bad = web_service("bad", 66, ports="eighty")
    api.load(bad, web_service("good", 20), *web_slices("good"))
    node.wait_served("10.96.0.20")
    wait_until(lambda: node.metric("pointsman_objects_skipped_total", kind="Service") >= 1)
    assert "default/bad" in serving.log_text
    node.assert_served("10.96.0.10")
    api.call(lambda server: server.update(web_service("bad", 66)))
    api.load(*web_slices("bad"))
    node.wait_served("10.96.0.66")


def test_an_api_server_that_goes_away_and_comes_back_costs_no_connection_and_no_change(
    node: LabNode, serving: NodeProcess, api: ApiThread
) -> None:
    with node.traffic(("10.96.0.10", 80), ("fd00:10:96::10", 80)) as traffic:
        api.stop()
        traffic.more(100)
        assert node.get("/livez", HEALTH_PORT).status == 200
        api.load(web_service("later", 20), *web_slices("later"))
        api.start()
        node.wait_served("10.96.0.20", seconds=30)
        api.call(lambda server: server.compact())
        api.call(lambda server: server.break_watches(partial=b'{"type":"MODIFIED","object":{"kind":"Serv'))
        api.load(web_service("last", 30), *web_slices("last"))
        node.wait_served("10.96.0.30", seconds=30)
        traffic.more(50)
    assert traffic.failures == []


def test_health_check_node_ports_come_and_go_with_their_service(
    node: LabNode, serving: NodeProcess, api: ApiThread
) -> None:
    def balanced(port: int) -> dict[str, Any]:
        made = web_service(
            "balanced", 40, type="LoadBalancer", externalTrafficPolicy="Local", healthCheckNodePort=port
        )
        made["status"] = {"loadBalancer": {"ingress": [{"ip": "203.0.113.40"}]}}
        return made

    api.load(balanced(32040), *web_slices("balanced", node="n1"))
    answer = wait_until(lambda: node.get("/", 32040, NODE_IP), lambda found: found.status == 200)
    assert json.loads(answer.body) == {
        "service": {"namespace": "default", "name": "balanced"},
        "localEndpoints": 1,
        "serviceProxyHealthy": True,
    }
    assert answer.headers["X-Load-Balancing-Endpoint-Weight"] == "1"
    for item in web_slices("balanced", node="n2"):
        _updated(api, item)
    answer = wait_until(lambda: node.get("/", 32040, NODE_IP), lambda found: found.status == 503)
    assert answer.headers["X-Load-Balancing-Endpoint-Weight"] == "0"
    _updated(api, balanced(32041))
    wait_until(lambda: node.get("/", 32041, NODE_IP).status == 503)
    wait_until(lambda: node.get("/", 32040, NODE_IP).status == 0)
    api.call(lambda server: server.delete("Service", "default/balanced"))
    wait_until(lambda: node.get("/", 32041, NODE_IP).status == 0)


def test_under_the_name_kube_proxy_the_mode_is_iptables_and_an_event_warns_of_it(
    node: LabNode, process: NodeProcess, api: ApiThread
) -> None:
    api.load(WEB, *web_slices(), node_object(), RANGE)
    process.configure(
        mode=None, clientConnection={"kubeconfig": str(api.kubeconfig), "qps": 100, "burst": 100}
    )
    with node.backend():
        process.start(program="kube-proxy", from_api=True)
        process.wait_synced()
        assert node.get("/proxyMode").body == "iptables"
        node.wait_served("10.96.0.10")
    wait_until(lambda: {event["reason"] for event in api.events()} >= {"Starting", "KubeProxyDefaultMode"})
    warning = next(event for event in api.events() if event["reason"] == "KubeProxyDefaultMode")
    assert warning["type"] == "Warning"
    assert warning["regarding"]["kind"] == "Node"
    assert warning["regarding"]["name"] == "n1"


def test_an_event_about_the_end_is_sent_before_the_process_ends(
    node: LabNode, process: NodeProcess, api: ApiThread
) -> None:
    process.configure(bindAddressHardFail=True, clientConnection={"kubeconfig": str(api.kubeconfig)})
    with node.namespace.entered():
        taken = socket.create_server(("0.0.0.0", HEALTH_PORT))
    with taken:
        process.start(from_api=True)
        wait_until(lambda: not process.alive)
    assert "FailedToStartProxierHealthcheck" in {event["reason"] for event in api.events()}


def test_the_node_says_whether_its_services_are_served(
    node: LabNode, process: NodeProcess, api: ApiThread
) -> None:
    taints = [{"key": STARTUP_TAINT, "effect": "NoSchedule"}, {"key": "others", "effect": "NoSchedule"}]
    item = node_object()
    api.load(WEB, *web_slices(), {**item, "spec": {**item.get("spec", {}), "taints": taints}}, RANGE)

    def stored() -> dict[str, Any]:
        return api.call(lambda server: server.store.get("Node", item["metadata"]["name"]))

    def reason() -> str:
        found = stored().get("status", {}).get("conditions", [])
        return next((one["reason"] for one in found if one["type"] == SERVICES_READY), "")

    process.configure(clientConnection={"kubeconfig": str(api.kubeconfig)})
    process.start("--node-condition", "--remove-startup-taint", PROBE, from_api=True)
    wait_until(lambda: reason() == "NothingBlocksReadiness", seconds=30)
    assert stored()["spec"]["taints"] == taints[1:]
    process.stop()
    assert reason() == "ProxyStopped"
