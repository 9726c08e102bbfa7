"""Network programming latency on many nodes: whole proxies, each in a network namespace, against one API server.

Nodes are what SIG Scalability measures: the time from the trigger time of an EndpointSlice to the rules in the kernel, by each
proxy's own metric, 99th percentile per proxy, then the 99th percentile over all proxies. After the changes come a restart of
all proxies in batches, a restart of the API server and a node that is cut off; with --soak a long run of changes with a restart of
the API server in its middle. *machine busy* is the share of all processors that was used, by anything: near 100 % the machine is the
limit and the row says nothing about the proxy.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.apiserver import Server, run_server
from bench.measured import compute_percentile, print_row
from bench.network import Network, build_node
from bench.process import build_cluster
from bench.proxies import (
    OURS,
    Histogram,
    Program,
    Proxy,
    compile_modules,
    list_programs,
    read_cpu_seconds,
    read_histogram,
    read_memory_mib,
    render_config,
    wait_for,
)

TIMEOUT_SECONDS = 900.0
LATE_SECONDS = 30.0
"""So long after the last change, proxies that have not counted all of them are waited for."""
LATENCIES = ("pointsman_programming_latency_seconds", "kubeproxy_network_programming_duration_seconds")
"""The first one that a proxy has: ours has buckets from a millisecond, that of kube-proxy from 250 ms."""
DOWN_SECONDS = 2.0
SOAK_RATE = 10.0
Row = dict[str, Any]


class Usage(NamedTuple):
    """Processor seconds: of all proxies, of the API server, and the busy and all seconds of the machine."""

    proxies: float
    server: float
    busy: float
    all: float


class Nodes:
    """Proxies of one program, each on a node of its own."""

    def __init__(self, program: Program, size: int, network: Network, server: Server, work: Path) -> None:
        self.program, self._server, self._network = program, server, network
        (work / "kubeconfig").write_text(server.render_kubeconfig())
        environment = compile_modules(work / "compiled", program.source)
        self.proxies = [
            Proxy(
                program,
                network.add_node(number),
                work / f"n{number}",
                render_config(work / "kubeconfig", node=f"n{number}"),
                environment,
            )
            for number in range(1, size + 1)
        ]

    def usage(self) -> Usage:
        fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        tick = os.sysconf("SC_CLK_TCK")
        idle = fields[3] + fields[4]
        cpu = sum(proxy.cpu() for proxy in self.proxies)
        return Usage(cpu, read_cpu_seconds(self._server.pid), (sum(fields) - idle) / tick, sum(fields) / tick)

    def latencies(self) -> list[Histogram]:
        return [read_latency(proxy.metrics()) for proxy in self.proxies]

    def start(self, batch: Sequence[Proxy]) -> None:
        """Start them, or start them again, and wait until each has synced."""
        for proxy in batch:
            proxy.stop()
            proxy.start()
        wait_for(
            lambda: all(proxy.synced_at() for proxy in batch), TIMEOUT_SECONDS, "the first syncs", pause=0.5
        )

    def memory(self) -> Row:
        return {
            "proxies_mb": sum(read_memory_mib(proxy.pid, "Pss") for proxy in self.proxies) * 1.048576,
            "server_mb": read_memory_mib(self._server.pid) * 1.048576,
        }

    def differing(self) -> int:
        """How many nodes miss rules or have others, by our own verify; kube-proxy has no such command."""
        command = [sys.executable, "-m", "pointsman", "verify", "--control-socket"]
        return sum(
            subprocess.run([*command, str(proxy.control)], capture_output=True, check=False).returncode != 0
            for proxy in self.proxies
        )

    def close(self) -> None:
        for number, proxy in enumerate(self.proxies, 1):
            proxy.stop()
            self._network.remove_node(number)


def read_latency(text: str) -> Histogram:
    found = (read_histogram(text, name) for name in LATENCIES)
    return next((each for each in found if each.bounds), Histogram())


def summarize_latencies(found: Sequence[Histogram], changes: int) -> Row:
    """SIG Scalability's figure and what else is said of the latencies that the proxies counted."""
    return {
        "mean_ms": 1000 * statistics.fmean(each.mean for each in found),
        "p99_ms": 1000 * compute_percentile([each.quantile(0.99) for each in found], 0.99),
        "all_within_s": max(each.quantile(1.0) for each in found),
        "counted_percent": 100 * sum(each.count for each in found) / (changes * len(found)),
    }


