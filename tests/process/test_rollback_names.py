"""A roll-back to kube-proxy finds our table under its name and must be able to build its own inside it."""

from __future__ import annotations

from pathlib import Path

from tests.process.node_space import NodeProcess, NodeSpace, needs_root, node_object, web_service, web_slices

pytestmark = needs_root

KUBE_PROXY_TABLE = Path(__file__).parents[1] / "e2e" / "data" / "kube-proxy-table.nft"


def test_kube_proxys_sets_maps_and_chains_fit_beside_ours(node: NodeSpace, process: NodeProcess) -> None:
    process.objects(web_service(), *web_slices(), node_object())
    process.start()
    process.wait_synced()
    process.stop()
    before = node.run("nft", "list", "table", "ip", "kube-proxy")
    assert "10.96.0.10" in before
    node.run("nft", "-f", str(KUBE_PROXY_TABLE))
    assert "map firewall-ips" in node.run("nft", "list", "table", "ip", "kube-proxy")
