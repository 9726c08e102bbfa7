"""A roll-back to kube-proxy finds our table under its name and must be able to build its own inside it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.harness.kube_objects import node_object, web_service, web_slices
from tests.harness.node import LabNode, NodeProcess, needs_root

pytestmark = needs_root

KUBE_PROXY_TABLE = Path(__file__).parents[1] / "e2e" / "data" / "kube-proxy-table.nft"


@pytest.mark.parametrize("counting", [False, True])
def test_kube_proxys_sets_maps_and_chains_fit_beside_ours(
    node: LabNode, process: NodeProcess, counting: bool
) -> None:
    """Maps with counters are of another kind, so the way back leads through a start without --service-metrics."""
    process.objects(web_service(), *web_slices(), node_object())
    for flags in (("--service-metrics",), ()) if counting else ((),):
        process.start(*flags)
        process.wait_synced()
        process.stop()
    before = node.run("nft", "list", "table", "ip", "kube-proxy")
    assert "10.96.0.10" in before
    node.run("nft", "-f", str(KUBE_PROXY_TABLE))
    assert "map firewall-ips" in node.run("nft", "list", "table", "ip", "kube-proxy")
