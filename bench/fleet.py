"""Load of a fleet of proxies on one API server: the first list, a watch, and reconnecting after a restart of the server.

Clients are our real ones without a kernel behind them, once with HTTP/2 and once with HTTP/1.1; with KUBE_PROXY_BINARY set, some
kube-proxies follow. With KUBE_APISERVER_BINARY set and etcd installed the server is a real one. The server and the clients live
in two network namespaces with a wire between them; bytes are those of the packets the server sends over it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.apiserver import PAGED, STREAMED, Object, Server, run_server
from bench.fleet_clients import HTTP1, HTTP2, Fleet, KubeProxies, OurClients
from bench.fleet_figures import Reading, compute_per_proxy, compute_returns, find_busiest_second, project_rows
from bench.measured import print_row
from bench.network import SERVER_PORT, build_node
from bench.process import build_cluster
from bench.proxies import read_cpu_seconds, read_memory_mib

TIMEOUT_SECONDS = 150.0
QUIET_SECONDS = 1.5
DOWN_SECONDS = 2.0
IDLE_SECONDS = 8.0
RETURN_SECONDS = 6.0
"""At least so long the return of a fleet is watched; the pauses of most proxies are over by then."""
COUNTER = f"""\
table inet bench {{
    chain sent {{
        type filter hook output priority 0;
        oifname "bridge" tcp sport {SERVER_PORT} counter
    }}
}}
"""


class FleetRun:
    """One server, filled, and what is measured of it."""

    def __init__(self, server: Server, services: int, endpoints: int, events: int, rate: float) -> None:
        self._server, self._services, self._endpoints = server, services, endpoints
        self._events, self._rate = events, rate
        self._cpu_of_events = self._cpu_of_start = 0.0
        self._idle = self._idle_share()
        self._fresh = self.reading()

    def reading(self) -> Reading:
        shown = subprocess.run(
            ["nft", "list", "table", "inet", "bench"], capture_output=True, text=True, check=True
        )
        found = re.search(r"bytes (\d+)", shown.stdout)
        pid = self._server.pid
        return Reading(
            time.monotonic(),
            int(found[1]) if found else 0,
            read_cpu_seconds(pid),
            read_memory_mib(pid),
            sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()),
        )

    def _idle_share(self) -> float:
        """Processor seconds per second that the server spends on itself."""
        before = self.reading()
        time.sleep(IDLE_SECONDS)
        after = self.reading()
        return (after.cpu - before.cpu) / (after.at - before.at)

    def _spent(self, before: Reading, after: Reading) -> float:
        """Processor seconds between two readings, beyond those of an idle server."""
        return after.cpu - before.cpu - self._idle * (after.at - before.at)

    def quiet(self) -> Reading:
        """The reading once the server has nothing more to send."""
        reading, since = self.reading(), time.monotonic()
        while time.monotonic() - since < TIMEOUT_SECONDS:
            time.sleep(QUIET_SECONDS)
            now = self.reading()
            if now.sent - reading.sent < 20_000:
                return now
            reading = now
        return reading

    def _change(self) -> None:
        self._server.change_endpoints(self._services, self._endpoints, self._rate, self._events)

    def first_list(self, fleet: Fleet) -> dict[str, Any]:
        before = self.reading()
        fleet.start()
        took = _wait_for(fleet.synced)
        after = self.quiet()
        idle = self._idle_share() - self._idle
        return {
            **_named(fleet),
            "services": self._services,
            "endpoints": self._endpoints,
            "all_synced_s": took,
            **compute_per_proxy(before, after, self._spent(before, after), fleet.size),
            **_held(before, after, fleet),
            "idle_cpu_per_second_us": max(0.0, idle) * 1e6 / fleet.size,
        }

    def watch(self, fleet: Fleet) -> dict[str, Any]:
        seen = sum(report["slices"] for report in fleet.reports())
        before = self.reading()
        self._change()
        after = self.quiet()
        spent = self._spent(before, after) - self._cpu_of_events
        row = {
            **_named(fleet),
            "events": self._events,
            **compute_per_proxy(before, after, spent, fleet.size * self._events),
        }
        if fleet.reports():
            got = sum(report["slices"] for report in fleet.reports()) - seen
            row["delivered_percent"] = 100 * got / (self._events * fleet.size)
        return row

    def without_proxies(self) -> None:
        """So that every fleet has a fresh server, and what it spends without any proxy is known."""
        self._cpu_of_start = self._restarted()[2]
        self._idle = self._idle_share()
        before = self.reading()
        self._change()
        self._fresh = self.quiet()
        self._cpu_of_events = self._spent(before, self._fresh)

    def restart(self, fleet: Fleet) -> dict[str, Any]:
        before = fleet.reports()
        began, stopped = self.reading(), time.monotonic()
        ready, after, spent = self._restarted(lambda: all(report["connected"] for report in fleet.reports()))
        row: dict[str, Any] = {**_named(fleet), "ready_after_s": ready - stopped}
        if reports := fleet.reports():
            row |= compute_returns(stopped, [report["answers"] for report in reports])
            times = [[*report["answers"], *report["failures"]] for report in reports]
            failed = sum(at >= stopped for report in reports for at in report["failures"])
            row["failed_attempts"] = failed / fleet.size
            row["busiest_second"] = find_busiest_second(at for each in times for at in each if at >= stopped)
            row["lists_again"] = (_lists(reports) - _lists(before)) / fleet.size
        return (
            row
            | compute_per_proxy(began, after, spent - self._cpu_of_start, fleet.size)
            | _held(self._fresh, after, fleet)
        )

    def _restarted(self, recovered: Callable[[], bool] = lambda: True) -> tuple[float, Reading, float]:
        """When the server was ready again, the reading afterwards, and the processor seconds between."""
        pid, cpu = self._server.pid, self.reading().cpu
        self._server.stop()
        time.sleep(DOWN_SECONDS)
        self._server.start()
        self._server.wait_until_ready()
        ready = time.monotonic()
        time.sleep(RETURN_SECONDS)
        _wait_for(recovered)
        after = self.quiet()
        same = pid == self._server.pid
        return ready, after, after.cpu - (cpu if same else 0.0) - self._idle * (after.at - ready)


def _held(before: Reading, after: Reading, fleet: Fleet) -> dict[str, float]:
    """What the server holds more than before, for one proxy."""
    return {
        "server_memory_kb": (after.rss_mib - before.rss_mib) * 1048.576 / fleet.size,
        "descriptors": (after.descriptors - before.descriptors) / fleet.size,
    }


def _lists(reports: list[dict[str, Any]]) -> int:
    return sum(report["lists"] for report in reports)


def _named(fleet: Fleet) -> dict[str, Any]:
    return {"program": fleet.program, "protocol": fleet.protocol, "proxies": fleet.size}


def _wait_for(condition: Callable[[], bool]) -> float:
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > TIMEOUT_SECONDS:
            print("timeout: some proxies were not ready", file=sys.stderr)
            break
        time.sleep(0.2)
    return time.monotonic() - began


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--lists", default=STREAMED, help=f"how the server sends them: {STREAMED} or {PAGED}")
    parser.add_argument("--size", default="1000x10")
    parser.add_argument("--events", type=int, default=200)
    parser.add_argument("--rate", type=float, default=50)
    parser.add_argument("--kube-proxies", type=int, default=8)


def run(options: argparse.Namespace) -> Any:
    services, endpoints = map(int, options.size.split("x"))
    objects: list[Object] = [build_node(1), *build_cluster(services, endpoints)]
    tables: dict[str, list[dict[str, Any]]] = {"first_list": [], "watch": [], "restart_of_the_server": []}
    with run_server(options.lists) as (server, network, directory):
        network.control.run(["nft", "-f", "-"], COUNTER)
        nodes = network.add_node(1)
        kinds: list[Callable[[], Fleet]] = [
            lambda: OurClients(server.url, HTTP2, options.clients, nodes, directory),
            lambda: OurClients(server.url, HTTP1, options.clients, nodes, directory),
        ]
        if os.environ.get("KUBE_PROXY_BINARY"):
            kinds.append(lambda: KubeProxies(server, options.kube_proxies, network, directory))
        server.fill(objects[:1])
        empty = FleetRun(server, 0, 0, events=0, rate=options.rate)
        for made in kinds:
            empty.without_proxies()
            with contextlib.closing(made()) as fleet:
                tables["first_list"].append(empty.first_list(fleet))
            print_row(tables["first_list"][-1])
        server.fill(objects[1:])
        bench = FleetRun(server, services, endpoints, options.events, options.rate)
        for made in kinds:
            bench.without_proxies()
            with contextlib.closing(made()) as fleet:
                tables["first_list"].append(bench.first_list(fleet))
                tables["watch"].append(bench.watch(fleet))
                tables["restart_of_the_server"].append(bench.restart(fleet))
            for rows in tables.values():
                print_row(rows[-1])
    paper = list(project_rows(tables["first_list"], tables["watch"]))
    return {
        "server": f"{server.name}, {options.lists} lists; load average {os.getloadavg()[0]:.1f}",
        **tables,
        "on_paper": paper,
    }
