"""A running proxy changes shares by itself: a newcomer grows, and a fresh endpoint gets more than a busy one."""

from __future__ import annotations

import contextlib
import json
import socket

from tests.harness.kube_objects import BACKEND_PORT, node_object, web_service, web_slices
from tests.harness.node import NODE_IP, SECOND_IP, LabNode, NodeProcess, needs_root
from tests.harness.waiting import wait_until

pytestmark = needs_root


def shares(node: LabNode, service: str) -> dict[str, float | None]:
    """Return the share of new connections by endpoint; None where they are spread evenly."""
    (port,) = [
        port
        for port in json.loads(node.get(f"/explain.json?target=default/{service}").body)["ports"]
        if port["family"] == "IPv4"
    ]
    return {endpoint["address"]: endpoint["share"] for endpoint in port["endpoints"]}


def share_of(node: LabNode, service: str, address: str) -> float:
    share = shares(node, service).get(f"{address}:{BACKEND_PORT}")
    return 0.5 if share is None else share


def test_newcomers_grow_and_open_connections_count(node: LabNode, process: NodeProcess) -> None:
    process.configure()
    warm, busy = web_service("warm", 10), web_service("busy", 20)
    busy["metadata"]["annotations"] = {"pointsman.dev/scheduler": "least-connections"}
    process.objects(warm, *web_slices("warm", NODE_IP), busy, *web_slices("busy", NODE_IP), node_object())
    with contextlib.ExitStack() as held:
        process.start("--default-slow-start=3s")
        process.wait_synced()
        with node.namespace.entered():
            held.enter_context(socket.create_server(("", BACKEND_PORT), backlog=100))
            for _ in range(60):
                held.enter_context(socket.create_connection(("10.96.0.20", 80), timeout=5))
        both = (NODE_IP, SECOND_IP)
        process.objects(warm, *web_slices("warm", *both), busy, *web_slices("busy", *both), node_object())
        wait_until(lambda: share_of(node, "warm", SECOND_IP), lambda share: share < 0.5)
        wait_until(lambda: set(shares(node, "warm").values()), lambda found: found == {None})
        wait_until(lambda: share_of(node, "busy", SECOND_IP), lambda share: share > 0.55)
        assert process.stop() == 0
