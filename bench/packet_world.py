"""The worlds of bench.packets: a node with a proxy, an endpoint, a client in a pod and one outside, each a network namespace."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench.apiserver import Object, render_kubeconfig
from bench.network import build_node
from bench.objects import compute_service_address, encode_service, encode_slice
from bench.packet_figures import Round
from bench.packet_server import SWALLOWED
from bench.proxies import compile_modules, render_config

from pointsman.lab.netns import Namespace

NODE_ADDRESS, SERVER, POD, OUTSIDE = "172.30.0.10", "10.128.2.2", "10.128.1.2", "172.30.0.2"
PORT, SERVICE_PORT, NODE_PORT, API_PORT = 8080, 80, 30080, 18099
CONNECTS, ROUND_TRIPS, QUERIES = 120, 200, 80
LOST_TWICE = 4.0
"""Seconds after which a packet that was lost has been sent again twice: a slow connect belongs to the figures."""
AT_ONCE = struct.pack("ii", 1, 0)

Target = tuple[str, int]


def compute_measured_address(services: int) -> str:
    return compute_service_address(services + 5)


def build_objects(services: int) -> list[Object]:
    """Many Services with one endpoint each, and the one that is measured."""
    index = services + 5
    service, endpoints = json.loads(encode_service(index)), json.loads(encode_slice(index, 1))
    service["spec"]["type"] = "NodePort"
    service["spec"]["ports"] = [
        {"name": name, "protocol": protocol, "port": SERVICE_PORT, "targetPort": PORT, "nodePort": NODE_PORT}
        for name, protocol in (("tcp", "TCP"), ("udp", "UDP"))
    ]
    endpoints["endpoints"][0]["addresses"] = [SERVER]
    endpoints["ports"] = [{"name": p.lower(), "protocol": p, "port": PORT} for p in ("TCP", "UDP")]
    others = (
        made(number) for number in range(services) for made in (encode_service, lambda i: encode_slice(i, 1))
    )
    return [build_node(1, NODE_ADDRESS), service, endpoints, *map(json.loads, others)]


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
        (self._work / "kubeconfig").write_text(render_kubeconfig(f"http://{self._api}:{API_PORT}"))
        file = self._work / "config.json"
        file.write_text(render_config(self._work / "kubeconfig", self.mode, minSyncPeriod="10ms"))
        environment = compile_modules(self._work / "compiled") | {
            "XTABLES_LOCKFILE": str(self._work / "xtables.lock")
        }
        command = [part.format(work=self._work) for part in self._command]
        self._start(self.node, [*command, f"--config={file}"], "proxy.log", environment)

    def paths(self, services: int) -> dict[str, tuple[Namespace, Target, Target]]:
        """From where, the direct way, and the one through the Service."""
        direct = (SERVER, PORT)
        through = (compute_measured_address(services), SERVICE_PORT) if self._command else direct
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


def measure_round_trips(where: Namespace, target: Target) -> list[float]:
    with _socket(where, socket.SOCK_STREAM) as client:
        client.connect(target)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.sendall(b"e")

        def ask() -> None:
            client.sendall(b"?")
            client.recv(16)

        return [_timed(ask) for _ in range(ROUND_TRIPS)]


def measure_throughput(where: Namespace, target: Target) -> float:
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


def measure_round(where: Namespace, target: Target) -> Round:
    return Round(
        [connect(where, target) for _ in range(CONNECTS)],
        measure_round_trips(where, target),
        [query(where, target) for _ in range(QUERIES)],
        measure_throughput(where, target),
    )
