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
        "Started",
        "SyncProgressIPv4",
        "SyncProgressIPv6",
        "NodeEligible",
        "Running",
        "SyncIPv4",
        "RulesIPv4",
        "SyncIPv6",
        "RulesIPv6",
        "HealthCheckNodePorts",
        "Listening",
        "DatapathIPv4",
        "DatapathIPv6",
        "readyz check passed",
    ]
    node.run("nft", "-f", "-", text=FOREIGN_DROP)
    _, body = wait_until(readyz, lambda found: "likely cause" in found[1], seconds=30)
    assert "[-]DatapathIPv4 failed: no answer from 192.0.2.77 within 2 s; likely cause: " in body
    assert "others" in body
    assert "[+]DatapathIPv6 ok" in body
    assert node.get("/livez", HEALTH_PORT).status == 200
    assert node.get("/healthz", HEALTH_PORT).status == 200
    assert node.metric("pointsman_condition", type="DatapathIPv4") == 1
    assert node.metric("pointsman_datapath_probes_total", ip_family="IPv4", result="failure") >= 1
    node.run("nft", "delete", "table", "ip", "others")
    wait_until(readyz, lambda found: found[0] == 200, seconds=30)
    assert node.metric("pointsman_condition", type="DatapathIPv4") == 0
