"""iptables mode at scale: full and partial syncs, how much of their time is ours, and kube-proxy beside them.

Runs as root in namespaces of its own, IPv4 only. "Ours" is everything but the time in which iptables programs run: planning,
compiling, joining, reading the saved tables. A partial sync replaces one endpoint of one service. A round is a first sync,
changes, and a restart over the rules that are there, each proxy in a fresh namespace; kube-proxy's rounds alternate with
ours and go first every other time, so that a busy machine is busy for both, and ratios are taken within a round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from bench.kube_proxy import measure_iptables
from bench.measured import read_children_cpu
from bench.objects import encode_service, encode_slice

from pointsman.backends.contract import Backend
from pointsman.backends.iptables.apply import IptablesBackend
from pointsman.backends.netfilter.runners import find_nft_ruleset
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
LOOKS = 5
ROUNDS = 3
USUAL = (1000, 10)
LARGE = (5000, 5)
"""iptables-nft needs most of a minute for a single sync of these: only legacy iptables is measured with them."""
COMPARED = ("first_s", "restart_s", "endpoint_s", "service_s")
Row = dict[str, object]
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


class MeasuredProxy:
    """One proxy over a made-up cluster; every sync yields total seconds and our own."""

    def __init__(self, services: int, endpoints: int, variant: str) -> None:
        self.endpoints = endpoints
        self.commands = TimedCommands()
        self.tracker = Tracker(Family.IPV4, "node-0")
        self.variant = variant
        self.reconciler = Reconciler(self.build_backend())
        for index in range(services):
            self.add(index)

    def add(self, index: int) -> None:
        self.tracker.upsert_service(msgspec.json.decode(encode_service(index), type=Service))
        self.replace_slice(index, 0)

    def build_backend(self) -> Backend:
        runner = Iptables(Family.IPV4, self.commands, variant=self.variant)
        return IptablesBackend(
            Family.IPV4, runner=runner, sysctls=Sysctls(), ruleset=find_nft_ruleset(runner)
        )

    def replace_slice(self, index: int, generation: int) -> None:
        data = encode_slice(index, self.endpoints, generation)
        self.tracker.upsert_slice(msgspec.json.decode(data, type=EndpointSlice))

    def sync(self, *, full: bool = False) -> Sample:
        return self._timed(lambda: self.reconciler.sync(self.tracker.take(), CONTEXT, full=full))

    def look(self) -> Sample:
        """What `SecondLook` has done every few minutes."""
        comparison = self.reconciler.prepare_comparison(self.reconciler.snapshot(), CONTEXT)

        def differences() -> None:
            found = comparison.differences()
            assert not found, found[0]

        return self._timed(differences)

    def _timed(self, work: Callable[[], object]) -> Sample:
        self.commands.seconds = 0.0
        programs, python, started = read_children_cpu(), time.process_time(), time.perf_counter()
        work()
        total = time.perf_counter() - started
        return (
            total,
            total - self.commands.seconds,
            time.process_time() - python,
            read_children_cpu() - programs,
        )

    def foreign_change(self, number: int) -> None:
        subprocess.run([f"iptables-{self.variant}", "-t", "nat", "-N", f"OTHER-{number}"], check=True)

    def restart(self) -> None:
        """A new process would know nothing and find everything in the kernel."""
        self.reconciler.backend.close()
        self.reconciler.backend = self.build_backend()


def measure(services: int, endpoints: int, variant: str) -> dict[str, float]:
    """One round of ours."""
    measured = MeasuredProxy(services, endpoints, variant)
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
        measured.add(index)
        added.append(measured.sync())
    row: dict[str, float] = {}
    for name, samples in (
        ("first", [cold]),
        ("full", [again]),
        ("restart", [restarted]),
        ("endpoint", partial),
        ("service", added),
    ):
        total, ours, python, programs = (statistics.median(column) for column in zip(*samples, strict=True))
        row[f"{name}_s"] = total
        row[f"{name}_cpu_s"] = python + programs
        row[f"{name}_ours_s"] = ours
        row[f"{name}_ours_percent"] = 100 * ours / total
    return row


def measure_looks(services: int, endpoints: int, variant: str) -> dict[str, float]:
    """Comparisons after an external change, and comparisons without one."""
    measured = MeasuredProxy(services, endpoints, variant)
    measured.sync()
    changed, unchanged = [], []
    for number in range(LOOKS):
        measured.foreign_change(number)
        changed.append(measured.look())
        unchanged.append(measured.look())
    row: dict[str, float] = {}
    for name, samples in (("look", changed), ("unchanged", unchanged)):
        total, ours, python, programs = (statistics.median(column) for column in zip(*samples, strict=True))
        row |= {f"{name}_s": total, f"{name}_ours_s": ours, f"{name}_cpu_s": python + programs}
    return row


def rounds_of(
    services: int, endpoints: int, variant: str, kube_proxy: str, rounds: int
) -> dict[str, list[dict[str, float]]]:
    """What each program needed in each round."""
    found: dict[str, list[dict[str, float]]] = {"pointsman": [], **({"kube-proxy": []} if kube_proxy else {})}
    for number in range(rounds):
        for program in sorted(found, reverse=number % 2 == 0):
            with tempfile.TemporaryDirectory() as name, fresh_namespace() as namespace:
                directory = Path(name)
                os.environ["XTABLES_LOCKFILE"] = str(directory / "xtables.lock")
                found[program].append(
                    measure(services, endpoints, variant)
                    if program == "pointsman"
                    else measure_iptables(namespace, kube_proxy, (services, endpoints), variant, directory)
                )
    return found


@contextmanager
def fresh_namespace() -> Iterator[Namespace]:
    """A namespace with loopback and without IPv6, to time one family."""
    namespace = Namespace()
    namespace.run(["ip", "link", "set", "lo", "up"])
    namespace.write_sysctls({"net/ipv6/conf/all/disable_ipv6": "1"})
    with namespace.entered():
        yield namespace
    namespace.close()


def _medians(rounds: Sequence[Mapping[str, float]]) -> Row:
    return {
        name: round(statistics.median(one[name] for one in rounds), 1 if name.endswith("_percent") else 4)
        for name in rounds[0]
    }


def _ratios(ours: Sequence[Mapping[str, float]], theirs: Sequence[Mapping[str, float]]) -> Row:
    """How many times as long as ours kube-proxy's take: the median round and the least and the most of all."""
    row: Row = {}
    for name in COMPARED:
        each = [their[name] / our[name] for our, their in zip(ours, theirs, strict=True)]
        what = name.removesuffix("_s")
        row[what] = round(statistics.median(each), 2)
        row[f"{what}_least"], row[f"{what}_most"] = round(min(each), 2), round(max(each), 2)
    return row


