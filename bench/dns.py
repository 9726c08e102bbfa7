"""Tracked flows of a node whose pods send DNS queries at a constant rate, without and with a timeout of their own.

Every query has a source port that no recent one had, as those of resolvers do, and is answered. The number of entries follows
from rate and timeout; no figure is a time, so the load of the machine does not matter as long as the rate is reached.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import select
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.measured import print_row

from pointsman.lab import HOSTS, Cluster
from pointsman.lab.objects import LabService, backends
from pointsman.lab.proxy import LabProxy, configuration, pointsman_command

CLIENT, SERVER, PORT = "pod3", "pod4", 8080
ADDRESSES = 8
FIRST_PORT, LAST_PORT = 1024, 60999
TIMEOUT_SECONDS = 5
KERNEL_SECONDS = 30
"""The kernel's timeout of a UDP flow with one query and one answer."""
TICK_SECONDS = 0.01
MAX_OPEN = 4000
DNS = LabService("dns", 1, backends(SERVER), ports=(53,), protocols=("UDP",))


class Resolver:
    """Sends queries from ever new source ports, and counts the answers."""

    def __init__(self, cluster: Cluster, family: int) -> None:
        self._namespace = cluster[CLIENT]
        self._family = socket.AF_INET if family == 4 else socket.AF_INET6
        self._server = (DNS.address("cluster", family), 53)
        self._sources = self._iterate_sources(family)
        self._open: dict[int, socket.socket] = {}
        self._poll = select.epoll()
        self.sent = self.answered = 0

    def _iterate_sources(self, family: int) -> Iterator[tuple[str, int]]:
        base = HOSTS[CLIENT].address(family).rpartition(":" if family == 6 else ".")
        addresses = [f"{base[0]}{base[1]}{100 + number}" for number in range(ADDRESSES)]
        for address in addresses:
            nodad = ["nodad"] if family == 6 else []
            prefix = 128 if family == 6 else 32
            self._namespace.run(["ip", "address", "add", f"{address}/{prefix}", "dev", "eth0", *nodad])
        return itertools.cycle(
            (address, port) for port in range(FIRST_PORT, LAST_PORT) for address in addresses
        )

    def send(self, count: int) -> None:
        with self._namespace.entered():
            for _ in range(count):
                sock = socket.socket(self._family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
                sock.bind(next(self._sources))
                sock.sendto(b"?", self._server)
                self._open[sock.fileno()] = sock
                self._poll.register(sock, select.EPOLLIN)
                if len(self._open) > MAX_OPEN:
                    self._open.pop(next(iter(self._open))).close()
        self.sent += count

    def receive(self, seconds: float) -> None:
        for descriptor, _ in self._poll.poll(seconds, MAX_OPEN):
            self._open.pop(descriptor).close()
            self.answered += 1

    def close(self) -> None:
        for sock in self._open.values():
            sock.close()
        self._poll.close()


def count_entries(cluster: Cluster) -> int:
    with cluster["n1"].entered():
        return int(Path("/proc/sys/net/netfilter/nf_conntrack_count").read_text())


def measure(cluster: Cluster, family: int, rate: int, seconds: float) -> dict[str, Any]:
    """Send at this rate; return the mean number of entries in the last quarter."""
    resolver = Resolver(cluster, family)
    began = read = time.monotonic()
    counts: list[int] = []
    while (now := time.monotonic()) - began < seconds:
        resolver.send(max(0, int((now - began) * rate) - resolver.sent))
        resolver.receive(TICK_SECONDS)
        if now - read >= 1:
            read = now
            counts.append(count_entries(cluster))
    resolver.close()
    last = counts[-max(1, len(counts) // 4) :]
    return {
        "queries_per_second": round(resolver.sent / seconds),
        "answered_percent": 100 * resolver.answered / resolver.sent,
        "tracked_flows": round(sum(last) / len(last)),
    }


def run_one(family: int, timeout: int, rate: int, seconds: float) -> dict[str, Any]:
    flags = (f"--dns-udp-timeout={timeout}s",) if timeout else ()
    with tempfile.TemporaryDirectory() as directory, Cluster() as cluster:
        cluster.serve(SERVER, PORT)
        proxy = LabProxy(cluster, Path(directory), lambda *files: (*pointsman_command(*files), *flags))
        proxy.configure(configuration("nftables"))
        proxy.write([DNS])
        proxy.start()
        try:
            proxy.wait()
            found = measure(cluster, family, rate, seconds)
        finally:
            proxy.stop()
    return {"family": f"IPv{family}", "timeout": f"{timeout} s" if timeout else "of the kernel", **found}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rate", type=int, default=5000)
    parser.add_argument("--seconds", type=float, default=2 * KERNEL_SECONDS)


def run(options: argparse.Namespace) -> Any:
    limits = (MAX_OPEN + 500, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    rows = []
    for family in (4, 6):
        for timeout in (0, TIMEOUT_SECONDS):
            rows.append(run_one(family, timeout, options.rate, options.seconds))
            print_row(rows[-1])
    return rows
