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
import time
from typing import Any

import msgspec
from bench.iptables import TimedCommands
from bench.objects import service_json, slice_json
from bench.uml import run_in_uml

from pointsman.backends.contract import Setup, SyncRequest
from pointsman.backends.ipvs import render
from pointsman.backends.ipvs.apply import IpvsBackend
from pointsman.backends.ipvs.preflight import prepare
from pointsman.backends.ledger import Ledger
from pointsman.config.types import KubeProxyConfiguration
from pointsman.kernel.iptables import Iptables
from pointsman.kernel.sysctl import Sysctls
from pointsman.lab.netns import Namespace
from pointsman.machine.footprint import freeze_heap
from pointsman.model.addresses import Family, cidr_from_text
from pointsman.model.node_context import LocalDetector, LocalMode, NodeContext
from pointsman.model.objects import EndpointSlice, Service
from pointsman.model.tracker import Tracker
from pointsman.sync.reconcile import Reconciler

BOOT_SECONDS = 3000
CHANGES = 11
CONTEXT = NodeContext(
    Family.IPV4, "node-0", local=LocalDetector(LocalMode.CIDR, cidr_from_text("10.128.0.0/9"))
)


class Proxy:
    """A backend over a made-up cluster, counting the programs it starts."""

    def __init__(self, services: int, endpoints: int) -> None:
        self.endpoints = endpoints
        self.commands = TimedCommands()
        self._iptables = Iptables(Family.IPV4, self.commands, variant="legacy")
        self.tracker = Tracker(Family.IPV4, "node-0")
        self.reconciler = Reconciler(IpvsBackend(Family.IPV4, self._iptables))
        for index in range(services):
            self.add(index)

    def add(self, index: int) -> None:
        self.tracker.upsert_service(msgspec.json.decode(service_json(index), type=Service))
        self.replace(index, 0)

    def replace(self, index: int, generation: int) -> None:
        text = slice_json(index, self.endpoints, generation)
        self.tracker.upsert_slice(msgspec.json.decode(text, type=EndpointSlice))

    def sync(self, *, full: bool = False) -> tuple[float, int]:
        """Seconds and started programs of one sync."""
        before, started = self.commands.count, time.perf_counter()
        self.reconciler.sync(self.tracker.take(), CONTEXT, full=full)
        return time.perf_counter() - started, self.commands.count - before

    def desired(self) -> Ledger:
        return render.build_ledger(SyncRequest(CONTEXT, self.reconciler.plans, {}), "rr")

    def drift_check(self) -> float:
        """Seconds of one look that finds nothing."""
        started = time.perf_counter()
        drift = self.reconciler.backend.drift()
        assert drift is None, drift
        return time.perf_counter() - started

    def restart(self) -> None:
        """A new process would know nothing and find everything in the kernel."""
        self.reconciler.backend.close()
        self.reconciler.backend = IpvsBackend(Family.IPV4, self._iptables)


def measure(services: int, endpoints: int) -> dict[str, object]:
    namespace = Namespace()
    namespace.run(("ip", "link", "set", "lo", "up"))
    with namespace.entered():
        prepare(Setup(KubeProxyConfiguration()), Sysctls(), tuple(Family))
        proxy = Proxy(services, endpoints)
        cold, cold_programs = proxy.sync()
        freeze_heap()
        changes = []
        for generation in range(1, CHANGES + 1):
            proxy.replace(services // 2, generation % 5 or 5)
            changes.append(proxy.sync())
        added = []
        for index in range(services, services + 3):
            proxy.add(index)
            added.append(proxy.sync())
        first_check, *checks = (proxy.drift_check() for _ in range(CHANGES))
        proxy.restart()
        restart, restart_programs = proxy.sync(full=True)
        tool = _ipvsadm_seconds(proxy)
    namespace.close()
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


def _ipvsadm_seconds(proxy: Proxy) -> float:
    """How long ipvsadm takes for the servers alone, which our cold sync makes besides sets, addresses and rules."""
    text = render.servers_text(proxy.desired())
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
            from bench.kube_proxy_ipvs import measure_kube_proxy

            rows.append(measure_kube_proxy(options.kube_proxy, services, endpoints))
    return rows