def looks(sizes: Sequence[tuple[int, int]], variants: Sequence[str]) -> Any:
    rows: list[Row] = []
    for services, endpoints in sizes:
        for variant in variants:
            with tempfile.TemporaryDirectory() as name, fresh_namespace():
                os.environ["XTABLES_LOCKFILE"] = str(Path(name) / "xtables.lock")
                found = measure_looks(services, endpoints, variant)
            what: Row = {"variant": variant, "services": services, "endpoints": endpoints}
            rows.append({**what, **_medians([found])})
            print(json.dumps(rows[-1]), flush=True)
    note = (
        f"medians of {LOOKS} looks at load average {os.getloadavg()[2]:.1f}; look: after an external change;"
        " unchanged: right after such a look; ours: without the time in which iptables-save runs; cpu: of both"
    )
    return {"looks": rows, "note": note}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--services", type=int)
    parser.add_argument("--endpoints", type=int, default=10)
    parser.add_argument("--variant", choices=["nft", "legacy"], action="append")
    parser.add_argument("--large", action="store_true", help="5k x 5 with legacy iptables as well")
    parser.add_argument("--looks", action="store_true", help="only the comparison in the background")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--kube-proxy", default=os.environ.get("KUBE_PROXY_BINARY", ""), help="its binary")


def run(options: argparse.Namespace) -> Any:
    if os.geteuid() != 0:
        sys.exit("network namespaces need root")
    variants = options.variant or ["legacy", "nft"]
    size = (options.services, options.endpoints) if options.services else USUAL
    if options.looks:
        return looks([size] if options.services else [USUAL, LARGE], variants)
    wanted = [(*size, variant) for variant in variants]
    if options.large:
        wanted.append((*LARGE, "legacy"))
    syncs: list[Row] = []
    side_by_side: list[Row] = []
    ratios: list[Row] = []
    for services, endpoints, variant in wanted:
        found = rounds_of(services, endpoints, variant, options.kube_proxy, options.rounds)
        what: Row = {"variant": variant, "services": services, "endpoints": endpoints}
        syncs.append({"program": "pointsman", **what, **_medians(found["pointsman"])})
        rows = [syncs[-1]]
        if options.kube_proxy:
            for program, rounds in found.items():
                medians = _medians(rounds)
                side_by_side.append(
                    {"program": program, **what, **{name: medians[name] for name in COMPARED}}
                )
            ratios.append({**what, **_ratios(found["pointsman"], found["kube-proxy"])})
            rows += [side_by_side[-1], ratios[-1]]
        for row in rows:
            print(json.dumps(row), flush=True)
    note = (
        f"medians of {options.rounds} rounds at load average {os.getloadavg()[2]:.1f}; endpoint and service are partial"
        " syncs; kube-proxy is timed by its own metrics, in rounds that alternate with ours; a ratio is how many times as"
        " long as ours it takes in the same round"
    )
    return {"syncs": syncs, "side_by_side": side_by_side, "ratios": ratios, "note": note}
