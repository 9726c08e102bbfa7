"""The whole process in a network namespace against an API server: start, memory, one change.

With KUBE_APISERVER_BINARY the server is a real one, over TLS (ETCD_BINARY: its etcd, else the one in the PATH); without, the
fake one of the tests. With KUBE_PROXY_BINARY a kube-proxy runs on the same objects and ratios are printed. Programs take turns;
with several rounds every figure is the median with its range.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.apiserver import PAGED, STREAMED, Server, run_server
from bench.measured import print_row, summarize
from bench.network import Network, build_node
from bench.objects import encode_service, encode_slice
from bench.proxies import (
    OURS,
    Program,
    Proxy,
    list_programs,
    prepare_proxy,
    read_memory_mib,
    read_metric,
    wait_for,
)

LARGE = "50000x2,100000x1"
SIZING = "100x10,1000x10,5000x10,10000x10"
SETTLE_SECONDS = 3
FOREIGN_RULES = 5000
PARTIAL = "kubeproxy_sync_partial_proxy_rules_duration_seconds"

Row = dict[str, Any]


def build_cluster(services: int, endpoints: int, begin: int = 1) -> list[dict[str, Any]]:
    """Services and their EndpointSlices. The address of number 0 belongs to the Service `kubernetes`."""
    numbers = range(begin, services + 1)
    made = [encode_service(index) for index in numbers] + [
        encode_slice(index, endpoints) for index in numbers
    ]
    return [json.loads(item) for item in made]


class Run:
    """One server, filled, and the programs that are measured on it."""

    def __init__(self, network: Network, server: Server, options: argparse.Namespace, size: str) -> None:
        self._network, self._server, self._options = network, server, options
        self._services, self._endpoints = map(int, size.split("x"))
        server.fill([build_node(1), *build_cluster(self._services, self._endpoints)])

    def rows(self, measured: Sequence[Program]) -> Iterator[Row]:
        rounds = [[self._one_round(program) for program in measured] for _ in range(self._options.rounds)]
        size = {"services": self._services, "endpoints": self._endpoints, "lists": self._options.lists}
        for program, found in zip(measured, zip(*rounds, strict=True), strict=True):
            yield {"program": program.name, **size, **summarize(found)}

    def _one_round(self, program: Program) -> dict[str, float]:
        with tempfile.TemporaryDirectory() as directory:
            proxy = prepare_proxy(
                *(program, self._network.add_node(1), Path(directory), self._server.render_kubeconfig()),
                *(self._options.mode, "10ms"),
            )
            try:
                return self._measure(proxy)
            finally:
                proxy.stop()

    def _measure(self, proxy: Proxy) -> dict[str, float]:
        """Time to the first complete sync, memory after it, and the sync time of single changes."""
        began = time.time()
        proxy.start()
        wait_for(proxy.synced_at, 900, "the first sync", pause=0.2)
        cpu, text = proxy.cpu(), proxy.metrics()
        time.sleep(self._options.settle)
        result = {
            "started_to_synced_s": proxy.synced_at() - began,
            "full_sync_s": read_metric(text, "kubeproxy_sync_full_proxy_rules_duration_seconds_sum"),
            "start_cpu_s": cpu,
            "rss_mib": read_memory_mib(proxy.pid),
            "peak_mib": read_memory_mib(proxy.pid, "VmHWM"),
        }
        if self._options.host_checks:
            result |= HostChecks(proxy, self._options.host_checks).measure()
        if self._services and self._options.changes:
            each = [self._change_seconds(proxy, number) for number in range(self._options.changes)]
            result["change_p50_ms"] = statistics.median(each) * 1000
        return result

    def _change_seconds(self, proxy: Proxy, number: int) -> float:
        """How long the sync of one changed endpoint took."""
        before = proxy.metrics()
        self._server.change_endpoints(self._services, self._endpoints, 0, 1, first=number)
        count = read_metric(before, f"{PARTIAL}_count")
        wait_for(
            lambda: read_metric(proxy.metrics(), f"{PARTIAL}_count") > count, 60, "a change to be synced"
        )
        return read_metric(proxy.metrics(), f"{PARTIAL}_sum") - read_metric(before, f"{PARTIAL}_sum")


class HostChecks:
    """CPU seconds per minute of an idle proxy, and of its checks of the host."""

    def __init__(self, proxy: Proxy, seconds: float) -> None:
        self._proxy, self._seconds = proxy, seconds

    def measure(self) -> dict[str, float]:
        """Measure with our rules alone, beside a chain of another program, and while that chain changes every second."""
        result = self._watch("idle", lambda: None)
        self._nft(
            f"table inet foreign {{ chain fw {{ type filter hook forward priority 0; {_foreign_rules()}\n}}\n}}\n"
        )
        result |= self._watch("beside_rules", lambda: None)
        return result | self._watch("rules_change", lambda: self._nft("add rule inet foreign fw accept"))

    def _watch(self, name: str, change: Callable[[], None]) -> dict[str, float]:
        time.sleep(2 * SETTLE_SECONDS)
        before, until = self._read(), time.monotonic() + self._seconds
        while time.monotonic() < until:
            change()
            time.sleep(1)
        whole, checks = (now - then for now, then in zip(self._read(), before, strict=True))
        per_minute = 60 / self._seconds
        return {f"{name}_cpu_s": whole * per_minute, f"{name}_checks_cpu_s": checks * per_minute}

    def _read(self) -> tuple[float, float]:
        return self._proxy.cpu(), read_metric(self._proxy.metrics(), "pointsman_host_check_seconds_total", "")

    def _nft(self, text: str) -> None:
        self._proxy.namespace.run(("nft", "-f", "-"), text)


def _foreign_rules() -> str:
    """Rules of a firewall with many exceptions."""
    return "\n".join(
        f"ip saddr 192.0.{number // 250}.{number % 250} tcp dport {1024 + number} accept"
        for number in range(FOREIGN_RULES)
    )


def compare_programs(ours: Row, theirs: Row) -> str:
    """How many times more the second program took or held at one size."""
    figures = [name for name in ours if name in theirs and isinstance(ours[name], float)]
    shown = ", ".join(f"{name} {theirs[name] / ours[name]:.1f}x" for name in figures)
    size = f"{ours['services']}x{ours['endpoints']}, {ours['lists']} lists"
    return f"{theirs['program']} / {ours['program']} at {size}: {shown}"


def add_settle(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--settle",
        type=float,
        default=SETTLE_SECONDS,
        metavar="SECONDS",
        help="from the first sync until memory is read",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", default="0x0,1000x10,10000x10")
    parser.add_argument("--lists", default=f"{STREAMED},{PAGED}", help="how the server sends lists")
    parser.add_argument(
        "--large", action="store_true", help="50,000 and 100,000 Services, without kube-proxy"
    )
    parser.add_argument(
        "--sizing", action="store_true", help="the sizes of docs/sizing.md, without kube-proxy"
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--mode", default="nftables")
    parser.add_argument("--changes", type=int, default=10)
    add_settle(parser)
    parser.add_argument(
        "--host-checks",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="measure the checks of the host for so long, three times; of ours only",
    )


def measure(measured: Sequence[Program], options: argparse.Namespace) -> tuple[str, list[list[Row]]]:
    """The name of the server, and for every size a row for each program, in order."""
    sizes: list[list[Row]] = []
    name = ""
    for lists in options.lists.split(","):
        for size in options.sizes.split(","):
            with run_server(lists) as (server, network, _):
                each = argparse.Namespace(**{**vars(options), "lists": lists})
                sizes.append(list(Run(network, server, each, size).rows(measured)))
                name = server.name
            for row in sizes[-1]:
                print_row(row)
    return name, sizes


def run(options: argparse.Namespace) -> Any:
    measured = list_programs()
    if options.large:
        options.sizes, options.lists = LARGE, STREAMED
    if options.sizing:
        options.sizes, options.lists, options.changes = SIZING, STREAMED, 0
    if options.large or options.sizing or options.host_checks:
        measured = [program for program in measured if program.name == OURS]
    name, sizes = measure(measured, options)
    if len(measured) > 1:
        for ours, theirs in sizes:
            print(compare_programs(ours, theirs))
    rows = [row for found in sizes for row in found]
    return {"server": f"{name}; load average {os.getloadavg()[0]:.1f}", "whole_process": rows}
