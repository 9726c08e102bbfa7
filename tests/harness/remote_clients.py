"""A node whose ports are open to the network, and remote clients that hold connections to them."""

from __future__ import annotations

import contextlib
import resource
import selectors
import socket
import threading
from collections.abc import Iterator

from tests.harness.kube_objects import web_service
from tests.harness.node import HEALTH_PORT, METRICS_PORT, NODE_IP, SECOND_IP, LabNode

HEALTH_CHECK_PORT = 32000
PORTS = (HEALTH_PORT, METRICS_PORT, HEALTH_CHECK_PORT)
BALANCER = web_service(
    type="LoadBalancer",
    externalTrafficPolicy="Local",
    healthCheckNodePort=HEALTH_CHECK_PORT,
    ports=[{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080, "nodePort": 30080}],
)
OPEN_TO_ALL = {
    "healthzBindAddress": f"0.0.0.0:{HEALTH_PORT}",
    "metricsBindAddress": f"0.0.0.0:{METRICS_PORT}",
    "nodePortAddresses": ["0.0.0.0/0", "::/0"],
}


@contextlib.contextmanager
def raise_descriptor_limit() -> Iterator[None]:
    """Let this process hold the clients' ends of many connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def open_remote(port: int) -> socket.socket:
    """Connect from another address of the node than the server's. Call it inside the namespace."""
    return socket.create_connection((NODE_IP, port), timeout=5, source_address=(SECOND_IP, 0))


@contextlib.contextmanager
def hold_connections(node: LabNode, count: int, *ports: int) -> Iterator[None]:
    """Hold that many remote connections to each port, some idle, some with half a request."""
    with contextlib.ExitStack() as stack:
        with node.namespace.entered():
            opened = [stack.enter_context(open_remote(port)) for _ in range(count) for port in ports]
        for sock in opened[::2]:
            with contextlib.suppress(OSError):
                sock.send(b"GET /healthz HTTP/1.1\r\nHost: x")
        yield


@contextlib.contextmanager
def flood_requests(node: LabNode, count: int, *ports: int) -> Iterator[None]:
    """Let that many remote clients send requests to each port without a pause, and reconnect when evicted."""
    warm, ended = threading.Event(), threading.Event()
    asked = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"

    def flood() -> None:
        answers = 0
        with contextlib.ExitStack() as stack, selectors.DefaultSelector() as talking:

            def open_one(port: int) -> None:
                with contextlib.suppress(OSError):
                    sock = stack.enter_context(open_remote(port))
                    talking.register(sock, selectors.EVENT_READ, port)
                    sock.sendall(asked * 100)

            stack.enter_context(node.namespace.entered())
            for port in ports * count:
                open_one(port)
            while not ended.is_set():
                for key, _ in talking.select(0.1):
                    sock: socket.socket = key.fileobj  # type: ignore[assignment]
                    received = b""
                    with contextlib.suppress(OSError):
                        received = sock.recv(1 << 16)
                        sock.sendall(asked * received.count(b"HTTP/1.1"))
                    if not received:
                        talking.unregister(sock)
                        sock.close()
                        open_one(key.data)
                    answers += received.count(b"HTTP/1.1")
                    if answers > count:
                        warm.set()

    thread = threading.Thread(target=flood, name="flood")
    thread.start()
    try:
        assert warm.wait(60)
        yield
    finally:
        ended.set()
        thread.join()


def read_statuses(node: LabNode, path: str = "/healthz") -> set[int]:
    """Return the statuses that a scraper on loopback, the kubelet and a load balancer get at every port."""
    found = set()
    for port in PORTS:
        found |= {node.get(path, port, host).status for host in ("127.0.0.1", NODE_IP)}
        with node.namespace.entered(), open_remote(port) as sock:
            sock.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            found.add(int(sock.recv(64).split()[1]))
    return found
