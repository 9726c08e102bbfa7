"""The process from start to signal: what it serves, and what stays in the kernel after it."""

from __future__ import annotations

import json
import signal

from tests.harness.kube_objects import node_object, web_service, web_slices
from tests.harness.node import HEALTH_PORT, NODE_IP, LabNode, NodeProcess, needs_root
from tests.harness.waiting import wait_until

pytestmark = needs_root

OBJECTS = (web_service(), *web_slices(), node_object())
HEALTH_CHECK_NODE_PORT = 30990
BALANCED = (
    web_service(
        "balanced",
        40,
        type="LoadBalancer",
        externalTrafficPolicy="Local",
        healthCheckNodePort=HEALTH_CHECK_NODE_PORT,
    ),
    *web_slices("balanced"),
)


def test_every_page_is_served_and_a_stop_leaves_the_rules(node: LabNode, process: NodeProcess) -> None:
    process.configure(enableProfiling=False)
    process.objects(*OBJECTS)
    with node.backend():
        process.start()
        process.wait_synced()
        health = node.get("/healthz", HEALTH_PORT)
        assert health.status == 200
        assert json.loads(health.body)["nodeEligible"] is True
        assert node.get("/livez", HEALTH_PORT, NODE_IP).status == 200
        assert node.get("/proxyMode").body == "nftables"
        configz = json.loads(node.get("/configz").body)
        assert configz["kubeproxy.config.k8s.io"]["hostnameOverride"] == "n1"
        assert "statusz" in node.get("/statusz").body
        assert "hostname" in node.get("/flagz").body
        assert node.get("/healthz").body == "ok"
        assert node.get("/debug/pprof/").status == 404
        assert node.metric("kubeproxy_sync_proxy_rules_duration_seconds_count", ip_family="IPv4") >= 1
        assert node.metric("pointsman_service_ports", ip_family="IPv6") == 1
        node.assert_served("10.96.0.10")
        node.assert_served("fd00:10:96::10")
        assert process.stop(signal.SIGTERM) == 0
        node.assert_served("10.96.0.10")
        node.assert_served("fd00:10:96::10")


def test_an_interrupt_while_starting_ends_cleanly(process: NodeProcess) -> None:
    process.objects(*OBJECTS)
    process.start()
    wait_until(lambda: "Starting" in process.log_text)
    assert process.stop(signal.SIGINT) == 0
    assert "Traceback" not in process.log_text


def test_sighup_reads_the_configuration_again(node: LabNode, process: NodeProcess) -> None:
    process.objects(*OBJECTS)
    process.start()
    process.wait_synced()
    process.send(signal.SIGHUP)
    process.configure(logging={"verbosity": 4})
    process.send(signal.SIGHUP)
    wait_until(lambda: node.metric("pointsman_config_reloads_total", result="applied") == 1)
    assert process.alive
    assert process.stop() == 0


def test_balancers_are_turned_away_before_the_end_while_syncs_go_on(
    node: LabNode, process: NodeProcess
) -> None:
    process.configure()
    process.objects(*OBJECTS, *BALANCED)
    with node.backend():
        process.start("--drain-period=1h")
        process.wait_synced()
        wait_until(lambda: node.get("/", HEALTH_CHECK_NODE_PORT, NODE_IP).status == 200)
        process.send(signal.SIGTERM)
        wait_until(lambda: node.get("/healthz", HEALTH_PORT).status == 503)
        assert json.loads(node.get("/healthz", HEALTH_PORT).body)["leaving"] is True
        assert node.get("/livez", HEALTH_PORT).status == 200
        assert node.get("/", HEALTH_CHECK_NODE_PORT, NODE_IP).status == 503
        process.configure(enableProfiling=True)
        wait_until(lambda: node.metric("pointsman_config_reloads_total", result="restarted") == 1)
        # While one proxy replaces the other, nobody answers for a moment.
        wait_until(lambda: '"leaving":true' in node.get("/healthz", HEALTH_PORT).body)
        process.objects(node_object(), *BALANCED)
        node.wait_unreachable("10.96.0.10")
        assert process.alive
        process.send(signal.SIGTERM)
        assert process.wait_exit() == 0


def test_the_process_ends_by_itself_after_the_drain_period(process: NodeProcess) -> None:
    process.objects(*OBJECTS)
    process.start("--drain-period=100ms")
    process.wait_synced()
    assert process.stop(signal.SIGTERM) == 0
    assert "Draining" in process.log_text
