"""Load of a fleet of proxies on one API server: the first list, a watch, and reconnecting after a restart of the server.

Clients are our real ones without a kernel behind them, once in JSON and once in protobuf; with KUBE_PROXY_BINARY set, some
kube-proxies follow. With KUBE_APISERVER_BINARY set and etcd installed the server is a real one. The server and the clients live
in two network namespaces with a wire between them; bytes are those of the packets the server sends over it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.apiserver import Object, Server, api_server, asked, collection, session, without_server_fields
from bench.fleet_clients import Fleet, KubeProxies, OurClients
from bench.fleet_figures import Reading, busiest_second, on_paper, per_proxy, returns
from bench.measured import print_row
from bench.objects import service_json, slice_json
from bench.process import NODE, cpu_seconds, memory_mib

from pointsman.lab.netns import Namespace

ADDRESS, PORT = "172.31.0.1", 16443
TIMEOUT_SECONDS = 150.0
QUIET_SECONDS = 1.5
DOWN_SECONDS = 2.0
IDLE_SECONDS = 4.0
RETURN_SECONDS = 6.0
"""At least so long the return of a fleet is watched; the pauses of most proxies are over by then."""
COUNTER = f"""\
table inet bench {{
    chain sent {{
        type filter hook output priority 0;
        oifname "wire" tcp sport {PORT} counter
    }}
}}
"""


class FleetRun:
    """One server, filled, and what is measured of it."""

    def __init__(self, server: Server, services: int, endpoints: int, events: int, rate: float) -> None:
        self._server, self._services, self._endpoints = server, services, endpoints
        self._events, self._rate = events, rate
        self._generations: Counter[int] = Counter()
        self._cpu_of_events = self._cpu_of_start = 0.0
        self._idle = self._idle_share()

    def reading(self) -> Reading:
        shown = subprocess.run(
            ["nft", "list", "table", "inet", "bench"], capture_output=True, text=True, check=True
        )
        found = re.search(r"bytes (\d+)", shown.stdout)
        pid = self._server.pid
        return Reading(
            time.monotonic(), int(found[1]) if found else 0, cpu_seconds(pid), memory_mib(pid, "VmRSS")
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

    async def _change(self) -> None:
        """One slice after the other, each with another first endpoint than before."""
        async with session() as http:
            began = time.monotonic()
            for number in range(self._events):
                index = 1 + number % self._services
                self._generations[index] = generation = 1 + self._generations[index] % 4
                item = json.loads(slice_json(index, self._endpoints, generation))
                path = f"{collection(item)}/{item['metadata']['name']}"
                await asked(http, "PUT", self._server.url + path, without_server_fields(item))
                await asyncio.sleep(max(0.0, began + (number + 1) / self._rate - time.monotonic()))

    def first_list(self, fleet: Fleet) -> dict[str, Any]:
        before = self.reading()
        fleet.start()
        took = _wait_for(fleet.synced)
        after = self.quiet()
        return {
            **_named(fleet),
            "services": self._services,
            "endpoints": self._endpoints,
            "all_synced_s": took,
            **per_proxy(before, after, self._spent(before, after), fleet.size),
            "server_memory_mb": (after.rss_mib - before.rss_mib) * 1.048576 / fleet.size,
        }

    def watch(self, fleet: Fleet) -> dict[str, Any]:
        seen = sum(report["slices"] for report in fleet.reports())
        before = self.reading()
        asyncio.run(self._change())
        after = self.quiet()
        spent = self._spent(before, after) - self._cpu_of_events
        row = {
            **_named(fleet),
            "events": self._events,
            **per_proxy(before, after, spent, fleet.size * self._events),
        }
        if fleet.reports():
            got = sum(report["slices"] for report in fleet.reports()) - seen
            row["delivered_percent"] = 100 * got / (self._events * fleet.size)
        return row

    def without_proxies(self) -> None:
        """So that every fleet meets a fresh server, and what it spends without any proxy is known."""
        self._cpu_of_start = self._restarted()[2]
        self._idle = self._idle_share()
        before = self.reading()
        asyncio.run(self._change())
        self._cpu_of_events = self._spent(before, self.quiet())

    def restart(self, fleet: Fleet) -> dict[str, Any]:
        before = fleet.reports()
        began, stopped = self.reading(), time.monotonic()
        ready, after, spent = self._restarted(lambda: all(report["connected"] for report in fleet.reports()))
        row: dict[str, Any] = {**_named(fleet), "ready_after_s": ready - stopped}
        if reports := fleet.reports():
            row |= returns(stopped, [report["answers"] for report in reports])
            times = [[*report["answers"], *report["failures"]] for report in reports]
            failed = sum(at >= stopped for report in reports for at in report["failures"])
            row["failed_attempts"] = failed / fleet.size
            row["busiest_second"] = busiest_second(at for each in times for at in each if at >= stopped)
            row["lists_again"] = (_lists(reports) - _lists(before)) / fleet.size
        return row | per_proxy(began, after, spent - self._cpu_of_start, fleet.size)

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


def _lists(reports: list[dict[str, Any]]) -> int:
    return sum(report["lists"] for report in reports)


def _named(fleet: Fleet) -> dict[str, Any]:
    return {"program": fleet.program, "format": fleet.format, "proxies": fleet.size}


def _wait_for(condition: Callable[[], bool]) -> float:
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > TIMEOUT_SECONDS:
            print("timeout: some proxies were not ready", file=sys.stderr)
            break
        time.sleep(0.2)
    return time.monotonic() - began


@contextlib.contextmanager
def two_namespaces() -> Iterator[tuple[Namespace, Namespace]]:
    control, nodes = Namespace(), Namespace()
    control.run(["ip", "link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns", nodes.path])
    for namespace, address in ((control, ADDRESS), (nodes, "172.31.0.2")):
        for command in ("link set lo up", "link set wire up", f"address add {address}/24 dev wire"):
            namespace.run(["ip", *command.split()])
    control.run(["nft", "-f", "-"], COUNTER)
    yield control, nodes
    control.close()
    nodes.close()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--size", default="1000x10")
    parser.add_argument("--events", type=int, default=200)
    parser.add_argument("--rate", type=float, default=50)
    parser.add_argument("--kube-proxies", type=int, default=8)


def run(options: argparse.Namespace) -> Any:
    services, endpoints = map(int, options.size.split("x"))
    objects: list[Object] = [NODE]
    for index in range(1, services + 1):
        objects += [json.loads(service_json(index)), json.loads(slice_json(index, endpoints))]
    tables: dict[str, list[dict[str, Any]]] = {"first_list": [], "watch": [], "restart_of_the_server": []}
    with (
        tempfile.TemporaryDirectory() as directory,
        two_namespaces() as (control, nodes),
        control.entered(),
        api_server(Path(directory), ADDRESS, PORT) as server,
    ):
        kinds: list[Callable[[], OurClients | KubeProxies]] = [
            lambda: OurClients(server.url, "json", options.clients, nodes, Path(directory)),
            lambda: OurClients(server.url, "protobuf", options.clients, nodes, Path(directory)),
        ]
        if os.environ.get("KUBE_PROXY_BINARY"):
            kinds.append(lambda: KubeProxies(server.url, options.kube_proxies, nodes, Path(directory)))
        server.fill(objects[:1])
        empty = FleetRun(server, 0, 0, events=0, rate=options.rate)
        for made in kinds:
            with contextlib.closing(made()) as fleet:
                tables["first_list"].append(empty.first_list(fleet))
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
    paper = list(on_paper(tables["first_list"], tables["watch"]))
    return {"server": f"{server.name}; load average {os.getloadavg()[0]:.1f}", **tables, "on_paper": paper}
