"""iptables mode at scale: full and partial syncs, and how much of their time is ours.

    python -m bench.iptables                          1k x 10 and 5k x 5, both variants
    python -m bench.iptables --services 1000 --endpoints 10 --variant legacy
    python -m bench.iptables --kube-proxy PATH        the real one beside ours, where its binary is given

Runs as root in namespaces of its own. "Ours" is everything but the time in which iptables programs run: planning,
compiling, joining, reading the saved tables. A partial sync replaces one endpoint of one service.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from bench.kube_proxy_iptables import measure_kube_proxy
from bench.objects import service_json, slice_json

from pointsman.backends.iptables.apply import IptablesBackend
from pointsman.kernel.command import CommandResult, SystemCommands
from pointsman.kernel.iptables import Iptables
from pointsman.kernel.sysctl import Sysctls
from pointsman.lab.netns import Namespace
from pointsman.model.addresses import Family, cidr_from_text
from pointsman.model.node_context import LocalDetector, LocalMode, NodeContext
from pointsman.model.objects import EndpointSlice, Service
from pointsman.model.tracker import Tracker
from pointsman.sync.reconcile import Reconciler

CONTEXT = NodeContext(
    Family.IPV4,
    "node-0",
    local=LocalDetector(LocalMode.CIDR, cidr_from_text("10.128.0.0/9")),
)
PARTIAL_SYNCS = 11
Sample = tuple[float, float, float, float]
"""Seconds in all, seconds in which no program ran, and processor seconds of ours and of the programs."""


class TimedCommands:
    """Runs programs and adds up how long they took."""

    def __init__(self) -> None:
        self._system = SystemCommands()
        self.seconds = 0.0
        self.count = 0

    def run(self, arguments: Sequence[str], *, stdin: bytes = b"", timeout: float = 30.0) -> CommandResult:
        started = time.perf_counter()
        try:
            return self._system.run(arguments, stdin=stdin, timeout=timeout)
        finally:
            self.seconds += time.perf_counter() - started
            self.count += 1


class Measured:
    """One proxy over a made-up cluster; every sync yields total seconds and our own."""

    def __init__(self, services: int, endpoints: int, variant: str) -> None:
        self.endpoints = endpoints
        self.commands = TimedCommands()
        self.tracker = Tracker(Family.IPV4, "node-0")
        self.variant = variant
        self.reconciler = Reconciler(self.new_backend())
        for index in range(services):
            self.tracker.service_upserted(msgspec.json.decode(service_json(index), type=Service))
            self.replace_slice(index, 0)

    def new_backend(self) -> IptablesBackend:
        runner = Iptables(Family.IPV4, self.commands, variant=self.variant)
        return IptablesBackend(Family.IPV4, runner=runner, sysctls=Sysctls())

    def replace_slice(self, index: int, generation: int) -> None:
        data = slice_json(index, self.endpoints, generation)
        self.tracker.slice_upserted(msgspec.json.decode(data, type=EndpointSlice))

    def sync(self, *, full: bool = False) -> Sample:
        self.commands.seconds = 0.0
        programs, python, started = _children_cpu(), time.process_time(), time.perf_counter()
        self.reconciler.sync(self.tracker.take(), CONTEXT, full=full)
        total = time.perf_counter() - started
        return total, total - self.commands.seconds, time.process_time() - python, _children_cpu() - programs

    def restart(self) -> None:
        """A new process would know nothing and find everything in the kernel."""
        self.reconciler.backend = self.new_backend()


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(services: int, endpoints: int, variant: str) -> dict[str, object]:
    measured = Measured(services, endpoints, variant)
    cold = measured.sync()
    again = measured.sync(full=True)
    partial = []
    for generation in range(1, PARTIAL_SYNCS + 1):
        measured.replace_slice(services // 2, generation % 5 or 5)
        partial.append(measured.sync())
    measured.restart()
    restarted = measured.sync(full=True)
    added = []
    for index in range(services, services + 3):
        measured.tracker.service_upserted(msgspec.json.decode(service_json(index), type=Service))
        measured.replace_slice(index, 0)
        added.append(measured.sync())
    row: dict[str, object] = {
        "proxy": "pointsman",
        "variant": variant,
        "cluster": f"{services} x {endpoints}",
    }
    for name, samples in (
        ("first", [cold]),
        ("full", [again]),
        ("restart", [restarted]),
        ("endpoint", partial),
        ("service", added),
    ):
        total, ours, python, programs = (statistics.median(column) for column in zip(*samples, strict=True))
        row[f"{name}_s"] = round(total, 4)
        row[f"{name}_cpu_s"] = round(python + programs, 4)
        row[f"{name}_ours_s"] = round(ours, 4)
        row[f"{name}_ours_percent"] = round(100 * ours / total, 1)
    return row


def in_namespace(services: int, endpoints: int, variant: str, kube_proxy: str) -> list[dict[str, object]]:
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        os.environ["XTABLES_LOCKFILE"] = str(Path(directory) / "xtables.lock")
        for kind in ("pointsman", "kube-proxy") if kube_proxy else ("pointsman",):
            namespace = Namespace()
            namespace.run(["ip", "link", "set", "lo", "up"])
            with namespace.entered():
                if kind == "pointsman":
                    rows.append(measure(services, endpoints, variant))
                else:
                    rows.append(measure_kube_proxy(kube_proxy, services, endpoints, variant, Path(directory)))
            namespace.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--services", type=int)
    parser.add_argument("--endpoints", type=int, default=10)
    parser.add_argument("--variant", choices=["nft", "legacy"], action="append")
    parser.add_argument("--kube-proxy", default="", help="path of a kube-proxy binary to run beside ours")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("network namespaces need root")
    sizes = [(options.services, options.endpoints)] if options.services else [(1000, 10), (5000, 5)]
    rows = []
    for services, endpoints in sizes:
        for variant in options.variant or ["legacy", "nft"]:
            for row in in_namespace(services, endpoints, variant, options.kube_proxy):
                rows.append(row)
                print(json.dumps(row), flush=True)
    if options.json:
        found = {
            "syncs": [row for row in rows if row["program"] == "pointsman"],
            "side_by_side": [_seconds_only(row) for row in rows] if options.kube_proxy else [],
            "note": f"load average {os.getloadavg()[2]:.1f}; endpoint and service are partial syncs",
        }
        options.json.write_text(json.dumps(found, indent=1) + "\n")


def _seconds_only(row: dict[str, object]) -> dict[str, object]:
    names = ("program", "variant", "services", "endpoints", "first_s", "endpoint_s", "service_s")
    return {name: row[name] for name in names}


if __name__ == "__main__":
    main()
