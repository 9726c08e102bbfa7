"""nftables mode at scale: cold start, restart over existing rules, one endpoint replaced, added, removed.

Every size runs in a process and a network namespace of its own. Times are from objects in memory (cold, restart) or
from the received bytes of a watch event (changes) until the kernel has committed. With KUBE_PROXY_BINARY set to the
path of a kube-proxy, both programs then run side by side on the same objects (bench.process).
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from bench.measured import compute_percentile, print_table, run_child
from bench.objects import encode_service, encode_slice
from bench.proxies import read_memory_mib

from pointsman.backends.contract import SyncRequest
from pointsman.backends.nftables.apply import NftablesBackend
from pointsman.lab.netns import Namespace
from pointsman.machine.settings import freeze_heap, trim_heap
from pointsman.model.addresses import Family, cidr_from_text
from pointsman.model.node_context import LocalDetector, LocalMode, NodeContext, NodePortAddresses
from pointsman.model.objects import EndpointSlice, Service
from pointsman.model.tracker import Tracker
from pointsman.sync.reconcile import Reconciler, SyncOutcome

CONTEXT = NodeContext(
    Family.IPV4,
    "node-0",
    node_ips=(b"\xac\x1e\x00\x0a",),
    local=LocalDetector(LocalMode.CIDR, cidr_from_text("10.128.0.0/9")),
    node_port_addresses=NodePortAddresses(match_all=False, addresses=(b"\xac\x1e\x00\x0a",)),
)
TARGETS = "targets: 10k x 10 cold and restart below 1 s, change p50 below 5 ms"


def read_kernel_kb() -> int:
    """Unreclaimable slab and vmalloc of the whole machine: only meaningful while nothing else runs on it."""
    found = dict(re.findall(r"(\w+):\s+(\d+) kB", Path("/proc/meminfo").read_text()))
    return int(found["SUnreclaim"]) + int(found["VmallocUsed"])


def measure_time(action: Callable[[], Any]) -> tuple[float, float]:
    """Wall and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - wall, time.process_time() - cpu


class Cluster:
    """A made-up cluster in memory and the proxy over it."""

    def __init__(
        self,
        services: int,
        endpoints: int,
        *,
        metrics: bool,
        annotations: Mapping[str, str] | None = None,
        annotated: int = 0,
    ) -> None:
        """The first `annotated` Services carry the annotations."""
        self.services, self.endpoints, self.metrics = services, endpoints, metrics
        self._annotations, self._annotated = annotations, annotated
        self.tracker = self._tracker()
        self.backend = NftablesBackend(Family.IPV4, service_metrics=metrics)
        self.reconciler = Reconciler(self.backend)

    def _tracker(self) -> Tracker:
        tracker = Tracker(Family.IPV4, "node-0")
        services = msgspec.json.Decoder(Service)
        slices = msgspec.json.Decoder(EndpointSlice)
        for index in range(self.services):
            asked = self._annotations if index < self._annotated else None
            tracker.upsert_service(services.decode(encode_service(index, asked)))
            tracker.upsert_slice(slices.decode(encode_slice(index, self.endpoints)))
        return tracker

    def restart(self) -> None:
        """A new process would begin like this: nothing remembered, the kernel's table full."""
        self.backend.close()
        self.tracker = self._tracker()
        self.backend = NftablesBackend(Family.IPV4, service_metrics=self.metrics)
        self.reconciler = Reconciler(self.backend)

    def load(self) -> SyncOutcome:
        return self.reconciler.sync(self.tracker.take(), CONTEXT, full=True)

    def event(self, data: bytes) -> tuple[float, float]:
        """Wall and CPU seconds from the bytes of a watch event to the committed kernel."""

        def handle() -> None:
            self.tracker.upsert_slice(msgspec.json.decode(data, type=EndpointSlice))
            self.reconciler.sync(self.tracker.take(), CONTEXT)

        return measure_time(handle)


