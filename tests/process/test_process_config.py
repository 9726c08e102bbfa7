"""The configuration file while the process runs: noticed however it is replaced, applied or turned down."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.harness.kube_objects import node_object, web_service, web_slices
from tests.harness.node import (
    HEALTH_PORT,
    NODE_IP,
    SECOND_IP,
    LabNode,
    NodeProcess,
    configuration,
    needs_root,
)
from tests.harness.waiting import wait_until

pytestmark = needs_root

WEB = web_service(
    type="NodePort",
    externalTrafficPolicy="Cluster",
    ports=[{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080, "nodePort": 30080}],
)
OBJECTS = (WEB, *web_slices(), node_object())
FRONTENDS = (("10.96.0.10", 80), ("fd00:10:96::10", 80), (NODE_IP, 30080))


@pytest.fixture
def serving(node: LabNode, process: NodeProcess) -> Iterator[NodeProcess]:
    process.objects(*OBJECTS)
    with node.backend():
        process.start()
        process.wait_synced()
        node.wait_served("10.96.0.10")
        yield process


def _configured(node: LabNode) -> dict[str, object]:
    body = node.get("/configz").body
    return json.loads(body)["kubeproxy.config.k8s.io"] if body else {}


def test_live_fields_apply_without_a_restart_and_a_bad_file_changes_nothing(
    node: LabNode, serving: NodeProcess
) -> None:
    started_at = node.metric("process_start_time_seconds")
    with node.traffic(*FRONTENDS[:2]) as traffic:
        assert node.is_unreachable(SECOND_IP, 30080)
        serving.configure(
            nodePortAddresses=[f"{SECOND_IP}/32"],
            nftables={"minSyncPeriod": "100ms", "syncPeriod": "7s"},
            logging={"verbosity": 3},
        )
        node.wait_served(SECOND_IP, 30080)
        assert node.is_unreachable(NODE_IP, 30080)
        assert _configured(node)["nftables"]["syncPeriod"] == "7s"  # type: ignore[index]
        assert node.metric("pointsman_config_reloads_total", result="applied") == 1

        serving.config_file.write_text("mode: [nonsense")
        wait_until(lambda: node.metric("pointsman_config_reloads_total", result="rejected") == 1)
        serving.config_file.write_text(configuration(mode="turbo", nodePortAddresses=["everywhere"]))
        wait_until(lambda: node.metric("pointsman_config_reloads_total", result="rejected") == 2)
        assert "turbo" in serving.log_text
        assert "everywhere" in serving.log_text
        node.assert_served(SECOND_IP, port=30080)
        assert _configured(node)["nftables"]["syncPeriod"] == "7s"  # type: ignore[index]

        serving.config_file.unlink()
        wait_until(lambda: node.metric("pointsman_config_reloads_total", result="rejected") == 3)
        serving.configure(metricsBindAddress="127.0.0.1:11249", healthzBindAddress=f"{NODE_IP}:11256")
        wait_until(lambda: node.get("/healthz", 11256, NODE_IP).status == 200)
        wait_until(lambda: node.get("/metrics", 11249).status == 200)
        assert node.get("/healthz", HEALTH_PORT).status == 0
        assert node.get("/metrics").status == 0
        node.wait_served(NODE_IP, 30080)
    assert traffic.failures == []
    assert serving.alive
    assert started_at == float(
        next(
            line.split()[1]
            for line in node.get("/metrics", 11249).body.splitlines()
            if line.startswith("process_start_time_seconds")
        )
    )


def test_a_swapped_configmap_switches_the_mode_back_and_forth_without_a_gap(
    node: LabNode, process: NodeProcess, tmp_path: Path
) -> None:
    mounted = tmp_path / "mounted"
    _publish(mounted, 0, configuration())
    (mounted / "config.conf").symlink_to("..data/config.conf")
    process.objects(*OBJECTS)
    with node.backend():
        process.start(f"--config={mounted / 'config.conf'}")
        process.wait_synced()
        started = time.monotonic()
        node.wait_served("10.96.0.10")
        with node.traffic(*FRONTENDS) as traffic:
            for step, mode in enumerate(("iptables", "nftables", "iptables"), start=1):
                _publish(mounted, step, configuration(mode=mode))
                wait_until(lambda: node.get("/proxyMode").body, mode.__eq__)
                wait_until(partial(leftovers, node, mode), lambda found: not found)
                traffic.more(60)
            assert node.metric("pointsman_config_reloads_total", result="restarted") == 3
        status = json.loads(node.get("/status.json").body)
        assert status["uptime"] >= time.monotonic() - started
        assert traffic.failures == []
        assert process.alive
        assert "Traceback" not in process.log_text


def _publish(mounted: Path, step: int, text: str) -> None:
    """As the kubelet does: a new directory, then the link ..data swapped over."""
    directory = mounted / f"..{step}"
    directory.mkdir(parents=True)
    (directory / "config.conf").write_text(text)
    (mounted / "..data_tmp").symlink_to(directory.name)
    os.replace(mounted / "..data_tmp", mounted / "..data")  # noqa: PTH105


def leftovers(node: LabNode, mode: str) -> list[str]:
    """What the other mode still has in the kernel."""
    if mode == "iptables":
        return [line for line in node.run("nft", "list", "tables").splitlines() if "kube-proxy" in line]
    return [
        line
        for tool in ("iptables-save", "ip6tables-save")
        for line in node.run(tool).splitlines()
        if "KUBE-SERVICES" in line or "KUBE-SVC" in line
    ]


def test_a_mode_that_cannot_run_here_is_turned_down_and_the_old_one_goes_on(
    node: LabNode, serving: NodeProcess
) -> None:
    if Path("/proc/net/ip_vs").exists():
        pytest.skip("this kernel can do ipvs")
    with node.traffic(*FRONTENDS) as traffic:
        serving.configure(mode="ipvs")
        wait_until(lambda: node.metric("pointsman_config_reloads_total", result="rejected") == 1)
        wait_until(lambda: node.get("/proxyMode").body == "nftables")
        serving.wait_synced()
        traffic.more(50)
        serving.objects(web_service("later", 20), *web_slices("later"), *OBJECTS)
        node.wait_served("10.96.0.20")
        serving.configure(mode="iptables")
        wait_until(lambda: node.get("/proxyMode").body == "iptables")
        wait_until(lambda: leftovers(node, "iptables"), lambda found: not found)
        traffic.more(50)
    assert traffic.failures == []


def test_a_change_made_during_a_restart_is_not_missed(node: LabNode, serving: NodeProcess) -> None:
    for mode in ("iptables", "nftables"):
        serving.configure(mode=mode)
        restarts = serving.log_text.count("Restarting the proxy")
        wait_until(lambda: serving.log_text.count("Restarting the proxy"), restarts.__lt__)
        serving.configure(mode=mode, nodePortAddresses=[f"{SECOND_IP}/32"])
        wait_until(lambda: _configured(node).get("nodePortAddresses") == [f"{SECOND_IP}/32"])
        serving.configure(mode=mode)
        wait_until(lambda: _configured(node).get("nodePortAddresses") in ([], None, ["primary"]))


def test_all_alpha_switches_on_the_node_ports_on_loopback(node: LabNode, process: NodeProcess) -> None:
    port = {"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080, "nodePort": 30080}
    process.configure(
        featureGates={"AllAlpha": True, "AllBeta": True}, nodePortAddresses=["primary", "localhost"]
    )
    process.objects(web_service(type="NodePort", ports=[port]), *web_slices(), node_object())
    with node.backend():
        process.start()
        process.wait_synced()
        node.wait_served("127.0.0.1", 30080)
        gate = 'kubernetes_feature_enabled{name="KubeProxyNFTablesLocalhostNodePorts",stage="ALPHA"} 1.0'
        assert gate in node.get("/metrics").body


def test_without_a_period_the_pause_follows_the_cost_and_with_one_it_is_that(
    node: LabNode, process: NodeProcess
) -> None:
    process.objects(*OBJECTS)
    process.configure(nftables={"minSyncPeriod": "0s"})
    process.start()
    process.wait_synced()
    assert 0.005 <= _pause(node) < 1.0
    assert node.metric("pointsman_sync_pause_seconds", ip_family="IPv4") == _pause(node)

    process.configure(nftables={"minSyncPeriod": "2s"})
    wait_until(lambda: node.metric("pointsman_sync_pause_seconds", ip_family="IPv4") == 2.0)
    assert _pause(node) == 2.0


def _pause(node: LabNode) -> float:
    """The pause between syncs of IPv4 as `status` shows it."""
    return float(json.loads(node.get("/status.json").body)["families"][0]["pause"])
