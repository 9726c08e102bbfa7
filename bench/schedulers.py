"""Cost of schedulers: the table and its load when none, some or all Services hash, and one change for each scheduler.

Every row is measured in a process and a network namespace of its own. Loads are from objects in memory, changes from
the bytes of a watch event, until the kernel has committed. `reweigh` is a change of shares, as slow start and
least-connections make it. A reading of connections is what least-connections does every few seconds.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
from collections.abc import Callable
from functools import partial
from typing import Any

from bench.measured import compute_percentile, run_child
from bench.nftables import CONTEXT, Cluster, create_namespace, measure_time, read_kernel_kb
from bench.objects import compute_endpoint_address, compute_service_address, encode_slice
from bench.proxies import read_memory_mib
from tests.kernel.conntrack_flows import add_flows

from pointsman.kernel.tracked_flows import Flow
from pointsman.model.addresses import Family, address_from_text
from pointsman.model.service import Protocol, ServicePortName
from pointsman.node.share_adjuster import count_open_connections

SCHEDULER = "pointsman.dev/scheduler"
USERS_OF_CHANGES = 100
_ASKED = {
    "weighted": {"pointsman.dev/weights": "zone/zone-0=3"},
    "slow-start": {"pointsman.dev/slow-start": "30s"},
}
"""The annotations of what is no scheduler by name."""
FLOWS_PER_SERVICE = 500


def measure_table(services: int, endpoints: int, users: int) -> dict[str, Any]:
    """Load and restart when so many Services use source-hash."""
    before = read_kernel_kb()
    cluster = Cluster(
        services, endpoints, metrics=False, annotations={SCHEDULER: "source-hash"}, annotated=users
    )
    gc.collect()
    gc.freeze()
    outcomes = []
    cold = measure_time(lambda: outcomes.append(cluster.load()))
    memory, resident = read_kernel_kb() - before, read_memory_mib()
    cluster.restart()
    gc.collect()
    restart = measure_time(cluster.load)
    report = outcomes[0].report
    cluster.backend.close()
    return {
        "services": services,
        "endpoints": endpoints,
        "using_source_hash": users,
        "elements": sum(report.rules_total.values()),
        "batch_mb": report.batch_bytes / 1e6,
        "cold_s": cold[0],
        "cold_cpu_s": cold[1],
        "restart_s": restart[0],
        "restart_cpu_s": restart[1],
        "kernel_mib": memory / 1024,
        "rss_mib": resident,
    }


def measure_changes(services: int, endpoints: int, count: int, scheduler: str) -> dict[str, Any]:
    """Endpoint changes of the Services that use the scheduler, among many that do not."""
    users = min(USERS_OF_CHANGES, services)
    asked = _ASKED.get(scheduler) or {SCHEDULER: scheduler}
    cluster = Cluster(services, endpoints, metrics=False, annotations=asked, annotated=users)
    cluster.load()
    gc.collect()
    gc.freeze()
    choose = random.Random(1)
    row: dict[str, Any] = {"scheduler": scheduler, "services": services, "endpoints": endpoints}

    def measured(name: str, action: Callable[[int, int], tuple[float, float]], turns: int = 1) -> None:
        """Every chosen Service has as many turns in a row."""
        chosen = [choose.randrange(users) for _ in range(count // turns)]
        times = [action(index, turn + turns * at) for at, index in enumerate(chosen) for turn in range(turns)]
        row[f"{name}_p50_ms"] = compute_percentile([wall * 1000 for wall, _ in times], 0.5)
        row[f"{name}_cpu_p50_ms"] = compute_percentile([cpu * 1000 for _, cpu in times], 0.5)

    def reweigh(index: int, number: int) -> tuple[float, float]:
        name = ServicePortName("default", f"service-{index}", "http", Protocol.TCP)
        address = address_from_text(compute_endpoint_address(index, 1))
        assert address is not None

        def act() -> None:
            cluster.tracker.set_shares(name, {(address, 8080): 10 + 10 * (number % 8)})
            cluster.reconciler.sync(cluster.tracker.take(), CONTEXT)

        return measure_time(act)

    measured("replace", lambda index, number: cluster.event(encode_slice(index, endpoints, 1 + number % 4)))
    measured("scale", lambda index, number: cluster.event(encode_slice(index, endpoints - 1 + number % 2)), 2)
    if scheduler in ("slow-start", "least-connections"):
        measured("reweigh", reweigh)
    cluster.backend.close()
    return row


def measure_reading(services: int, endpoints: int, count: int) -> dict[str, Any]:
    """Counting the connections of some Services while the table is full of those of others."""
    users = min(USERS_OF_CHANGES, services)
    cluster = Cluster(services, endpoints, metrics=False)
    client = address_from_text("172.30.0.99")
    assert client is not None
    flows = []
    for index in range(users * 2):
        to, by = (
            address_from_text(compute_service_address(index)),
            address_from_text(compute_endpoint_address(index, 0)),
        )
        assert to is not None
        assert by is not None
        flows += [
            Flow(6, client, 1024 + number, to, 80, by, 8080, client, 1024 + number, b"")
            for number in range(FLOWS_PER_SERVICE)
        ]
    add_flows(Family.IPV4, flows)
    names = [*cluster.tracker.states][:users]
    states = {name: cluster.tracker.states[name] for name in names}
    one = dict([next(iter(states.items()))])
    row: dict[str, Any] = {"tracked_flows": len(flows)}
    for label, asked in (("one_service", one), (f"{users}_services", states)):
        times = [measure_time(partial(count_open_connections, Family.IPV4, asked)) for _ in range(count)]
        row[f"{label}_p50_ms"] = compute_percentile([wall * 1000 for wall, _ in times], 0.5)
        row[f"{label}_cpu_p50_ms"] = compute_percentile([cpu * 1000 for _, cpu in times], 0.5)
    return row


def run_one(options: argparse.Namespace) -> None:
    """The part that runs in a process of its own and prints one JSON object."""
    services, endpoints = map(int, options.size.split("x"))
    kind, _, value = options.one.partition("=")
    with create_namespace().entered():
        if kind == "table":
            row = measure_table(services, endpoints, int(value))
        elif kind == "change":
            row = measure_changes(services, endpoints, options.changes, value)
        else:
            row = measure_reading(services, endpoints, 20)
    print(json.dumps(row))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", default="10000x10")
    parser.add_argument("--users", default="0,100,10000")
    parser.add_argument("--changes", type=int, default=200)
    parser.add_argument("--one", help=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> Any:
    if options.one:
        run_one(options)
        return None

    def measured(*parts: str) -> list[dict[str, Any]]:
        rows = []
        for part in parts:
            flags = ["--size", options.size, "--changes", str(options.changes)]
            row = run_child("schedulers", "--one", part, *flags)
            rows.append({**row, "load_average": round(os.getloadavg()[0], 1)})
            print(rows[-1], flush=True)
        return rows

    names = ("random", "weighted", "slow-start", "least-connections", "source-hash", "source-port-hash")
    return {
        "whole_table": measured(*(f"table={users}" for users in options.users.split(","))),
        "one_change": measured(*(f"change={name}" for name in names)),
        "reading_connections": measured("reading"),
    }
