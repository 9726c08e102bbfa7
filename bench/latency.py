"""Network programming latency and CPU time of one proxy in its default configuration, while endpoints change.

The latency is the proxy's own metric, from the trigger time of an EndpointSlice to its rules in the kernel. The server and the
proxies are those of `process`. A rate of 0 is a burst: all changes at once.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

from bench.apiserver import Server, run_server
from bench.measured import print_row
from bench.network import build_node
from bench.process import SETTLE_SECONDS, build_cluster
from bench.proxies import OURS, Proxy, list_programs, prepare_proxy, read_histogram, read_metric, wait_for

LATENCY = "pointsman_programming_latency_seconds"
KUBE_PROXY_LATENCY = "kubeproxy_network_programming_duration_seconds"
SYNC = "kubeproxy_sync_proxy_rules_duration_seconds"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", default="10000x10", help="Services x endpoints")
    parser.add_argument("--loads", default="10:300,200:2000,0:5000", help="changes per second:changes")
    parser.add_argument("--mode", default="nftables")
    parser.add_argument("--min-sync-period", default="0s", help="0s is the default of each program")


def measure_load(
    proxy: Proxy, server: Server, size: tuple[int, int], rate: float, count: int
) -> dict[str, Any]:
    name = LATENCY if proxy.program.name == OURS else KUBE_PROXY_LATENCY
    before = proxy.metrics()
    cpu = proxy.cpu()
    earlier = read_histogram(before, name)
    server.change_endpoints(*size, rate, count)
    time.sleep(SETTLE_SECONDS)
    spent = proxy.cpu() - cpu  # before it is asked for metrics, which takes time as well
    wait_for(lambda: read_histogram(proxy.metrics(), name).since(earlier).count >= count, 60, "all changes")
    after = proxy.metrics()
    latency = read_histogram(after, name).since(earlier)
    return {
        "program": proxy.program.name,
        "services": size[0],
        "endpoints": size[1],
        "changes_per_second": rate,
        "changes": count,
        "counted": latency.count,
        "mean_ms": latency.mean * 1000,
        "p99_ms": latency.quantile(0.99) * 1000,
        "syncs": read_metric(after, f"{SYNC}_count") - read_metric(before, f"{SYNC}_count"),
        "cpu_s": spent,
        "cpu_ms_per_change": spent * 1000 / count,
    }


def run(options: argparse.Namespace) -> Any:
    services, endpoints = map(int, options.size.split("x"))
    rows: list[dict[str, Any]] = []
    with run_server() as (server, network, directory):
        server.fill([build_node(1), *build_cluster(services, endpoints)])
        for program in list_programs():
            proxy = prepare_proxy(
                *(program, network.add_node(1), directory / program.name, server.render_kubeconfig()),
                *(options.mode, options.min_sync_period),
            )
            proxy.start()
            try:
                wait_for(proxy.synced_at, 900, "the first sync", pause=0.2)
                time.sleep(SETTLE_SECONDS)
                for load in options.loads.split(","):
                    rate, count = load.split(":")
                    rows.append(measure_load(proxy, server, (services, endpoints), float(rate), int(count)))
                    print_row(rows[-1])
            finally:
                proxy.stop()
        name = server.name
    return {"server": f"{name}; load average {os.getloadavg()[0]:.1f}", "latency": rows}
