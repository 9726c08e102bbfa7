"""Node n1 alone: a lab of one host, the proxy as a process on it, and connections to its Services."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.harness.kube_objects import BACKEND_PORT
from tests.harness.metrics import read_metric
from tests.harness.waiting import wait_until

from pointsman.lab import HOSTS, Cluster, Outcome, Probe
from pointsman.lab.probe import LONG_TIMEOUT_SECONDS, Kind, TrafficGenerator, connect
from pointsman.lab.proxy import ProxyProcess
from pointsman.lab.proxy import configuration as lab_configuration
from pointsman.obs.slow_callbacks import MESSAGE, VARIABLE

NODE_IP = HOSTS["n1"].ipv4
NODE_IP6 = HOSTS["n1"].ipv6
SECOND_IP = "172.30.0.11"
HEALTH_PORT = 10256
METRICS_PORT = 10249
UNIT_FILE = Path(__file__).parents[2] / "deploy/systemd/pointsman.service"
MAX_CALLBACK_MS = 100
"""CPU time that one callback of the event loop may take: probes wait for it."""
MISSES = 3
"""Timeouts in a row after which an address counts as unreachable. One could be a slow machine."""

needs_root = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces and netfilter"),
]


class Answer:
    """An HTTP answer; status 0 without a connection."""

    def __init__(self, status: int, body: str, headers: dict[str, str]) -> None:
        self.status = status
        self.body = body
        self.headers = headers

    def __repr__(self) -> str:
        return f"{self.status} {self.body[:300]}"


class NodeTraffic(TrafficGenerator):
    """Connections from the node to service addresses, repeated until the block ends."""

    def more(self, count: int = 50) -> None:
        """Wait for that many further connections."""
        goal = self.made + count
        wait_until(lambda: self.made, lambda made: made >= goal)


class LabNode:
    """A lab with host n1 only. n1 has a second address, and backends on port 8080 of its own addresses."""

    def __init__(self) -> None:
        self.cluster = Cluster(("n1",))
        self.namespace = self.cluster["n1"]
        self.run("ip", "address", "add", f"{SECOND_IP}/24", "dev", "eth0")

    def close(self) -> None:
        self.cluster.close()

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
        return read_metric(self.get("/metrics").body, name, **labels)

    def connect(self, address: str, port: int = 80, timeout: float = LONG_TIMEOUT_SECONDS) -> Outcome:
        return connect(self.cluster, Probe("n1", address, port), timeout)

    def assert_served(self, *addresses: str, port: int = 80) -> None:
        """One connection to each address is answered, without a lost packet."""
        for address in addresses:
            outcome = self.connect(address, port)
            assert outcome.lossless, f"{address}:{port}: {outcome}, {outcome.retransmissions} retransmissions"

    def wait_served(self, address: str, port: int = 80, seconds: float = 30.0) -> None:
        wait_until(lambda: self.connect(address, port, 0.5), lambda outcome: outcome.lossless, seconds)

    def is_unreachable(self, address: str, port: int = 80) -> bool:
        """Whether a connection is refused or several time out in a row."""
        for _ in range(MISSES):
            outcome = self.connect(address, port, 1.0)
            if outcome.kind is not Kind.TIMED_OUT:
                return outcome.kind is not Kind.ANSWERED
        return True

    def wait_unreachable(self, address: str, port: int = 80, seconds: float = 30.0) -> None:
        wait_until(lambda: self.is_unreachable(address, port), seconds=seconds)

    def traffic(self, *targets: tuple[str, int]) -> NodeTraffic:
        return NodeTraffic(self.cluster, [Probe("n1", address, port) for address, port in targets])

    @contextlib.contextmanager
    def backend(self, *addresses: str) -> Iterator[None]:
        """Serve these addresses, or those of the node, until the block ends."""
        name = ",".join(addresses) or "n1"
        with self.namespace.entered():
            self.cluster.servers.listen(name, addresses or (NODE_IP, NODE_IP6), BACKEND_PORT)
        try:
            yield
        finally:
            self.cluster.servers.stop(name)


@cache
def shipped_environment() -> dict[str, str]:
    """Return the environment of the unit file, so that processes run in tests as they run on users' nodes."""
    return dict(re.findall(r"^Environment=(\w+)=(.*)$", UNIT_FILE.read_text(), re.MULTILINE))


class NodeProcess(ProxyProcess):
    """`pointsman run` or `kube-proxy` on a Node, its files under `directory`."""

    def __init__(self, node: LabNode, directory: Path) -> None:
        super().__init__(node.cluster, directory)
        self.node = node
        self.state = directory / "state"

    def configure(self, **fields: Any) -> None:
        """Write the configuration in place. Fields replace the defaults of tests."""
        self.config_file.write_text(configuration(**fields))

    def objects(self, *items: dict[str, Any]) -> None:
        """Replace the manifests at once."""
        self.write_objects(items)

    def start(
        self,
        *flags: str,
        program: str = "pointsman",
        from_api: bool = False,
        wrap: Sequence[str] = (),
        command: Sequence[str] = (),
    ) -> None:
        """Start it. `command` replaces the program itself, `wrap` goes in front of it."""
        entry = "main" if program == "pointsman" else "kube_proxy_main"
        code = f"import sys; from pointsman.cli.main import {entry}; sys.exit({entry}())"
        arguments = [*wrap, *(command or (sys.executable, "-c", code))]
        if program == "pointsman":
            arguments.append("run")
        if not any(flag.startswith("--config") for flag in flags):
            arguments.append(f"--config={self.config_file}")
        if not from_api:
            arguments.append(f"--manifests={self.manifests}")
        arguments += [f"--state-dir={self.state}", "--control-socket=", *flags]
        self.start_command(arguments, {**shipped_environment(), VARIABLE: str(MAX_CALLBACK_MS)})

    def find_slow_callbacks(self) -> list[str]:
        """Return the lines of the log about callbacks that kept the event loop busy for too long."""
        return [line for line in self.log_text.splitlines() if MESSAGE in line]

    def wait_synced(self, seconds: float = 40.0) -> None:
        """Wait until both families have been programmed once."""

        def has_both_families() -> bool:
            self.check_alive()
            body = self.node.get("/healthz", HEALTH_PORT).body
            return '"IPv4"' in body and '"IPv6"' in body

        wait_until(has_both_families, seconds=seconds)

    def resident_kilobytes(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1])  # type: ignore[index]

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def threads(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/task").iterdir()))


def configuration(mode: str | None = "nftables", **fields: Any) -> str:
    """Return the text of a configuration: that of the lab, with shorter periods and without cluster ranges."""
    periods = {section: {"syncPeriod": "2s"} for section in ("iptables", "nftables")}
    made = lab_configuration(mode or "", **{"clusterCIDR": None, **periods, **fields})
    if mode is None:
        del made["mode"]
    return json.dumps(made, indent=1)
