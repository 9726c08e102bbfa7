"""A node with a running proxy, traffic through it, and the row with the cost of a fault."""

from __future__ import annotations

import contextlib
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from tests.fake.apiserver import FakeApiServer
from tests.harness.api_thread import ApiThread
from tests.harness.kube_objects import node_object, web_service, web_slices
from tests.harness.node import NODE_IP, LabNode, NodeProcess

NODE_PORT = {"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080, "nodePort": 30080}
WEB = web_service(type="NodePort", externalTrafficPolicy="Cluster", ports=[NODE_PORT])
FRONTENDS = (("10.96.0.10", 80), ("fd00:10:96::10", 80), (NODE_IP, 30080))


class Row(msgspec.Struct):
    """One line of the table; empty fields do not apply."""

    fault: str
    mode: str
    times: int
    connections: int
    lost: int
    result: str = ""
    growth_kb: str = ""
    seconds: float = 0.0


class Done(msgspec.Struct):
    """Faults injected: how many, their result, memory grown."""

    times: int
    result: str = ""
    growth_kb: str = ""
    lost: int = 0
    """Losses other than connections of the traffic."""


class FaultyNode(msgspec.Struct):
    """A node with a proxy in one mode, fed by an API server."""

    mode: str
    node: LabNode
    process: NodeProcess
    api: ApiThread
    settings: dict[str, Any]

    def configure(self, mode: str = "") -> None:
        client = {"kubeconfig": str(self.api.kubeconfig), "qps": 500, "burst": 500}
        plain = {**client, "contentType": "application/json"}
        self.process.configure(mode=mode or self.mode, clientConnection=plain, **self.settings)

    def serves(self, address: str) -> None:
        self.node.wait_served(address, seconds=60)

    def add(self, name: str, number: int) -> None:
        self.api.load(web_service(name, number), *web_slices(name))

    def remove(self, name: str) -> None:
        def gone(server: FakeApiServer) -> None:
            server.delete("Service", f"default/{name}")
            for family in (4, 6):
                server.delete("EndpointSlice", f"default/{name}-v{family}")

        self.api.call(gone)


Work = Callable[[FaultyNode], Done]


@contextlib.contextmanager
def run_node(
    mode: str, web: dict[str, Any] = WEB, wrap: Sequence[str] = (), **settings: object
) -> Iterator[FaultyNode]:
    """The Service `web` is served; `wrap` goes in front of the proxy's command, `settings` into its configuration."""
    node = LabNode()
    with tempfile.TemporaryDirectory() as text:
        directory = Path(text)
        process = NodeProcess(node, directory)
        with ApiThread(node, directory) as api, node.backend():
            made = FaultyNode(mode, node, process, api, settings)
            api.load(web, *web_slices(), node_object())
            made.configure()
            process.start(from_api=True, wrap=wrap)
            process.wait_synced()
            for address, _ in FRONTENDS[:2]:
                made.serves(address)
            try:
                yield made
            finally:
                made.process.stop(signal.SIGKILL)
    node.close()


def measured(fault: str, mode: str, work: Work) -> Row:
    with run_node(mode) as made:
        return under_traffic(fault, made, work)


def under_traffic(
    fault: str, made: FaultyNode, work: Work, frontends: Sequence[tuple[str, int]] = FRONTENDS
) -> Row:
    began = time.monotonic()
    with made.node.traffic(*frontends) as traffic:
        done = work(made)
        traffic.more(30)
    if traffic.failures:
        print(f"  {fault}, {made.mode}: {traffic.failures[:5]}", flush=True)
    lost = len(traffic.failures) + done.lost
    seconds = round(time.monotonic() - began, 1)
    return Row(fault, made.mode, done.times, traffic.made, lost, done.result, done.growth_kb, seconds)
