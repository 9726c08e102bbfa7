"""Remote clients at the ports that are open to the network: whatever they hold or send, probes and watches work."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest
from tests.harness.api_thread import ApiThread
from tests.harness.kube_objects import node_object, web_service, web_slices
from tests.harness.node import HEALTH_PORT, LabNode, NodeProcess, needs_root
from tests.harness.remote_clients import (
    BALANCER,
    HEALTH_CHECK_PORT,
    OPEN_TO_ALL,
    PORTS,
    flood_requests,
    hold_connections,
    open_remote,
    raise_descriptor_limit,
    read_statuses,
)
from tests.harness.waiting import wait_until

pytestmark = needs_root


@pytest.fixture(autouse=True)
def _raised_descriptor_limit() -> Iterator[None]:
    with raise_descriptor_limit():
        yield


def serve_balancer(node: LabNode, process: NodeProcess) -> None:
    process.configure(**OPEN_TO_ALL)
    process.objects(BALANCER, *web_slices(), node_object())
    process.start()
    process.wait_synced()
    wait_until(lambda: node.get("/", HEALTH_CHECK_PORT).status == 200)


def test_a_thousand_idle_connections_at_each_port_disturb_no_probe(
    node: LabNode, process: NodeProcess
) -> None:
    serve_balancer(node, process)
    with hold_connections(node, 1000, *PORTS):
        for _ in range(5):
            assert read_statuses(node) == {200}
        assert process.descriptors() < 1500
    assert "Traceback" not in process.log_text


def test_six_hundred_remote_clients_without_a_pause_disturb_no_probe(
    node: LabNode, process: NodeProcess
) -> None:
    serve_balancer(node, process)
    with flood_requests(node, 600, HEALTH_PORT):
        for _ in range(10):
            assert read_statuses(node) == {200}
        assert node.metric("pointsman_http_errors_total", reason="refused") == 0
    assert "Traceback" not in process.log_text


def test_with_few_descriptors_watches_reconnect_while_remote_clients_hold_on(
    node: LabNode, process: NodeProcess, api: ApiThread
) -> None:
    api.load(BALANCER, *web_slices(), node_object())
    process.configure(
        clientConnection={"kubeconfig": str(api.kubeconfig), "qps": 100, "burst": 100}, **OPEN_TO_ALL
    )
    process.start(from_api=True, wrap=("prlimit", "--nofile=200:200"))
    process.wait_synced()
    wait_until(lambda: node.get("/", HEALTH_CHECK_PORT).status == 200)
    with node.backend(), hold_connections(node, 300, *PORTS):
        api.call(lambda server: server.end_watches())
        api.load(web_service("late", 11), *web_slices("late"))
        node.wait_served("10.96.0.11", seconds=30)
        assert read_statuses(node) == {200}
    assert "Traceback" not in process.log_text
    assert "Too many open files" not in process.log_text


def test_a_flood_of_malformed_requests_is_counted_and_hardly_logged(
    node: LabNode, process: NodeProcess
) -> None:
    process.configure(**OPEN_TO_ALL)
    process.objects(web_service(), *web_slices(), node_object())
    process.start()
    process.wait_synced()
    before = len(process.log_text)

    def flood() -> None:
        with node.namespace.entered():
            for number in range(250):
                with contextlib.suppress(OSError), open_remote(HEALTH_PORT) as sock:
                    sock.sendall(b"\x16\x03\x01 hello\r\n\r\n" if number % 2 else b"GET / HTTP/9.x\r\n\r\n")
                    while sock.recv(4096):
                        pass

    threads = [threading.Thread(target=flood) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert node.metric("pointsman_http_errors_total", reason="malformed") == 1000
    assert len(process.log_text) - before < 5000
    assert "Malformed requests" in process.log_text
