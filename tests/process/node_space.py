"""A node in one network namespace: the proxy as a process, an API server or manifests, and connections through it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Self, TypeVar

import pytest
from tests.local_routes import await_local_route
from tests.patience import PATIENCE

from pointsman.lab.netns import Namespace

T = TypeVar("T")

NODE_IP = "172.30.0.10"
NODE_IP6 = "fd00:30::10"
SECOND_IP = "172.30.0.11"
BACKEND_PORT = 8080
HEALTH_PORT = 10256
METRICS_PORT = 10249
UNIT_FILE = Path(__file__).parents[2] / "deploy/systemd/pointsman.service"

needs_root = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces and netfilter"),
]

_ANSWER_SECONDS = 10.0
"""Seconds for an answer on a busy machine. A lost packet shows by being sent again, not by the time it takes."""
_LINKS = f"""link set lo up
link add eth0 type veth peer name eth1
link set eth0 up
link set eth1 up
addr add {NODE_IP}/24 dev eth0
addr add {SECOND_IP}/24 dev eth0
addr add {NODE_IP6}/64 dev eth0 nodad
route add default dev eth0
route add ::/0 dev eth0
"""


def eventually(question: Callable[[], T], wanted: Callable[[T], bool] = bool, seconds: float = 30.0) -> T:
    """Ask until the answer is as wanted; fails showing the last answer."""
    until = time.monotonic() + seconds * PATIENCE
    while True:
        answer = question()
        if wanted(answer):
            return answer
        assert time.monotonic() < until, f"still {answer!r} after {seconds:.0f} s"
        time.sleep(0.02)


class Answer:
    """An HTTP answer; status 0 when nobody listens."""

    def __init__(self, status: int, body: str, headers: dict[str, str]) -> None:
        self.status = status
        self.body = body
        self.headers = headers

    def __repr__(self) -> str:
        return f"{self.status} {self.body[:300]}"


class NodeSpace:
    """A namespace that looks like node n1 and answers on port 8080 of its own address."""

    def __init__(self) -> None:
        self.namespace = Namespace()
        self.namespace.run(("ip", "-batch", "-"), _LINKS)
        with self.namespace.entered():
            await_local_route(NODE_IP6)

    def close(self) -> None:
        self.namespace.close()

    def run(self, *command: str, text: str = "") -> str:
        return self.namespace.run(command, text)

    def get(self, path: str, port: int = METRICS_PORT, host: str = "127.0.0.1") -> Answer:
        try:
            with self.namespace.entered():
                connection = http.client.HTTPConnection(host, port, timeout=20)
                connection.connect()
        except OSError:
            return Answer(0, "", {})
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return Answer(answer.status, answer.read().decode(), dict(answer.getheaders()))
        except (OSError, http.client.HTTPException):
            return Answer(0, "", {})
        finally:
            connection.close()

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of that name with these labels; 0 when there is none."""
        total = 0.0
        for line in self.get("/metrics").body.splitlines():
            found = re.fullmatch(rf"{re.escape(name)}(\{{[^}}]*\}})? (\S+)", line)
            if found and all(f'{label}="{value}"' in (found[1] or "") for label, value in labels.items()):
                total += float(found[2])
        return total

    def connects(self, address: str, port: int = 80, seconds: float = 0.5) -> bool:
        """Whether somebody answers behind a service address within that time, for questions that are asked again."""
        return not self.trouble(address, port, seconds)

    def trouble(self, address: str, port: int = 80, seconds: float = _ANSWER_SECONDS) -> str:
        """What went wrong with a connection; empty when it was answered and no packet was lost."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with self.namespace.entered():
            sock = socket.socket(family)
        with sock:
            sock.settimeout(seconds)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            try:
                sock.connect((address, port))
                greeting = sock.recv(16)
            except OSError as error:
                return str(error)
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
            lost = struct.unpack_from("=I", info, 100)[0]
            if lost:
                return f"{lost} packets sent again"
            return "" if greeting == b"hello" else f"answered {greeting!r}"

    @contextlib.contextmanager
    def backend(self, *addresses: str) -> Iterator[None]:
        """Somebody who says hello on these addresses (the node's own ones unless given)."""
        ended = threading.Event()
        sockets = []
        with self.namespace.entered():
            for address in addresses or (NODE_IP, NODE_IP6):
                family = socket.AF_INET6 if ":" in address else socket.AF_INET
                sock = socket.socket(family)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind((address, BACKEND_PORT))
                sock.listen(256)
                sock.settimeout(0.2)
                sockets.append(sock)

        def greet(listener: socket.socket) -> None:
            while not ended.is_set():
                with contextlib.suppress(OSError):
                    connection, _ = listener.accept()
                    with connection:
                        connection.sendall(b"hello")

        threads = [threading.Thread(target=greet, args=(sock,)) for sock in sockets]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            ended.set()
            for thread in threads:
                thread.join()
            for sock in sockets:
                sock.close()


class Traffic:
    """Connections to service addresses without pause, from another thread, until the block ends."""

    def __init__(self, node: NodeSpace, *targets: tuple[str, int]) -> None:
        self._node = node
        self._targets = targets
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="traffic")
        self.made = 0
        self.failures: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def more(self, count: int = 50) -> None:
        """Wait until that many further connections were made."""
        goal = self.made + count
        eventually(lambda: self.made, lambda made: made >= goal)

    def _run(self) -> None:
        while not self._ended.is_set():
            for address, port in self._targets:
                trouble = self._node.trouble(address, port)
                if trouble:
                    self.failures.append(f"{address}:{port} at {time.time():.3f}: {trouble}")
                self.made += 1
            time.sleep(0.001)


