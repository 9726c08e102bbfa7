"""From kube-proxy to Pointsman and back on a live node; runs where KUBE_PROXY_BINARY names kube-proxy."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.harness.api_thread import ApiThread
from tests.harness.kube_objects import node_object, web_service, web_slices
from tests.harness.node import NODE_IP, LabNode, NodeProcess, needs_root
from tests.harness.waiting import wait_until

REFERENCE = os.environ.get("KUBE_PROXY_BINARY", "")
pytestmark = [
    *needs_root,
    pytest.mark.skipif(not REFERENCE, reason="KUBE_PROXY_BINARY does not name a kube-proxy"),
]

NODE_PORT = {"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080, "nodePort": 30080}
WEB = web_service(type="NodePort", externalTrafficPolicy="Cluster", ports=[NODE_PORT])
FRONTENDS = (("10.96.0.10", 80), ("fd00:10:96::10", 80), (NODE_IP, 30080))
MODES = ("nftables", "iptables")


@contextlib.contextmanager
def kube_proxy(node: LabNode, process: NodeProcess) -> Iterator[None]:
    """The reference, with our configuration file, until the block ends; its rules stay."""
    with node.namespace.entered(), (process.directory / "kube-proxy.log").open("ab") as log:
        reference = subprocess.Popen((REFERENCE, f"--config={process.config_file}"), stdout=log, stderr=log)
    try:
        yield
    finally:
        reference.terminate()
        reference.wait(10)


@pytest.mark.parametrize("ours", MODES)
@pytest.mark.parametrize("theirs", MODES)
def test_upgrade_and_rollback_lose_no_connection(
    node: LabNode, process: NodeProcess, api: ApiThread, theirs: str, ours: str
) -> None:
    def configure(mode: str) -> None:
        client = {"kubeconfig": str(api.kubeconfig), "contentType": "application/json"}
        process.configure(mode=mode, clientConnection=client)

    api.load(WEB, *web_slices(), node_object())
    configure(theirs)
    with contextlib.ExitStack() as stack:
        stack.enter_context(node.backend())
        with kube_proxy(node, process):
            for address, port in FRONTENDS:
                node.wait_served(address, port)
            traffic = stack.enter_context(node.traffic(*FRONTENDS))
            traffic.more(30)

        configure(ours)
        process.start(from_api=True)
        process.wait_synced()
        api.load(web_service("during", 20), *web_slices("during"))
        node.wait_served("10.96.0.20")
        wait_until(lambda: _traces(node, theirs if theirs != ours else ""), lambda found: not found)
        traffic.more(60)

        # kube-proxy removes the rules of other modes before its first sync: be in its mode before it starts.
        configure(theirs)
        wait_until(lambda: node.get("/proxyMode").body == theirs)
        process.wait_synced()
        assert process.stop() == 0
        with kube_proxy(node, process):
            api.load(web_service("after", 30), *web_slices("after"))
            node.wait_served("10.96.0.30")
            node.wait_served("fd00:10:96::30")
            traffic.more(60)
            node.assert_served("10.96.0.20")
            api.call(lambda server: server.delete("Service", "default/during"))
            node.wait_unreachable("10.96.0.20")
            traffic.more(30)
    assert traffic.failures == []
    assert traffic.made > 150


def _traces(node: LabNode, mode: str) -> list[str]:
    """What a mode has left in the kernel."""
    if mode == "nftables":
        return [line for line in node.run("nft", "list", "tables").splitlines() if "kube-proxy" in line]
    if mode == "iptables":
        saved = node.run("iptables-save") + node.run("ip6tables-save")
        return [line for line in saved.splitlines() if "KUBE-SVC" in line or "KUBE-SERVICES" in line]
    return []


def test_kube_proxys_own_cleanup_removes_what_pointsman_made(
    node: LabNode, process: NodeProcess, api: ApiThread, tmp_path: Path
) -> None:
    for mode in MODES:
        process.configure(mode=mode)
        process.objects(WEB, *web_slices(), node_object())
        process.start()
        process.wait_synced()
        wait_until(partial(_traces, node, mode))
        process.stop()
        with node.namespace.entered():
            subprocess.run((REFERENCE, "--cleanup"), capture_output=True, check=True)
        assert _traces(node, mode) == []
