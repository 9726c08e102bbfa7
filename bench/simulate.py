"""Fleets of 5,000 and 15,000 nodes as discrete events, with the measured costs of bench fleet and our own back-off.

Every request of every node is an event. A server with some cores works on one request per core, first come first served. The
first row of each event is the size that was measured, beside what was measured there. docs/evidence/scale.md says what is assumed.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.fleet_figures import API_SERVERS, NODES, find_busiest_second, scale_share
from bench.measured import compute_percentile, print_row
from bench.proxies import OURS

from pointsman.kube.timing import make_server_backoff

RESULTS = Path(__file__).parent / "results"
KINDS = 4
CORES = 8
MEASURED_CORES = 2
LISTENING_SECONDS = 2.5
"""After the API server was killed; requests that arrive before it is ready wait for that."""
CONFIGMAP_SECONDS = 90.0
"""Within which every kubelet has updated a mounted ConfigMap: its sync period and the age of its cache."""
ROLLED_ENDPOINTS, SLICE_ENDPOINTS = 5000, 100
ROLLED_PER_SECOND = 50


class Costs(NamedTuple):
    """Processor seconds of the API server for one node."""

    restart: float
    """The return after a restart of the server, connections and lists included."""
    ready: float
    """Seconds from the end of the server until it is ready again."""
    listing: float
    """All lists, at 10,000 Services with ten endpoints."""
    event: float
    """One changed EndpointSlice of ten endpoints."""


class Request(NamedTuple):
    at: float
    cost: float


def finish_times(requests: Sequence[Request], cores: int) -> list[float]:
    """When each request is done, in their order; they are served as they arrive."""
    free = [0.0] * cores
    done = [0.0] * len(requests)
    for index in sorted(range(len(requests)), key=lambda index: requests[index].at):
        begin = max(requests[index].at, free[0])
        done[index] = begin + requests[index].cost
        heapq.heapreplace(free, done[index])
    return done


def restart_attempts(rng: random.Random) -> Iterator[float]:
    """Attempts of one watch since the server went away: those refused, then the one that is answered."""
    backoff = make_server_backoff(rng.uniform)
    at = backoff.pause()
    while at < LISTENING_SECONDS:
        yield at
        at += backoff.pause()
    yield at


def server_restart(nodes: int, cores: int, costs: Costs, rng: random.Random) -> dict[str, Any]:
    """One API server is killed and started again."""
    attempts = [list(restart_attempts(rng)) for _ in range(nodes * KINDS)]
    served = [Request(max(costs.ready, each[-1]), costs.restart / KINDS) for each in attempts]
    done = finish_times(served, cores)
    first = [min(done[node * KINDS : node * KINDS + KINDS]) for node in range(nodes)]
    return spread(first, min(first)) | {
        "failed_attempts": (sum(len(each) for each in attempts) - len(attempts)) / nodes,
        "busiest_second": find_busiest_second([*done, *(at for each in attempts for at in each[:-1])]),
    }


def config_map(nodes: int, cores: int, costs: Costs, rng: random.Random) -> dict[str, Any]:
    """Every proxy reads its new configuration when its kubelet has it, and lists again."""
    arrivals = [Request(rng.uniform(0, CONFIGMAP_SECONDS), costs.listing) for _ in range(nodes)]
    done = finish_times(arrivals, cores)
    return spread([end - request.at for end, request in zip(done, arrivals, strict=True)], 0.0)


def rolling_service(nodes: int, cores: int, costs: Costs, rng: random.Random) -> dict[str, Any]:
    """A Service with 5,000 endpoints rolls: every changed slice of 100 endpoints goes to every node."""
    del rng
    changes = ROLLED_ENDPOINTS // 10
    cost = costs.event * SLICE_ENDPOINTS / 10
    arrivals = [Request(number / ROLLED_PER_SECOND, cost * nodes / cores) for number in range(changes)]
    done = finish_times(arrivals, 1)
    return spread([end - request.at for end, request in zip(done, arrivals, strict=True)], 0.0)


EVENTS = {
    "restart of the API server": server_restart,
    "ConfigMap changes, all list again": config_map,
    "Service with 5,000 endpoints rolls": rolling_service,
}


def spread(times: Sequence[float], origin: float) -> dict[str, float]:
    return {
        "half_s": compute_percentile(times, 0.5) - origin,
        "p99_s": compute_percentile(times, 0.99) - origin,
        "last_s": max(times) - origin,
    }


def our_rows(table: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those of our clients with the protocol that they prefer, which comes first."""
    ours = [row for row in table if row["program"] == OURS]
    return sorted(
        (row for row in ours if row["protocol"] == ours[0]["protocol"]),
        key=lambda row: row.get("services", 0),
    )


def measured_costs(fleet: Mapping[str, Any]) -> tuple[Costs, Costs]:
    """At the measured number of Services, and at 10,000 with ten endpoints each."""
    empty, full = our_rows(fleet["first_list"])
    (watch,), (restart,) = our_rows(fleet["watch"]), our_rows(fleet["restart_of_the_server"])
    small = Costs(
        restart["server_cpu_ms"] / 1000,
        restart["ready_after_s"],
        full["server_cpu_ms"] / 1000,
        watch["server_cpu_ms"] / 1000,
    )
    large = scale_share(empty, full, "server_cpu_ms") / 1000
    return small, small._replace(restart=small.restart * large / small.listing, listing=large)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cores", type=int, default=CORES, help="of each of the three API servers")
    parser.add_argument("--seed", type=int, default=1)


def run(options: argparse.Namespace) -> Any:
    fleet = json.loads((RESULTS / "fleet.json").read_text())
    small, large = measured_costs(fleet)
    (measured,) = our_rows(fleet["restart_of_the_server"])
    rows: list[dict[str, Any]] = [
        {
            "event": "restart of the API server, measured",
            "nodes": measured["proxies"],
            "servers": 1,
            "cores": MEASURED_CORES,
            "half_s": measured["half_back_s"],
            "last_s": measured["all_back_s"],
            "failed_attempts": float(measured["failed_attempts"]),
            "busiest_second": measured["busiest_second"],
        }
    ]
    sizes = [(measured["proxies"], 1, MEASURED_CORES, small)]
    sizes += [(count, API_SERVERS, options.cores, large) for count in NODES]
    for name, simulated in EVENTS.items():
        for nodes, servers, cores, costs in sizes:
            result = simulated(nodes // servers, cores, costs, random.Random(options.seed))
            rows.append({"event": name, "nodes": nodes, "servers": servers, "cores": cores, **result})
    for row in rows:
        print_row(row)
    costs_ms = [{f"{name}_ms": 1000 * value for name, value in large._asdict().items() if name != "ready"}]
    return {"costs": costs_ms, "events": rows}
