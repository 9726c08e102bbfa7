"""/readyz of a whole process, with the datapath probe going through real rules."""

from __future__ import annotations

from tests.harness.kube_objects import node_object, web_service, web_slices
from tests.harness.node import HEALTH_PORT, LabNode, NodeProcess, needs_root
from tests.harness.waiting import wait_until

pytestmark = needs_root

FOREIGN_DROP = """\
table ip others {
    chain out {
        type filter hook output priority 0
        ip daddr { 10.244.0.0/16, 172.30.0.0/16 } drop
    }
}
"""
PROBE = "--probe-addresses=192.0.2.77,2001:db8::77"


def test_a_node_is_ready_when_its_own_packets_are_translated(node: LabNode, process: NodeProcess) -> None:
    def readyz() -> tuple[int, str]:
        answer = node.get("/readyz", HEALTH_PORT)
        return answer.status, answer.body

    process.configure()
    process.objects(web_service(), *web_slices(), node_object())
    process.start(PROBE)
    _, body = wait_until(readyz, lambda found: found[0] == 200, seconds=30)
    assert [line.removeprefix("[+]").removesuffix(" ok") for line in body.splitlines()] == [
        "sources-listed",
        "IPv4-synced",
        "IPv6-synced",
        "IPv4-keeping-up",
        "IPv6-keeping-up",
        "IPv4-rules-intact",
        "IPv6-rules-intact",
        "IPv4-datapath",
        "IPv6-datapath",
        "ports-open",
        "staying",
        "readyz check passed",
    ]
    node.run("nft", "-f", "-", text=FOREIGN_DROP)
    _, body = wait_until(readyz, lambda found: "likely cause" in found[1], seconds=30)
    assert "[-]IPv4-datapath failed: no answer from 192.0.2.77 within 2 s; likely cause: " in body
    assert "others" in body
    assert "[+]IPv6-datapath ok" in body
    assert node.get("/livez", HEALTH_PORT).status == 200
    assert node.get("/healthz", HEALTH_PORT).status == 200
    assert node.metric("pointsman_degraded", check="IPv4 datapath") == 1
    assert node.metric("pointsman_datapath_probes_total", ip_family="IPv4", result="failure") >= 1
    node.run("nft", "delete", "table", "ip", "others")
    wait_until(readyz, lambda found: found[0] == 200, seconds=30)
    assert node.metric("pointsman_degraded", check="IPv4 datapath") == 0
