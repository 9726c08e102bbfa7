"""The worlds of bench.packets: a node with a proxy, an endpoint, a client in a pod and one outside, each a network namespace."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.apiserver import Object
from bench.objects import service_address, service_json, slice_json
from bench.packet_figures import Round
from bench.packet_server import SWALLOWED
from bench.process import CONFIG, KUBECONFIG, NODE, as_shipped
from tests.fake.apistore import PATHS

from pointsman.kube.protobuf import PROTOBUF
from pointsman.lab.netns import Namespace

NODE_ADDRESS, SERVER, POD, OUTSIDE = "172.30.0.10", "10.128.2.2", "10.128.1.2", "172.30.0.2"
PORT, SERVICE_PORT, NODE_PORT, API_PORT = 8080, 80, 30080, 18099
CONNECTS, ROUND_TRIPS, QUERIES = 120, 200, 80
TIMEOUT_SECONDS = 180.0
LOST_TWICE = 4.0
"""Seconds after which a packet that was lost has been sent again twice: a slow connect belongs to the figures."""
AT_ONCE = struct.pack("ii", 1, 0)

Target = tuple[str, int]


def measured_service(services: int) -> str:
    return service_address(services + 5)


def objects(services: int) -> list[Object]:
    """Many Services with one endpoint each, and the one that is measured."""
    index = services + 5
    service, endpoints = json.loads(service_json(index)), json.loads(slice_json(index, 1))
    service["spec"]["type"] = "NodePort"
    service["spec"]["ports"] = [
        {"name": name, "protocol": protocol, "port": SERVICE_PORT, "targetPort": PORT, "nodePort": NODE_PORT}
        for name, protocol in (("tcp", "TCP"), ("udp", "UDP"))
    ]
    endpoints["endpoints"][0]["addresses"] = [SERVER]
    endpoints["ports"] = [{"name": p.lower(), "protocol": p, "port": PORT} for p in ("TCP", "UDP")]
    others = (
        made(number) for number in range(services) for made in (service_json, lambda i: slice_json(i, 1))
    )
    return [NODE, service, endpoints, *map(json.loads, others)]


class World:
    """One node and those around it; `proxy` is a command without its configuration, or nothing."""

    def __init__(
        self, program: str, mode: str, command: list[str], work: Path, control: Namespace, number: int
    ) -> None:
        self.program, self.mode, self._command, self._work = program, mode, command, work
        self.node, self.server, self.pod, self.outside = (Namespace() for _ in range(4))
        self._processes: list[subprocess.Popen[bytes]] = []
        for name, other, near, far, bits in (
            ("server", self.server, "10.128.2.1", SERVER, 24),
            ("pod", self.pod, "10.128.1.1", POD, 24),
            ("eth0", self.outside, NODE_ADDRESS, OUTSIDE, 24),
        ):
            _wired(self.node, name, near, other, "eth0", far, bits)
            other.run(["ip", "route", "add", "default", "via", near])
        _wired(self.node, "api", f"172.31.{number}.2", control, f"api{number}", f"172.31.{number}.1", 24)
        self.node.run(["ip", "route", "add", "default", "via", OUTSIDE])
        self.node.write_sysctls({"net/ipv4/ip_forward": "1"})
        self._api = f"172.31.{number}.1"
        self._start(
            self.server, [sys.executable, "-m", "bench.packet_server", SERVER, str(PORT)], "server.log"
        )

    def _start(
        self, where: Namespace, command: list[str], log: str, environment: dict[str, str] | None = None
    ) -> None:
        with where.entered(), (self._work / log).open("wb") as output:
            self._processes.append(subprocess.Popen(command, stdout=output, stderr=output, env=environment))

    def start_proxy(self) -> None:
        if not self._command:
            return
        (self._work / "kubeconfig").write_text(
            KUBECONFIG.format(port=API_PORT).replace("127.0.0.1", self._api)
        )
        config = self._work / "config.yaml"
        config.write_text(CONFIG.format(mode=self.mode, kubeconfig=self._work / "kubeconfig"))
        environment = as_shipped(self._work / "compiled") | {
            "XTABLES_LOCKFILE": str(self._work / "xtables.lock")
        }
        command = [part.format(work=self._work) for part in self._command]
        self._start(self.node, [*command, f"--config={config}"], "proxy.log", environment)

    def paths(self, services: int) -> dict[str, tuple[Namespace, Target, Target]]:
        """From where, the direct way, and the one through the Service."""
        direct = (SERVER, PORT)
        through = (measured_service(services), SERVICE_PORT) if self._command else direct
        node_port = (NODE_ADDRESS, NODE_PORT) if self._command else direct
        return {"pod": (self.pod, direct, through), "outside": (self.outside, direct, node_port)}

    def loaded(self, services: int) -> bool:
        """Whether both ways through the Service lead to the endpoint, in TCP and in UDP."""
        try:
            for where, _, target in self.paths(services).values():
                connect(where, target)
                query(where, target)
        except OSError:
            return False
        return True

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait()
        for namespace in (self.node, self.server, self.pod, self.outside):
            namespace.close()


def _wired(
    one: Namespace, name: str, address: str, other: Namespace, far_name: str, far: str, bits: int
) -> None:
    one.run(["ip", "link", "add", name, "type", "veth", "peer", "name", far_name, "netns", other.path])
    for namespace, device, own in ((one, name, address), (other, far_name, far)):
        for command in (f"address add {own}/{bits} dev {device}", f"link set {device} up", "link set lo up"):
            namespace.run(["ip", *command.split()])


def _socket(where: Namespace, kind: socket.SocketKind) -> socket.socket:
    with where.entered():
        made = socket.socket(socket.AF_INET, kind)
    made.settimeout(LOST_TWICE)
    return made


def _timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def connect(where: Namespace, target: Target) -> float:
    with _socket(where, socket.SOCK_STREAM) as client:
        took = _timed(lambda: client.connect(target))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
    return took


def query(where: Namespace, target: Target) -> float:
    """Time a request and its answer over a new UDP socket, as resolvers use."""
    with _socket(where, socket.SOCK_DGRAM) as client:

        def ask() -> None:
            client.sendto(b"?", target)
            client.recv(16)

        return _timed(ask)


def round_trips(where: Namespace, target: Target) -> list[float]:
    with _socket(where, socket.SOCK_STREAM) as client:
        client.connect(target)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.sendall(b"e")

        def ask() -> None:
            client.sendall(b"?")
            client.recv(16)

        return [_timed(ask) for _ in range(ROUND_TRIPS)]


def throughput(where: Namespace, target: Target) -> float:
    """Bits per second of one connection."""
    piece = bytes(1 << 18)
    with _socket(where, socket.SOCK_STREAM) as client:
        client.settimeout(10.0)
        client.connect(target)
        client.sendall(b"s")

        def send() -> None:
            for _ in range(SWALLOWED // len(piece)):
                client.sendall(piece)
            client.recv(1)

        return SWALLOWED * 8 / _timed(send)


def one_round(where: Namespace, target: Target) -> Round:
    return Round(
        [connect(where, target) for _ in range(CONNECTS)],
        round_trips(where, target),
        [query(where, target) for _ in range(QUERIES)],
        throughput(where, target),
    )


@contextlib.contextmanager
def api_server(control: Namespace, services: int, work: Path) -> Iterator[None]:
    """One fake API server for all worlds, which has encoded everything before a proxy asks."""
    path = work / "objects.json"
    path.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": objects(services)}))
    control.run(["ip", "link", "set", "lo", "up"])
    with control.entered(), (work / "api.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.apiserver", str(path), "0.0.0.0", str(API_PORT)],
            stdout=log,
            stderr=log,
        )
    try:
        with control.entered():
            for kind in ("Service", "EndpointSlice"):
                _encoded(f"http://127.0.0.1:{API_PORT}{PATHS[kind]}")
        yield
    finally:
        process.terminate()
        process.wait()


def _encoded(url: str) -> None:
    until = time.monotonic() + TIMEOUT_SECONDS
    request = urllib.request.Request(url, headers={"Accept": PROTOBUF})
    while True:
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
                answer.read()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)
