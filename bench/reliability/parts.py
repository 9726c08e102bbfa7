"""Faults injected into a running proxy while connections are made through it.

Prints a row for each: what was done how often, connections made and lost meanwhile, the result, memory grown. All of it
lasts about ten minutes; --only names parts of it, --scale makes all of them shorter or longer. With KUBE_PROXY_BINARY
set, moves between kube-proxy and Pointsman are part of it.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from bench.measured import print_row
from bench.reliability import api_server, remote_clients, restarts, rules
from bench.reliability.world import Row, Work, measured


class Options(msgspec.Struct):
    scale: float
    chance: random.Random
    kube_proxy: str

    def times(self, count: int) -> int:
        return max(2, round(count * self.scale))


def _in_each_mode(fault: str, work: Work) -> Iterator[Row]:
    for mode in restarts.MODES:
        yield measured(fault, mode, work)


def _hand_over(options: Options) -> Iterator[Row]:
    if options.kube_proxy:
        work = restarts.handovers(options.kube_proxy, options.times(5))
        yield from _in_each_mode("hand-over with kube-proxy", work)


def _hold_connections(options: Options) -> Iterator[Row]:
    yield remote_clients.connections_held(60.0 * options.scale)
    yield remote_clients.asked_without_pause(60.0 * options.scale)


PARTS: Mapping[str, Callable[[Options], Iterable[Row]]] = {
    "kills": lambda options: _in_each_mode(
        "kill -9 at a random moment",
        restarts.stops(signal.SIGKILL, options.times(30), options.chance),
    ),
    "stops": lambda options: _in_each_mode(
        "SIGTERM and start", restarts.stops(signal.SIGTERM, options.times(20), options.chance)
    ),
    "switches": lambda options: _in_each_mode(
        "mode switched while running", restarts.mode_switches(options.times(20))
    ),
    "handovers": _hand_over,
    "instances": lambda options: _in_each_mode("a second instance", restarts.instances(options.times(8))),
    "server": lambda options: _in_each_mode(
        "API server away, cut, lying", api_server.server_faults(options.times(15), options.chance)
    ),
    "churn": lambda options: _in_each_mode(
        "churn of 10000/s, events", api_server.churn(30.0 * options.scale, 10_000)
    ),
    "lies": lambda options: [api_server.lies(api_server.choose_forms(), options.times(100))],
    "rules": lambda options: rules.damage(options.times(6), options.chance),
    "remote-clients": _hold_connections,
    "descriptors": lambda options: [remote_clients.descriptors_exhausted(options.times(20))],
}


def kept(file: Path, made: list[Row]) -> list[Row]:
    """The rows of an earlier run, with those that were made again replaced."""
    earlier = (
        msgspec.json.decode(file.read_bytes(), type=dict[str, list[Row]])["faults"] if file.exists() else []
    )
    fresh = {(row.fault, row.mode): row for row in made}
    known = [(row.fault, row.mode) for row in earlier]
    return [fresh.get((row.fault, row.mode), row) for row in earlier] + [
        row for key, row in fresh.items() if key not in known
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, default=None, metavar="PART", help=", ".join(PARTS)
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, help="how often or how long, 1 being about ten minutes"
    )
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--kube-proxy", default=os.environ.get("KUBE_PROXY_BINARY", ""), help="its binary")


def run(given: argparse.Namespace) -> Any:
    """With --only, other rows of an earlier run are kept."""
    logging.disable()  # messages of a client about a lying server
    options = Options(given.scale, random.Random(given.seed), given.kube_proxy)
    made = []
    for part in given.only or PARTS:
        for row in PARTS[part](options):
            made.append(row)
            print_row(msgspec.structs.asdict(row))
    print(f"\n{sum(row.connections for row in made)} connections made, {sum(row.lost for row in made)} lost")
    rows = kept(given.json, made) if given.only and given.json is not None else made
    return {"faults": msgspec.to_builtins(rows)}
