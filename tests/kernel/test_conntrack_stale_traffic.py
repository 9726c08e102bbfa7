"""A UDP client that keeps its source port is moved off a vanished endpoint, and nobody else is disturbed."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import socket
from collections.abc import Iterator

import pytest
from tests.harness.waiting import TIME_FACTOR

from pointsman.lab.netns import Namespace
from pointsman.model.addresses import Family
from pointsman.model.endpoint import Endpoint
from pointsman.model.node_context import NodeContext
from pointsman.model.plan import EndpointSelection, Frontend, FrontendKind, Outcome, ServicePlan
from pointsman.model.service import Protocol, ServicePort, ServicePortName
from pointsman.obs.registry import Metrics
from pointsman.sync.flow_cleaner import StaleFlowCleaner
from pointsman.sync.reconcile import PlanChange

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.skipif(shutil.which("nft") is None, reason="nft is needed to translate addresses"),
]

NODE, PODS, SERVICE, OTHER_SERVICE = "10.0.0.1", ("10.244.0.5", "10.244.0.6"), "10.96.0.10", "10.96.0.11"
PORT, NODE_PORT, POD_PORT = 53, 30053, 5353
UNRELATED = f"ip daddr 192.0.2.1 udp dport 1 dnat to {PODS[0]}:1"
"""Without any address translation the kernel would not track flows at all."""
HERE = NodeContext(Family.IPV4, "node", node_ips=(socket.inet_aton(NODE),))


class Node:
    """One namespace that plays node, pods and clients; pods answer with their own address."""

    def __init__(self, space: Namespace, closing: contextlib.ExitStack) -> None:
        self.space, self.closing = space, closing
        space.run(["ip", "link", "set", "lo", "up"])
        for address in (NODE, *PODS):
            space.run(["ip", "address", "add", f"{address}/32", "dev", "lo"])
        space.run(["ip", "route", "add", "10.96.0.0/16", "dev", "lo"])
        self.pods = {address: self.bound(address, POD_PORT) for address in PODS}

    def bound(self, address: str, port: int) -> socket.socket:
        sock = self.closing.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        sock.bind((address, port))
        sock.settimeout(5)
        return sock

    def translate(self, *rules: str) -> None:
        """Replace all rules."""
        body = "\n".join(rules)
        self.space.run(
            ["nft", "-f", "-"],
            f"table ip t\ndelete table ip t\ntable ip t {{ chain c {{ type nat hook output priority -100;\n{body}\n}}\n}}",
        )

    def client(self, address: str, port: int) -> socket.socket:
        sock = self.bound(NODE, 0)
        sock.connect((address, port))
        return sock

    def answering(self, client: socket.socket) -> str:
        """The pod that the client's next packet reaches; empty when none."""
        client.send(b"hello")
        ready, _, _ = select.select(self.pods.values(), [], [], 0.5 * TIME_FACTOR)
        if not ready:
            return ""
        ready[0].recv(100)
        return next(address for address, pod in self.pods.items() if pod is ready[0])


def to(pod: str, service: str = SERVICE) -> list[str]:
    return [
        f"ip daddr {service} udp dport {PORT} dnat to {pod}:{POD_PORT}",
        f"ip daddr {NODE} udp dport {NODE_PORT} dnat to {pod}:{POD_PORT}",
    ]


@pytest.fixture
def node() -> Iterator[Node]:
    space = Namespace()
    with contextlib.ExitStack() as closing, space.entered():
        yield Node(space, closing)
    space.close()


def plan(*pods: str, service: str = SERVICE, name: str = "dns") -> ServicePlan:
    endpoints = tuple(Endpoint(socket.inet_aton(pod), POD_PORT) for pod in pods)
    address = socket.inet_aton(service)
    port = ServicePort(ServicePortName("a", name, "", Protocol.UDP), Family.IPV4, address, PORT, NODE_PORT)
    return ServicePlan(
        port=port,
        frontends=(
            Frontend(FrontendKind.CLUSTER_IP, address, PORT, False, Outcome.DELIVERED),
            *(
                (Frontend(FrontendKind.NODE_PORT, b"", NODE_PORT, False, Outcome.DELIVERED),)
                if service == SERVICE
                else ()
            ),
        ),
        endpoints=EndpointSelection(endpoints, endpoints, (), endpoints, has_any=bool(endpoints)),
    )


def cleaned(old: ServicePlan | None, new: ServicePlan | None) -> int:
    cleaner = StaleFlowCleaner(Family.IPV4, Metrics("nftables"))
    plan_now = new or old
    assert plan_now is not None
    cleaner.add({plan_now.name: PlanChange(old, new)}, HERE)
    report = cleaner.run()
    assert report.problem == ""
    return report.deleted


@pytest.mark.parametrize(
    ("address", "port"), [(SERVICE, PORT), (NODE, NODE_PORT)], ids=["cluster", "node port"]
)
def test_a_client_with_a_fixed_source_port_is_moved(node: Node, address: str, port: int) -> None:
    node.translate(*to(PODS[0]))
    client = node.client(address, port)
    assert node.answering(client) == PODS[0]
    node.translate(*to(PODS[1]))
    assert node.answering(client) == PODS[0], "the tracked flow outlives the rule"
    assert cleaned(plan(PODS[0]), plan(PODS[1])) == 1
    assert node.answering(client) == PODS[1]


def test_a_flow_begun_before_the_service_had_endpoints_is_caught(node: Node) -> None:
    node.translate(UNRELATED)
    client = node.client(SERVICE, PORT)
    assert node.answering(client) == ""
    node.translate(*to(PODS[0]))
    assert node.answering(client) == ""
    assert cleaned(plan(), plan(PODS[0])) == 1
    assert node.answering(client) == PODS[0]


def test_flows_of_a_deleted_service_end(node: Node) -> None:
    node.translate(*to(PODS[0]))
    client = node.client(SERVICE, PORT)
    assert node.answering(client) == PODS[0]
    node.translate(UNRELATED)
    assert cleaned(plan(PODS[0]), None) == 1
    assert node.answering(client) == ""


def test_other_services_and_endpoints_that_stay_are_not_disturbed(node: Node) -> None:
    node.translate(*to(PODS[0]), *to(PODS[0], OTHER_SERVICE))
    same, other = node.client(SERVICE, PORT), node.client(OTHER_SERVICE, PORT)
    assert node.answering(same) == node.answering(other) == PODS[0]
    node.translate(*to(PODS[1]), *to(PODS[1], OTHER_SERVICE))
    assert cleaned(plan(*PODS), plan(PODS[0])) == 0
    assert node.answering(same) == node.answering(other) == PODS[0]


def test_after_a_restart_flows_on_serving_endpoints_live_on(node: Node) -> None:
    node.translate(*to(PODS[0]))
    kept = node.client(SERVICE, PORT)
    assert node.answering(kept) == PODS[0]
    assert cleaned(None, plan(*PODS)) == 0
    assert cleaned(None, plan(PODS[1])) == 1
