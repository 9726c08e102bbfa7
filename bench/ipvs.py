"""ipvs mode at scale, in User-mode Linux: full, restart and one-change syncs, beside `ipvsadm -R`.

Boots User-mode Linux (root, package user-mode-linux): one CPU, system calls many times slower than on hardware.
Compare the columns, not the seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.iptables import CONTEXT, MeasuredProxy, fresh_namespace
from bench.kube_proxy import measure_ipvs
from bench.uml import run_in_uml

from pointsman.backends.contract import Setup, SyncRequest
from pointsman.backends.ipvs import render
from pointsman.backends.ipvs.apply import IpvsBackend
from pointsman.backends.ipvs.mode import prepare
from pointsman.backends.ledger import Ledger
from pointsman.config.types import KubeProxyConfiguration
from pointsman.kernel.iptables import Iptables
from pointsman.kernel.sysctl import Sysctls
from pointsman.machine.settings import freeze_heap
from pointsman.model.addresses import Family

BOOT_SECONDS = 3000
CHANGES = 11


class Proxy(MeasuredProxy):
    """The same in ipvs mode, counting the programs it starts."""

    def build_backend(self) -> IpvsBackend:
        return IpvsBackend(Family.IPV4, Iptables(Family.IPV4, self.commands, variant=self.variant))

    def count_sync(self, *, full: bool = False) -> tuple[float, int]:
        """Return seconds and started programs of one sync."""
        before = self.commands.count
        return self.sync(full=full)[0], self.commands.count - before

    def desired(self) -> Ledger:
        return render.build_ledger(SyncRequest(CONTEXT, self.reconciler.plans, {}), "rr")

    def drift_check(self) -> float:
        """Return the seconds of one check that finds nothing."""
        started = time.perf_counter()
        drift = self.reconciler.backend.find_drift()
        assert drift is None, drift
        return time.perf_counter() - started


def measure(services: int, endpoints: int) -> dict[str, object]:
    with fresh_namespace():
        prepare(Setup(KubeProxyConfiguration()), Sysctls(), tuple(Family))
        proxy = Proxy(services, endpoints, "legacy")
        cold, cold_programs = proxy.count_sync()
        freeze_heap()
        changes = []
        for generation in range(1, CHANGES + 1):
            proxy.replace_slice(services // 2, generation % 5 or 5)
            changes.append(proxy.count_sync())
        added = []
        for index in range(services, services + 3):
            proxy.add(index)
            added.append(proxy.count_sync())
        first_check, *checks = (proxy.drift_check() for _ in range(CHANGES))
        proxy.restart()
        restart, restart_programs = proxy.count_sync(full=True)
        tool = _ipvsadm_seconds(proxy)
    operations = services * (1 + endpoints)
    return {
        "proxy": "pointsman",
        "cluster": f"{services} x {endpoints}",
        "cold s": round(cold, 3),
        "cold programs": cold_programs,
        "cold server operations/s": round(operations / cold),
        "endpoint ms": round(1000 * statistics.median(seconds for seconds, _ in changes), 2),
        "endpoint programs": max(count for _, count in changes),
        "service ms": round(1000 * statistics.median(seconds for seconds, _ in added), 2),
        "drift check ms": round(1000 * statistics.median(checks), 1),
        "drift check after changes ms": round(1000 * first_check, 1),
        "restart s": round(restart, 3),
        "restart programs": restart_programs,
        "ipvsadm -R s": round(tool, 3),
        "ipvsadm -R operations/s": round(operations / tool),
    }


def measure_kube_proxy(binary: str, services: int, endpoints: int) -> dict[str, object]:
    with fresh_namespace() as namespace, tempfile.TemporaryDirectory() as name:
        found = measure_ipvs(namespace, binary, (services, endpoints), Path(name))
    return {
        "proxy": "kube-proxy",
        "cluster": f"{services} x {endpoints}",
        "cold s": round(found["first_s"], 3),
        "endpoint ms": round(1000 * found["endpoint_s"], 2),
    }


def _ipvsadm_seconds(proxy: Proxy) -> float:
    """How long ipvsadm takes for the servers alone, which our cold sync makes besides sets, addresses and rules."""
    text = render.render_servers(proxy.desired())
    subprocess.run(("ipvsadm", "-C"), check=True)
    started = time.perf_counter()
    subprocess.run(("ipvsadm", "-R"), input=text, text=True, check=True)
    return time.perf_counter() - started


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--services", type=int)
    parser.add_argument("--endpoints", type=int, default=5)
    parser.add_argument(
        "--kube-proxy",
        default=os.environ.get("KUBE_PROXY_BINARY", ""),
        help="its binary, outside of /tmp and /run",
    )
    parser.add_argument(
        "--kube-proxy-max",
        type=int,
        default=1000,
        help="Services beyond which it takes too long and is left out",
    )
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> Any:
    sizes = [(options.services, options.endpoints)] if options.services else [(1000, 5), (10000, 5)]
    if not options.inside:
        size = ["--services", str(options.services)] if options.services else []
        arguments = ["--inside", *size, "--endpoints", str(options.endpoints)]
        arguments += ["--kube-proxy", options.kube_proxy, "--kube-proxy-max", str(options.kube_proxy_max)]
        rows = run_in_uml("ipvs", arguments, timeout=BOOT_SECONDS)
        for row in rows:
            print(json.dumps(row))
        return rows
    rows = []
    for services, endpoints in sizes:
        rows.append(measure(services, endpoints))
        if options.kube_proxy and services <= options.kube_proxy_max:
            rows.append(measure_kube_proxy(options.kube_proxy, services, endpoints))
    return rows