def compute_usage(before: Usage, after: Usage) -> Row:
    return {
        "proxies_cpu_s": after.proxies - before.proxies,
        "server_cpu_s": max(0.0, after.server - before.server),
        "machine_busy_percent": 100 * (after.busy - before.busy) / (after.all - before.all),
    }


class Slo:
    """What is measured of one set of nodes."""

    def __init__(self, nodes: Nodes, server: Server, network: Network, services: int, endpoints: int) -> None:
        self._nodes, self._server, self._network = nodes, server, network
        self._services, self._endpoints = services, endpoints
        self._made = 0
        """Changes of endpoints so far."""
        self._named = {
            "program": nodes.program.name,
            "nodes": len(nodes.proxies),
            "services": services,
            "endpoints": endpoints,
        }

    @contextlib.contextmanager
    def _measured(self, row: Row) -> Iterator[None]:
        """Fill the row with the time and the processor time of what happens inside."""
        before, began = self._nodes.usage(), time.monotonic()
        yield
        row["took_s"] = time.monotonic() - began
        row |= compute_usage(before, self._nodes.usage())

    def _change(self, rate: float, count: int) -> None:
        self._server.change_endpoints(self._services, self._endpoints, rate, count)
        self._made += count

    def start(self) -> Row:
        row = {**self._named}
        with self._measured(row):
            self._nodes.start(self._nodes.proxies)
        return row | self._nodes.memory()

    def changes(self, rate: float, seconds: float) -> Row:
        """Latencies of changes at a steady rate; without changes, only what is used."""
        count = int(rate * seconds)
        row = {**self._named, "changes_per_second": rate}
        before = self._nodes.latencies()
        with self._measured(row):
            if not count:
                time.sleep(seconds)
                return row
            began = time.monotonic()
            self._change(rate, count)
            row["made_per_second"] = count / (time.monotonic() - began)
        return row | self._summarize_since(before, count)

    def _summarize_since(self, before: Sequence[Histogram], count: int) -> Row:
        """Latencies of the last `count` changes, once every proxy has counted them or is late."""
        found: list[Histogram] = []

        def counted() -> bool:
            after = self._nodes.latencies()
            found[:] = [now.since(was) for now, was in zip(after, before, strict=True)]
            return all(each.count >= count for each in found)

        with contextlib.suppress(SystemExit):
            wait_for(counted, LATE_SECONDS, "changes to be counted", pause=1)
        return summarize_latencies(found, count)

    def rolling_restart(self) -> Row:
        """A tenth of the proxies at a time."""
        proxies = self._nodes.proxies
        size = max(1, len(proxies) // 10)
        row = {**self._named, "event": f"restart of all proxies, {size} at a time"}
        with self._measured(row):
            for first in range(0, len(proxies), size):
                self._nodes.start(proxies[first : first + size])
        return row

    def server_restart(self) -> Row:
        """The server is killed; all are back when a change made afterwards is in every kernel."""
        row = {**self._named, "event": "restart of the API server"}
        before = self._nodes.latencies()
        with self._measured(row):
            self._server.stop()
            time.sleep(DOWN_SECONDS)
            self._server.start()
            self._server.wait_until_ready()
            row["after_s"] = self._until_changed(before, self._nodes.proxies)
        row["server_cpu_s"] = read_cpu_seconds(self._server.pid)
        return row

    def cut_off(self, seconds: float) -> Row:
        """One node loses its network while endpoints change; it is back when a later change is in its kernel."""
        row = {**self._named, "event": f"a node cut off for {seconds:.0f} s"}
        first = self._nodes.proxies[:1]
        before = [read_latency(first[0].metrics())]
        with self._measured(row):
            self._network.connect(1, connected=False)
            self._change(1, int(seconds))
            self._network.connect(1, connected=True)
            row["after_s"] = self._until_changed(before, first)
        return row

    def soak(self, seconds: float) -> Row:
        """Changes at a steady rate with a restart of the API server in the middle; memory before and after."""
        half = int(SOAK_RATE * seconds / 2)
        row = {**self._named, "changes_per_second": SOAK_RATE}
        row |= {f"{name}_before": value for name, value in self._nodes.memory().items()}
        before, made = self._nodes.latencies(), self._made
        with self._measured(row):
            self._change(SOAK_RATE, half)
            row["after_restart_s"] = self.server_restart()["after_s"]
            self._change(SOAK_RATE, half)
        return row | self._summarize_since(before, self._made - made) | self._nodes.memory()

    def _until_changed(self, before: Sequence[Histogram], proxies: Sequence[Proxy]) -> float:
        """Seconds until each has programmed something new; there is something new from now on."""
        began = time.monotonic()
        waiting = dict(enumerate(proxies))

        def back() -> bool:
            self._change(0, 1)
            for number, proxy in list(waiting.items()):
                if read_latency(proxy.metrics()).count > before[number].count:
                    del waiting[number]
            return not waiting

        wait_for(back, TIMEOUT_SECONDS, "the proxies to be back", pause=0.5)
        return time.monotonic() - began


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--kube-proxies", type=int, default=20, help="how many of them, 0 for none")
    parser.add_argument("--services", default="100,1000,10000")
    parser.add_argument("--endpoints", type=int, default=10)
    parser.add_argument("--rates", default="0,1,10,50", help="changes per second")
    parser.add_argument("--seconds", type=float, default=30, help="of each rate")
    parser.add_argument(
        "--cut", type=float, default=300, help="seconds that a node is cut off, 0 to leave it out"
    )
    parser.add_argument(
        "--soak", type=float, default=0, help="seconds of the long run at the end, 0 to leave it out"
    )


def measure(nodes: Nodes, slo: Slo, options: argparse.Namespace, tables: dict[str, list[Row]]) -> None:
    def add(table: str, row: Row) -> None:
        tables[table].append({**row, "load": os.getloadavg()[0]})
        print_row(row)

    add("start", slo.start())
    for rate in map(float, options.rates.split(",")):
        add("changes", slo.changes(rate, options.seconds))
    events: list[Callable[[], Row]] = [slo.rolling_restart, slo.server_restart]
    if options.cut:
        events.append(lambda: slo.cut_off(options.cut))
    for event in events:
        add("events", event())
    if options.soak:
        add("soak", slo.soak(options.soak))
    if nodes.program.name == OURS:
        last = tables["soak" if options.soak else "events"][-1]
        last["nodes_differing_at_the_end"] = nodes.differing()


def run(options: argparse.Namespace) -> Any:
    tables: dict[str, list[Row]] = {"start": [], "changes": [], "events": [], "soak": []}
    with run_server() as (server, network, directory):
        server.fill([build_node(number) for number in range(1, options.nodes + 1)])
        filled = 0
        for services in map(int, options.services.split(",")):
            server.fill(build_cluster(services, options.endpoints, begin=filled + 1))
            filled = services
            for program in list_programs():
                size = options.nodes if program.name == OURS else options.kube_proxies
                if not size:
                    continue
                work = directory / f"{program.name}-{services}"
                work.mkdir()
                with contextlib.closing(Nodes(program, size, network, server, work)) as nodes:
                    measure(nodes, Slo(nodes, server, network, services, options.endpoints), options, tables)
    return {"server": f"{server.name}, {os.cpu_count()} processors for everything", **tables}