def measure(services: int, endpoints: int, changes: int, *, metrics: bool) -> dict[str, float]:
    before = read_kernel_kb()
    cluster = Cluster(services, endpoints, metrics=metrics)
    gc.collect()
    gc.freeze()
    cold = measure_time(cluster.load)
    memory = read_kernel_kb() - before
    resident = read_memory_mib()
    gc.freeze()
    choose = random.Random(1)
    result: dict[str, float] = {}

    def batch(name: str, data: Callable[[int, int], bytes]) -> list[int]:
        chosen = [choose.randrange(services) for _ in range(changes)]
        times = [cluster.event(data(index, number)) for number, index in enumerate(chosen)]
        wall, cpu = [t[0] * 1000 for t in times], [t[1] * 1000 for t in times]
        result[f"{name}_p50_ms"], result[f"{name}_p99_ms"] = (
            compute_percentile(wall, 0.5),
            compute_percentile(wall, 0.99),
        )
        result[f"{name}_cpu_p50_ms"] = compute_percentile(cpu, 0.5)
        return chosen

    batch("replace", lambda index, number: encode_slice(index, endpoints, 1 + number % 4))
    removed = set(batch("remove", lambda index, _: encode_slice(index, endpoints - 1)))
    for index in removed:
        cluster.event(encode_slice(index, endpoints))
    batch("add", lambda index, number: encode_slice(index, endpoints + 1 + number % 2))
    cluster.restart()
    gc.collect()
    restart = measure_time(cluster.load)
    cluster.backend.close()
    return {
        "cold_s": cold[0],
        "cold_cpu_s": cold[1],
        "restart_s": restart[0],
        "restart_cpu_s": restart[1],
        **result,
        "kernel_mib": memory / 1024,
        "rss_mib": resident,
    }


def measure_drift(services: int, endpoints: int, external_commits: int = 40) -> dict[str, float]:
    """CPU time of a drift check while nothing happens and after an external commit, and of the comparison that follows."""
    cluster = Cluster(services, endpoints, metrics=False)
    cluster.load()
    freeze_heap()

    def check() -> float:
        before = time.process_time()
        found = cluster.backend.find_drift()
        assert found is None, found
        return (time.process_time() - before) * 1000

    idle = [check() for _ in range(100)]
    after_commits = []
    for _ in range(external_commits):
        commit_other_family()
        after_commits.append(check())
    resident = read_memory_mib()
    taken = cluster.reconciler.snapshot()
    prepared = measure_time(lambda: cluster.reconciler.prepare_comparison(taken, CONTEXT, None))
    comparison = cluster.reconciler.prepare_comparison(taken, CONTEXT, None)
    Path("/proc/self/clear_refs").write_text("5")
    compared = measure_time(comparison.differences)
    peak = read_memory_mib(what="VmHWM")
    trim_heap()
    after = read_memory_mib()
    cluster.backend.close()
    return {
        "idle_cpu_ms": compute_percentile(idle, 0.5),
        "after_external_commit_cpu_p50_ms": compute_percentile(after_commits, 0.5),
        "prepare_comparison_cpu_ms": prepared[1] * 1000,
        "comparison_cpu_s": compared[1],
        "comparison_peak_mib": peak - resident,
        "comparison_kept_mib": after - resident,
    }


def commit_other_family() -> None:
    """Increment the ruleset generation, so that the next drift check compares definitions."""
    other = NftablesBackend(Family.IPV6)
    other.sync(SyncRequest(NodeContext(Family.IPV6, "node-0"), {}, {}, full=True))
    other.close()


def create_namespace() -> Namespace:
    namespace = Namespace()
    for command in (
        "link set lo up",
        "link add eth0 type veth peer name wire",
        "link set eth0 up",
        "link set wire up",
        "address add 172.30.0.10/24 dev eth0",
        "route add default via 172.30.0.1",
    ):
        namespace.run(["ip", *command.split()])
    return namespace


def run_one(options: argparse.Namespace) -> None:
    """The part that runs in a process of its own and prints one JSON object."""
    services, endpoints = map(int, options.one.split("x"))
    namespace = create_namespace()
    with namespace.entered():
        if options.drift:
            row = measure_drift(services, endpoints)
        else:
            row = measure(services, endpoints, options.changes, metrics=options.service_metrics)
    print(json.dumps({"services": services, "endpoints": endpoints, **row}))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", default="1000x10,10000x10,5000x50,50000x5")
    parser.add_argument("--changes", type=int, default=500)
    parser.add_argument("--drift", action="store_true", help="only looking for external changes")
    parser.add_argument("--service-metrics", action="store_true", help="with counters on the elements")
    parser.add_argument("--one", help=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> Any:
    if options.one:
        run_one(options)
        return None
    flags = ["--changes", str(options.changes)]
    flags += ["--drift"] if options.drift else []
    flags += ["--service-metrics"] if options.service_metrics else []
    rows = []
    for size in options.sizes.split(","):
        row = run_child("nftables", "--one", size, *flags)
        rows.append({**row, "load_average": round(os.getloadavg()[0], 1)})
    print_table(rows)
    if not options.drift:
        print(TARGETS)
    return {"backend": rows}