@cache
def shipped_environment() -> dict[str, str]:
    """What the unit file sets, so that whole processes run in tests as they run at users' sites."""
    return dict(re.findall(r"^Environment=(\w+)=(.*)$", UNIT_FILE.read_text(), re.MULTILINE))


class NodeProcess:
    """`pointsman run` (or `kube-proxy`) in a NodeSpace, its files under `directory`."""

    def __init__(self, node: NodeSpace, directory: Path) -> None:
        self.node = node
        self.directory = directory
        self.config_file = directory / "config.yaml"
        self.manifests = directory / "manifests"
        self.state = directory / "state"
        self.log = directory / "proxy.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.manifests.mkdir(parents=True, exist_ok=True)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log_text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def configure(self, **fields: Any) -> None:
        """Write the configuration in place; fields replace the plain defaults for tests."""
        self.config_file.write_text(configuration(**fields))

    def objects(self, *items: dict[str, Any]) -> None:
        """Replace the manifests at once."""
        fresh = self.directory / "objects.new"
        fresh.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(items)}))
        fresh.replace(self.manifests / "objects.json")

    def start(
        self,
        *flags: str,
        program: str = "pointsman",
        from_api: bool = False,
        wrap: Sequence[str] = (),
        command: Sequence[str] = (),
    ) -> None:
        """`command` replaces the program itself, `wrap` goes in front of it."""
        entry = "main" if program == "pointsman" else "kube_proxy_main"
        code = f"import sys; from pointsman.cli.main import {entry}; sys.exit({entry}())"
        guard = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()
        source = () if from_api else (f"--manifests={self.manifests}",)
        arguments = (
            *guard,
            *wrap,
            *(command or (sys.executable, "-c", code)),
            *(("run",) if program == "pointsman" else ()),
            *(
                ()
                if any(flag.startswith("--config") for flag in flags)
                else (f"--config={self.config_file}",)
            ),
            *source,
            f"--state-dir={self.state}",
            "--control-socket=",
            *flags,
        )
        with self.node.namespace.entered(), self.log.open("ab") as log:
            self._process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **shipped_environment()},
            )

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def wait_exit(self, seconds: float = 60.0) -> int:
        assert self._process is not None
        return self._process.wait(seconds)

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it if it runs; the exit status."""
        if self._process is None:
            return 0
        if self.alive:
            self.send(number)
        try:
            return self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise
        finally:
            self._process = None

    def wait_synced(self, seconds: float = 40.0) -> None:
        """Until both families have been programmed once."""

        def both() -> bool:
            assert self.alive, self.log_text[-3000:]
            body = self.node.get("/healthz", HEALTH_PORT).body
            return '"IPv4"' in body and '"IPv6"' in body

        eventually(both, seconds=seconds)

    def resident_kilobytes(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1])  # type: ignore[index]

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def threads(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/task").iterdir()))


def configuration(**fields: Any) -> str:
    made: dict[str, Any] = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "hostnameOverride": "n1",
        "conntrack": {"maxPerCore": 0},
        **{section: {"minSyncPeriod": "50ms", "syncPeriod": "2s"} for section in ("iptables", "nftables")},
        **fields,
    }
    return json.dumps({name: value for name, value in made.items() if value is not None}, indent=1)


def web_service(name: str = "web", number: int = 10, **spec: Any) -> dict[str, Any]:
    """A dual-stack Service at 10.96.0.NUMBER and fd00:10:96::NUMBER."""
    addresses = [f"10.96.0.{number}", f"fd00:10:96::{number}"]
    return {
        "kind": "Service",
        "apiVersion": "v1",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "type": "ClusterIP",
            "clusterIP": addresses[0],
            "clusterIPs": addresses,
            "ipFamilies": ["IPv4", "IPv6"],
            "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": BACKEND_PORT}],
            **spec,
        },
    }


def web_slices(name: str = "web", *addresses: str, node: str = "n1", **endpoint: Any) -> list[dict[str, Any]]:
    """Slices of both families for a Service; the node's own addresses unless given."""
    made = []
    for family in (4, 6):
        mine = [a for a in addresses or (NODE_IP, NODE_IP6) if (":" in a) == (family == 6)]
        made.append(
            {
                "kind": "EndpointSlice",
                "apiVersion": "discovery.k8s.io/v1",
                "metadata": {
                    "name": f"{name}-v{family}",
                    "namespace": "default",
                    "labels": {"kubernetes.io/service-name": name},
                },
                "addressType": f"IPv{family}",
                "ports": [{"name": "http", "port": BACKEND_PORT, "protocol": "TCP"}],
                "endpoints": [
                    {"addresses": [a], "conditions": {"ready": True}, "nodeName": node, **endpoint}
                    for a in mine
                ],
            }
        )
    return made


def node_object(*addresses: str, name: str = "n1", zone: str = "zone-a", **rest: Any) -> dict[str, Any]:
    return {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {
            "name": name,
            "labels": {"topology.kubernetes.io/zone": zone},
            **rest.pop("metadata", {}),
        },
        "spec": rest,
        "status": {
            "addresses": [{"type": "InternalIP", "address": a} for a in addresses or (NODE_IP, NODE_IP6)]
        },
    }
