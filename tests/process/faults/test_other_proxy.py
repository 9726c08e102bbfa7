"""Another proxy on the node that writes the same table again and again."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from tests.harness.kube_objects import BACKEND_PORT, node_object, web_service, web_slices
from tests.harness.node import NODE_IP, LabNode, NodeProcess, needs_root
from tests.harness.waiting import wait_until

pytestmark = needs_root

TABLE = f"""
add table ip kube-proxy
delete table ip kube-proxy
table ip kube-proxy {{
    comment "rules for kube-proxy"
    chain service-ABCDEFGH-default/web/tcp/http {{ meta l4proto tcp dnat to {NODE_IP}:{BACKEND_PORT}; }}
    chain nat-output {{
        type nat hook output priority -100;
        ip daddr 10.96.0.10 tcp dport 80 goto service-ABCDEFGH-default/web/tcp/http
    }}
}}
"""


class Rival:
    """Does what a second proxy would: whenever the table is not its own, it writes its own."""

    def __init__(self, node: LabNode) -> None:
        self.rewrites = 0
        self._node = node
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rival")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(0.05):
            if "Pointsman" in _table(self._node):
                self._node.run("nft", "-f", "-", text=TABLE)
                self.rewrites += 1


def _table(node: LabNode) -> str:
    return node.run("nft", "list", "tables", "ip") and node.run("nft", "list", "table", "ip", "kube-proxy")


def _contested(node: LabNode) -> float:
    return node.metric("pointsman_condition", type="RuleOwnershipIPv4")


def test_another_proxy_is_backed_off_from_named_and_outlived(node: LabNode, process: NodeProcess) -> None:
    process.configure(mode="nftables", nftables={"minSyncPeriod": "50ms", "syncPeriod": "3s"})
    process.objects(web_service(), *web_slices(), node_object())
    with node.backend():
        process.start()
        node.wait_served("10.96.0.10")
        with node.traffic(("10.96.0.10", 80)) as traffic:
            with Rival(node) as rival:
                wait_until(lambda: _contested(node) == 1)
                wait_until(lambda: "kube-proxy keeps rewriting our rules" in process.log_text)
                before = rival.rewrites
                wait_until(lambda: rival.rewrites, lambda rewrites: rewrites > before)
            wait_until(lambda: "Pointsman" in _table(node))
            wait_until(lambda: _contested(node) == 0)
        assert traffic.failures == []
