"""The proxies of bench.fleet: our clients in a few processes, or whole kube-proxies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.apiserver import Server
from bench.network import Network
from bench.proxies import Program, Proxy, render_config

from pointsman.lab.netns import Namespace

HTTP1, HTTP2 = "HTTP/1.1", "HTTP/2"
WORKERS = 2


class OurClients:
    """Our clients in a few processes, started together."""

    program = "pointsman"

    def __init__(self, url: str, protocol: str, size: int, nodes: Namespace, work: Path) -> None:
        self.protocol, self.size = protocol, size
        shares = [size // WORKERS + (number < size % WORKERS) for number in range(WORKERS)]
        command = [sys.executable, "-m", "bench.fleet_worker", "--server", url, "--clients"]
        environment = {**os.environ, "DISABLE_HTTP2": "1" if protocol == HTTP1 else ""}
        with nodes.entered(), (work / "clients.log").open("ab") as log:
            self._workers = [
                subprocess.Popen(
                    [*command, str(share)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env=environment,
                )
                for share in shares
                if share
            ]
        for worker in self._workers:
            self._line(worker)

    @staticmethod
    def _line(worker: subprocess.Popen[str]) -> str:
        assert worker.stdout is not None
        return worker.stdout.readline()

    def _say(self, word: str) -> None:
        for worker in self._workers:
            assert worker.stdin is not None
            worker.stdin.write(f"{word}\n")
            worker.stdin.flush()

    def start(self) -> None:
        self._say("go")

    def reports(self) -> list[dict[str, Any]]:
        self._say("report")
        return [report for worker in self._workers for report in json.loads(self._line(worker))]

    def synced(self) -> bool:
        return all(report["synced"] and report["connected"] for report in self.reports())

    def close(self) -> None:
        for worker in self._workers:
            assert worker.stdin is not None
            worker.stdin.close()
            worker.kill()
            worker.wait()


class KubeProxies:
    """Whole processes that rarely sync: only what they ask of the server is wanted."""

    program, protocol = "kube-proxy", HTTP2

    def __init__(self, server: Server, size: int, network: Network, work: Path) -> None:
        self.size = size
        (work / "kubeconfig").write_text(server.render_kubeconfig())
        program = Program(self.program, (os.environ["KUBE_PROXY_BINARY"],))
        text = render_config(work / "kubeconfig", minSyncPeriod="60s")
        self._proxies = [
            Proxy(program, network.add_node(number), work / f"kube-proxy-{number}", text, os.environ)
            for number in range(2, size + 2)
        ]

    def start(self) -> None:
        for proxy in self._proxies:
            proxy.start()

    def synced(self) -> bool:
        """Each has synced once, which it does when its lists are complete."""
        return all(proxy.synced_at() for proxy in self._proxies)

    def reports(self) -> list[dict[str, Any]]:
        return []

    def close(self) -> None:
        for proxy in self._proxies:
            proxy.stop()


Fleet = OurClients | KubeProxies
