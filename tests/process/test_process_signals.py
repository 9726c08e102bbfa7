"""The process from start to signal: what it serves, and what stays in the kernel after it."""

from __future__ import annotations

import json
import signal

from tests.process.node_space import (
    HEALTH_PORT,
    NODE_IP,
    NodeProcess,
    NodeSpace,
    eventually,
    needs_root,
    node_object,
    web_service,
    web_slices,
)

pytestmark = needs_root

OBJECTS = (web_service(), *web_slices(), node_object())


def test_every_page_is_served_and_a_stop_leaves_the_rules(node: NodeSpace, process: NodeProcess) -> None:
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
        assert node.connects("10.96.0.10")
        assert node.connects("fd00:10:96::10")
        assert process.stop(signal.SIGTERM) == 0
        assert node.connects("10.96.0.10")
        assert node.connects("fd00:10:96::10")


def test_an_interrupt_while_starting_ends_cleanly(process: NodeProcess) -> None:
    process.objects(*OBJECTS)
    process.start()
    eventually(lambda: "Starting" in process.log_text)
    assert process.stop(signal.SIGINT) == 0
    assert "Traceback" not in process.log_text


def test_sighup_reads_the_configuration_again(node: NodeSpace, process: NodeProcess) -> None:
    process.objects(*OBJECTS)
    process.start()
    process.wait_synced()
    process.send(signal.SIGHUP)
    process.configure(logging={"verbosity": 4})
    process.send(signal.SIGHUP)
    eventually(lambda: node.metric("pointsman_config_reloads_total", result="applied") == 1)
    assert process.alive
    assert process.stop() == 0
