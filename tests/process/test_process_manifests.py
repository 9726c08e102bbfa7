"""A directory of manifests that holds what no proxy can read: the rest is served, told about, and stopped as ever."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from tests.harness.kube_objects import node_object, web_service, web_slices
from tests.harness.node import LabNode, NodeProcess, needs_root

pytestmark = needs_root


def test_pipes_and_gigabytes_among_the_manifests_stop_neither_updates_nor_sigterm(
    node: LabNode, process: NodeProcess
) -> None:
    process.configure()
    process.objects(web_service(), *web_slices(), node_object())
    manifests = process.manifests
    os.mkfifo(manifests / "pipe.yaml")
    with (manifests / "huge.yaml").open("wb") as file:
        file.truncate(3 << 30)
    broken = web_service("broken", 30)
    broken["spec"] |= {"clusterIP": "10.96.0.300", "clusterIPs": ["10.96.0.300"]}
    (manifests / "bad.json").write_text(json.dumps(broken), encoding="utf-8")
    with node.backend():
        process.start()
        process.wait_synced()
        node.assert_served("10.96.0.10")
        (status,) = json.loads(node.get("/status.json").body)["watches"]
        assert status["badObjects"] == 3
        messages = {entry["object"]["place"]: entry["message"] for entry in status["rejected"]}
        assert messages["pipe.yaml"] == "cannot be read: not a regular file"
        assert messages["huge.yaml"] == "cannot be read: larger than 64 MiB"
        assert "10.96.0.300" in messages["bad.json"]
        explained = node.get("/explain.json?target=default/broken").body
        assert "10.96.0.300" in explained
        later = {"kind": "List", "items": [web_service("later", 20), *web_slices("later")]}
        (manifests / "later.json").write_text(json.dumps(later), encoding="utf-8")
        node.wait_served("10.96.0.20")
        assert process.resident_kilobytes() < 300_000
        assert process.stop() == 0


@pytest.mark.parametrize("mode", ["nftables", "iptables"])
def test_a_load_balancer_address_with_unreadable_source_ranges_answers_nobody(
    node: LabNode, process: NodeProcess, mode: str
) -> None:
    def balanced(source_range: str) -> dict[str, Any]:
        item = web_service(type="LoadBalancer", loadBalancerSourceRanges=[source_range])
        return item | {"status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.7"}]}}}

    process.configure(mode=mode)
    process.objects(balanced("0.0.0.0/0"), *web_slices(), node_object())
    with node.backend():
        process.start()
        process.wait_synced()
        node.wait_served("203.0.113.7")
        process.objects(balanced("10.0.0.0/33"), *web_slices(), node_object())
        node.wait_unreachable("203.0.113.7")
        node.assert_served("10.96.0.10")
        process.objects(balanced("0.0.0.0/0"), *web_slices(), node_object())
        node.wait_served("203.0.113.7")
        assert process.stop() == 0
