"""The real kube-proxy in iptables or ipvs mode over the same made-up cluster, timed by its own metrics."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.apiserver import render_kubeconfig
from bench.network import build_node
from bench.objects import encode_service, encode_slice
from bench.proxies import Program, Proxy, read_metric, render_config, run_process, wait_for

from pointsman.lab.netns import Namespace

_API_PORT = 8099
_MANIFEST_API = Path(__file__).resolve().parents[1] / "tests" / "harness" / "manifest_api.py"
_TIMEOUT_SECONDS = 2400
_NODE = "node-0"
_FULL = "kubeproxy_sync_full_proxy_rules_duration_seconds"
_PARTIAL = "kubeproxy_sync_partial_proxy_rules_duration_seconds"
_ANY = "kubeproxy_sync_proxy_rules_duration_seconds"

Sample = tuple[float, float]
"""Sum of seconds and number of syncs so far."""


class KubeProxyRun:
    """One kube-proxy in a namespace, with an API server that follows a manifest file."""

    def __init__(
        self, namespace: Namespace, binary: str, mode: str, variant: str, size: tuple[int, int], work: Path
    ) -> None:
        services, self._endpoints = size
        self._namespace, self._objects = namespace, work / "objects.json"
        self._generations = [0] * services
        self._write()
        file = work / "kubeconfig"
        file.write_text(render_kubeconfig(f"http://127.0.0.1:{_API_PORT}"))
        environment = os.environ | {"PATH": f"{link_programs(work, variant)}:{os.environ['PATH']}"}
        settings = json.loads(render_config(file, mode, _NODE, minSyncPeriod="1ms"))
        settings["clientConnection"]["contentType"] = "application/json"
        program = Program("kube-proxy", (binary,))
        self._proxy = Proxy(program, namespace, work, json.dumps(settings), environment)

    @contextlib.contextmanager
    def serve_objects(self) -> Iterator[None]:
        command = [sys.executable, str(_MANIFEST_API), str(_API_PORT), str(self._objects)]
        with self._namespace.entered(), run_process(command, self._objects.with_name("api.log")):
            yield

    @contextlib.contextmanager
    def run(self) -> Iterator[None]:
        self._proxy.start()
        try:
            yield
        finally:
            self._proxy.stop()

    def change(self, generation: int) -> None:
        """Replace an endpoint of the Service in the middle."""
        self._generations[len(self._generations) // 2] = generation
        self._write()

    def add(self) -> None:
        """Add a Service."""
        self._generations.append(0)
        self._write()

    def wait_for(self, name: str, count: float, pause: float = 0.05) -> Sample:
        """Return the sample once there are so many syncs."""
        wait_for(lambda: self._sample(name)[1] >= count, _TIMEOUT_SECONDS, f"{count:.0f} syncs", pause)
        return self._sample(name)

    def settle(self, name: str, count: float, pause: float) -> Sample:
        """Return the sample once there are so many syncs, and two samples with a pause between them agree."""
        before = self.wait_for(name, count, pause)
        time.sleep(pause)
        while before != (now := self._sample(name)):
            before = now
            time.sleep(pause)
        return now

    def _sample(self, name: str) -> Sample:
        text = self._proxy.metrics()
        return read_metric(text, f"{name}_sum"), read_metric(text, f"{name}_count")

    def _write(self) -> None:
        items = [build_node(1, "127.0.0.1") | {"metadata": {"name": _NODE}}]
        for index, generation in enumerate(self._generations):
            items += [
                json.loads(encode_service(index)),
                json.loads(encode_slice(index, self._endpoints, generation)),
            ]
        temporary = self._objects.with_suffix(".new")
        temporary.write_text(json.dumps({"items": items}))
        temporary.replace(self._objects)


def measure_iptables(
    namespace: Namespace, binary: str, size: tuple[int, int], variant: str, work: Path
) -> dict[str, float]:
    """Return seconds of the first (full) sync, of partial ones and of the first after a restart."""
    proxy = KubeProxyRun(namespace, binary, "iptables", variant, size, work)
    with proxy.serve_objects():
        with proxy.run():
            total, count = proxy.wait_for(_FULL, 1)
            first = total / count
            settled = proxy.settle(_PARTIAL, 0, 0.5)
            partial = []
            for generation in range(1, 6):
                proxy.change(generation)
                now = proxy.wait_for(_PARTIAL, settled[1] + 1)
                partial.append(now[0] - settled[0])
                settled = now
            proxy.add()
            added = proxy.wait_for(_PARTIAL, settled[1] + 1)[0] - settled[0]
        with proxy.run():
            total, count = proxy.wait_for(_FULL, 1)
    return {
        "first_s": first,
        "restart_s": total / count,
        "endpoint_s": statistics.median(partial),
        "service_s": added,
    }


def measure_ipvs(namespace: Namespace, binary: str, size: tuple[int, int], work: Path) -> dict[str, float]:
    """Return seconds of the first sync and of one with a replaced endpoint."""
    proxy = KubeProxyRun(namespace, binary, "ipvs", "legacy", size, work)
    changes = []
    with proxy.serve_objects(), proxy.run():
        settled = first = proxy.settle(_ANY, 1, 2)
        for generation in range(1, 4):
            proxy.change(generation)
            now = proxy.settle(_ANY, settled[1] + 1, 2)
            changes.append(now[0] - settled[0])
            settled = now
    return {"first_s": first[0], "endpoint_s": statistics.median(changes)}


def link_programs(directory: Path, variant: str) -> Path:
    """Return a directory whose `iptables` and so on are of this variant, for the front of PATH."""
    programs = directory / f"programs-{variant}"
    programs.mkdir(exist_ok=True)
    multi = shutil.which(f"xtables-{variant}-multi", path="/usr/sbin:/sbin")
    if multi is None:
        raise SystemExit(f"xtables-{variant}-multi is not installed")
    for name in ("iptables", "ip6tables"):
        for suffix in ("", "-save", "-restore"):
            link = programs / f"{name}{suffix}"
            link.unlink(missing_ok=True)
            link.symlink_to(multi)
    return programs
