"""Faults that take minutes, tried with a whole proxy: a small memory limit, a held lock, lists too large, changes for an hour.

The proxy runs in a network namespace of its own, with the tests' fake API server or manifests. With --only, the other results that
are kept stay as they are.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import gzip
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import methodcaller
from pathlib import Path
from typing import Any

from bench.apiserver import render_kubeconfig
from bench.hostile import ApiProcess
from bench.measured import print_row
from bench.objects import compute_endpoint_address, compute_service_address
from bench.proxies import read_cpu_seconds, read_memory_mib
from tests.harness.api_thread import ApiThread
from tests.harness.kube_objects import endpoint_slice, node_object, service, web_service, web_slices
from tests.harness.node import HEALTH_PORT, NODE_IP, LabNode, NodeProcess
from tests.harness.waiting import wait_until
from tests.process.faults.churn import flood
from tests.process.test_host_conditions import MemoryGroup

Row = dict[str, Any]

WEB = (web_service(), *web_slices(), node_object())
COMMANDS: Sequence[tuple[str, ...]] = (
    ("status",),
    ("list",),
    ("list", "-o", "json"),
    ("explain", "web"),
    ("verify",),
    ("events",),
)
API_PORT = 18098
COMMAND_INTERVAL_SECONDS = 15.0
SAMPLE_SECONDS = 30.0
BLANKS = 1 << 20
_HEAD = b'{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":['
_OBJECT = b'{"metadata":{"name":"s%d","namespace":"d"},"spec":{"clusterIP":"10.0.0.1",%s}}'


class Tried(NodeProcess):
    """A proxy process with a control socket, and what it says and uses."""

    def __init__(self, node: LabNode, directory: Path) -> None:
        super().__init__(node, directory)
        self.control = f"--control-socket={directory / 'control.sock'}"

    def run_command(self, *arguments: str) -> str:
        """Return the output; raises SystemExit when the command finds something wrong."""
        command = (sys.executable, "-m", "pointsman", *arguments, self.control)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{arguments} ended with {done.returncode}: {done.stdout[-500:]}{done.stderr}")
        return done.stdout

    def forget_peak(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    @property
    def rss_mib(self) -> float:
        return read_memory_mib(self.pid, "VmRSS")

    @property
    def peak_mib(self) -> float:
        return read_memory_mib(self.pid, "VmHWM")


@contextlib.contextmanager
def _build_node() -> Iterator[tuple[LabNode, Tried]]:
    node = LabNode()
    with tempfile.TemporaryDirectory() as text:
        process = Tried(node, Path(text))
        try:
            with node.backend():
                yield node, process
        finally:
            process.stop()
            node.close()


def _list_cluster(services: int, endpoints: int) -> Iterator[dict[str, Any]]:
    yield from WEB
    for number in range(services):
        name = f"s{number}"
        addresses = [compute_endpoint_address(number, slot) for slot in range(endpoints)]
        yield service(name, compute_service_address(number + 1000))
        yield endpoint_slice(f"{name}-1", *addresses, service_name=name, node="n2")


def limit_memory(options: argparse.Namespace) -> list[Row]:
    """Serve a cluster under a memory limit, with changes and commands; each command counts with its own peak."""
    rows: list[Row] = []
    with _build_node() as (node, process):
        api = ApiProcess(node.namespace, process.directory, list(_list_cluster(options.services, 10)))
        group = MemoryGroup(f"pointsman-bench-{os.getpid()}")
        group.limit(options.limit << 20)
        kubeconfig = process.directory / "kubeconfig"
        kubeconfig.write_text(render_kubeconfig(f"http://127.0.0.1:{API_PORT}"))
        process.configure(clientConnection={"kubeconfig": str(kubeconfig)})
        try:
            process.start(process.control, from_api=True, wrap=group.wrap)
            node.wait_served("10.96.0.10", seconds=300)
            rows.append({"step": "start", "peak_mib": process.peak_mib, "cgroup_mib": group.used / BLANKS})
            process.forget_peak()
            for number in range(5):
                name, address = f"new{number}", f"10.99.0.{number + 1}"
                api.put([service(name, address), endpoint_slice(f"{name}-1", NODE_IP, service_name=name)])
                node.wait_served(address)
            rows.append({"step": "changes", "peak_mib": process.peak_mib, "cgroup_mib": group.used / BLANKS})
            for command in COMMANDS:
                process.forget_peak()
                size = len(process.run_command(*command)) / 1e3
                row = {"step": " ".join(command), "peak_mib": process.peak_mib, "answer_kb": size}
                rows.append(row | {"cgroup_mib": group.used / BLANKS})
        finally:
            api.stop()
            process.stop()
            group.remove()
    return [{"limit_mib": options.limit, "services": options.services, **row} for row in rows]


def hold_lock(options: argparse.Namespace) -> list[Row]:
    """Hold the lock of legacy iptables while a Service is added; the rules that stand must serve."""
    with _build_node() as (node, process):
        lock = process.directory / "xtables.lock"
        os.environ["XTABLES_LOCKFILE"] = str(lock)
        process.configure(mode="iptables", iptables={"minSyncPeriod": "50ms", "syncPeriod": "30s"})
        process.objects(*WEB)
        for program in ("iptables-legacy", "ip6tables-legacy"):
            node.run(program, "-t", "nat", "-N", "KUBE-IPTABLES-HINT")
        process.start(process.control)
        node.wait_served("10.96.0.10")
        before, counts = process.rss_mib, Counter[str]()
        lock.touch()
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            process.objects(*WEB, web_service("later", 20), *web_slices("later"))
            ends = time.monotonic() + options.seconds
            while time.monotonic() < ends:
                counts["connections"] += 1
                counts["lost"] += not node.connect("10.96.0.10").lossless
                time.sleep(1)
            is_alive = node.get("/livez", HEALTH_PORT).status == 200
            grown = process.rss_mib - before
        released = time.monotonic()
        node.wait_served("10.96.0.20", seconds=300)
        delay = time.monotonic() - released
        wait_until(lambda: node.get("/livez", HEALTH_PORT).status, lambda status: status == 200)
        row = {"held_s": options.seconds, **counts, "livez_meanwhile": is_alive, "grown_mib": grown}
        return [row | {"served_after_s": delay, "log_kb": len(process.log_text) / 1e3}]


def _pack_blanks(mebibytes: int) -> bytes:
    return b"".join(gzip.compress(bytes(BLANKS).replace(b"\0", b" "), 9) for _ in range(mebibytes))


def _render_list(*items: bytes) -> bytes:
    return _HEAD + b",".join(items) + b"]}"


def _list_bombs() -> Iterator[tuple[str, bytes]]:
    """Yield titles and bodies of lists of Services."""
    yield "1 GiB of blanks as gzip", _pack_blanks(1024)
    yield "999,000 empty objects", _render_list(*[b"{}"] * 999_000)
    ports = b'"ports":[%s]' % b",".join(b'{"port":%d}' % (number % 65535 + 1) for number in range(120_000))
    yield "8 Services with 120,000 ports", _render_list(*(_OBJECT % (number, ports) for number in range(8)))
    ranges = b'"loadBalancerSourceRanges":[%s]' % b",".join([b'"10.0.0.0/8"'] * 190_000)
    yield "5 Services with 190,000 ranges", _render_list(*(_OBJECT % (number, ranges) for number in range(5)))


def send_bombs(_options: argparse.Namespace) -> list[Row]:
    """Answer every paged list of Services with a bomb for as long as the proxy asks."""
    rows: list[Row] = []
    for title, body in _list_bombs():
        encoding = "Content-Encoding: gzip\r\n" if body.startswith(b"\x1f\x8b") else ""
        with _build_node() as (node, process), ApiThread(node, process.directory) as api:
            api.load(*WEB)
            api.call(lambda server: setattr(server, "watch_list", False))
            head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{encoding}\r\n"
            raw = head.encode() + body
            api.call(methodcaller("fail_next", 200, path="services", watch=False, raw=raw, times=100))
            process.configure(
                clientConnection={"kubeconfig": str(api.kubeconfig), "contentType": "application/json"}
            )
            process.start(process.control, from_api=True)
            time.sleep(20)
            rows.append({"list": title, "body_mb": len(body) / 1e6, "peak_mib": process.peak_mib})
    return rows


def soak(options: argparse.Namespace) -> list[Row]:
    """Change endpoints all the time, with commands, scrapes and connections meanwhile."""
    rows: list[Row] = []
    done: Counter[str] = Counter()
    ended = threading.Event()
    with _build_node() as (node, process), ApiThread(node, process.directory) as api:
        busy = [f"busy-{number}" for number in range(40)]
        api.load(*WEB)
        for number, name in enumerate(busy, start=100):
            api.load(web_service(name, number), *web_slices(name))
        client = {"kubeconfig": str(api.kubeconfig), "contentType": "application/json"}
        process.configure(clientConnection=client | {"qps": 500, "burst": 500})
        process.start(process.control, from_api=True)
        node.wait_served("10.96.0.10")

        def ask() -> None:
            while not ended.wait(COMMAND_INTERVAL_SECONDS):
                process.run_command(*COMMANDS[done["commands"] % len(COMMANDS)])
                done["commands"] += 1
                node.get("/metrics")

        asking = threading.Thread(target=ask)
        asking.start()
        began = sampled = time.monotonic()
        try:
            for sent in flood(api, busy, options.seconds, options.rate, 100_000):
                now = time.monotonic()
                if now - sampled >= SAMPLE_SECONDS or not rows:
                    sampled = now
                    done["asked"] += 1
                    done["unanswered"] += not node.connect("10.96.0.10").lossless
                    figures = {"changes": sent, "rss_mib": process.rss_mib, **done}
                    figures |= {"threads": process.threads(), "descriptors": process.descriptors()}
                    rows.append(
                        {"minutes": (now - began) / 60, **figures, "cpu_s": read_cpu_seconds(process.pid)}
                    )
        finally:
            ended.set()
            asking.join()
    last = len(rows) - 1
    return [rows[number] for number in sorted({*range(0, last, max(1, last // 6)), last})]


PARTS: Mapping[str, Callable[[argparse.Namespace], list[Row]]] = {
    "memory": limit_memory,
    "lock": hold_lock,
    "lists": send_bombs,
    "soak": soak,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--services", type=int, default=10_000, help="for memory")
    parser.add_argument("--limit", type=int, default=128, help="for memory: MiB")
    parser.add_argument("--seconds", type=float, default=600.0, help="for lock and soak")
    parser.add_argument("--rate", type=int, default=50, help="for soak: changes per second")


def run(options: argparse.Namespace) -> Any:
    kept = json.loads(options.json.read_text()) if options.json is not None and options.json.exists() else {}
    for part in options.only:
        kept[part] = PARTS[part](options)
        for row in kept[part]:
            print_row(row)
    return kept
