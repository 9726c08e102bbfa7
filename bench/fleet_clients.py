"""The proxies of bench.fleet: our clients in a few processes, or whole kube-proxies."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any, Protocol

from bench.apiserver import TOKEN

from pointsman.lab.netns import Namespace

WORKERS = 2
KUBE_PROXY_METRICS = 20000


class Fleet(Protocol):
    """Some proxies that are started together."""

    program: str
    format: str
    size: int

    def start(self) -> None: ...
    def synced(self) -> bool: ...
    def reports(self) -> list[dict[str, Any]]: ...
    def close(self) -> None: ...


class OurClients:
    program = "pointsman"

    def __init__(self, url: str, form: str, size: int, nodes: Namespace, work: Path) -> None:
        self.format, self.size = form, size
        shares = [size // WORKERS + (number < size % WORKERS) for number in range(WORKERS)]
        command = [sys.executable, "-m", "bench.fleet_worker", "--server", url, "--format", form, "--clients"]
        with nodes.entered(), (work / "clients.log").open("ab") as log:
            self._workers = [
                subprocess.Popen(
                    [*command, str(share)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
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

    program, format = "kube-proxy", "protobuf"

    def __init__(self, url: str, size: int, nodes: Namespace, work: Path) -> None:
        self.size, self._nodes = size, nodes
        server: dict[str, Any] = {"server": url}
        if url.startswith("https"):
            server["insecure-skip-tls-verify"] = True
        (work / "kubeconfig").write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "c", "cluster": server}],
                    "users": [{"name": "u", "user": {"token": TOKEN}}],
                    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                    "current-context": "x",
                }
            )
        )
        self._work = work
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        for number in range(self.size):
            config = self._work / f"kube-proxy-{number}.json"
            config.write_text(json.dumps(self._config(number)))
            with (self._work / f"kube-proxy-{number}.log").open("wb") as log:
                command = [os.environ["KUBE_PROXY_BINARY"], "--config", str(config)]
                with self._nodes.entered():
                    self._processes.append(subprocess.Popen(command, stdout=log, stderr=log))

    def _config(self, number: int) -> dict[str, Any]:
        return {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "hostnameOverride": "n1",
            "clusterCIDR": "10.128.0.0/9",
            "healthzBindAddress": "",
            "metricsBindAddress": f"127.0.0.1:{KUBE_PROXY_METRICS + number}",
            "conntrack": {"maxPerCore": 0},
            "clientConnection": {"kubeconfig": str(self._work / "kubeconfig")},
            "nftables": {"minSyncPeriod": "60s", "syncPeriod": "1h"},
        }

    def synced(self) -> bool:
        """Each has synced once, which it does when its lists are complete."""
        pattern = re.compile(r'last_timestamp_seconds\{ip_family="IPv4"\} [1-9]')
        return all(pattern.search(self._metrics(number)) for number in range(self.size))

    def _metrics(self, number: int) -> str:
        url = f"http://127.0.0.1:{KUBE_PROXY_METRICS + number}/metrics"
        with (
            self._nodes.entered(),
            contextlib.suppress(OSError),
            urllib.request.urlopen(url, timeout=5) as answer,
        ):
            return str(answer.read().decode())
        return ""

    def reports(self) -> list[dict[str, Any]]:
        return []

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
