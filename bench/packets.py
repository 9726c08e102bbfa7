"""Cost of a Service for a packet: from a pod to a cluster IP and from outside to a node port, against direct connections.

Every mode of ours, and of kube-proxy with KUBE_PROXY_BINARY set, has a node of its own made of network namespaces; all take turns, round
by round, and every ratio is to the direct way on a node without any proxy, in the same round. A proxy that does not serve within the limit is named and not
measured. ipvs mode needs a kernel with ip_vs: packets-ipvs runs this in one.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.apiserver import STREAMED, FakeServer
from bench.measured import print_row
from bench.packet_figures import Round, build_row
from bench.packet_world import API_PORT, World, build_objects, measure_round
from bench.proxies import list_programs

from pointsman.lab.netns import Namespace

NO_PROXY = "none"


def measure(services: int, modes: list[str], rounds: int, limit: float) -> list[dict[str, Any]]:
    with contextlib.ExitStack() as ending:
        work = Path(ending.enter_context(tempfile.TemporaryDirectory()))
        control = Namespace()
        ending.callback(control.close)
        kinds: list[tuple[str, str, list[str]]] = [(NO_PROXY, "", [])] + [
            (program.name, mode, list(program.command)) for mode in modes for program in list_programs()
        ]
        worlds = []
        for number, (name, mode, command) in enumerate(kinds):
            directory = work / str(number)
            directory.mkdir()
            worlds.append(World(name, mode, command, directory, control, number))
            ending.callback(worlds[-1].close)
        control.run(["ip", "link", "set", "lo", "up"])
        server = FakeServer(work, "0.0.0.0", API_PORT, STREAMED)
        ending.callback(server.close)
        with control.entered():
            server.fill(build_objects(services))
        took = start_worlds(worlds, services, limit)
        return measure_rows(worlds, took, services, rounds, limit)


def start_worlds(worlds: list[World], services: int, limit: float) -> dict[World, float]:
    """Seconds until each serves; those that do not within the limit are missing."""
    took: dict[World, float] = {}
    for world in worlds:
        world.start_proxy()
        began = time.monotonic()
        while time.monotonic() - began < limit:
            if world.loaded(services):
                took[world] = time.monotonic() - began
                break
            time.sleep(0.2)
        else:
            world.close()
    return took


def measure_rows(
    worlds: list[World], took: dict[World, float], services: int, rounds: int, limit: float
) -> list[dict[str, Any]]:
    seen: dict[tuple[World, str], tuple[list[Round], list[Round]]] = {}
    for number in range(rounds):
        for world in took:
            for start, (where, direct, through) in world.paths(services).items():
                directly, by_service = seen.setdefault((world, start), ([], []))
                turns = [(directly, direct), (by_service, through)]
                for kept, target in turns if number % 2 else reversed(turns):
                    kept.append(measure_round(where, target))

    def compared(start: str, world: World) -> dict[str, float]:
        beside, through = seen[world, start]
        return build_row(seen[worlds[0], start][0], through, beside)

    found = []
    for world in worlds:
        named = {"services": services, "program": world.program, "mode": world.mode}
        if world not in took:
            found.append({**named, "from": f"did not serve within {limit:.0f} s"})
        found += [
            {**named, "from": start, **compared(start, world)}
            for start in ("pod", "outside")
            if (world, start) in seen
        ]
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", default="100,10000,50000")
    parser.add_argument("--modes", default="nftables,iptables")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=float, default=30, help="seconds for a proxy to load everything")


def run(options: argparse.Namespace) -> Any:
    found: list[dict[str, Any]] = []
    for size in map(int, options.sizes.split(",")):
        for each in measure(size, options.modes.split(","), options.rounds, options.limit):
            found.append(each)
            print_row(each)
    iptables = subprocess.run(
        ["iptables", "--version"], capture_output=True, text=True, check=True
    ).stdout.strip()
    note = f"{iptables}; one processor does all the work of a packet; load average {os.getloadavg()[0]:.1f}"
    return {"packets": found, "note": note}
