"""Hostile objects against a whole proxy process: delay of another Service, longest time without an answer of /livez, peak memory.

The proxy serves a few Services from the tests' fake API server in a network namespace of its own. Hostile objects are
created; meanwhile one new Service after the other is created, and each delay counts until a connection to it is answered. A
second thread requests /livez every 50 ms; the longest time between two responses counts. With KUBE_PROXY_BINARY
set, kube-proxy gets the same objects; --before names the command of an earlier release of Pointsman. CPU time is that of
the process from the creation of the objects to the end: on a busy machine it says more than the delay. The longest callback
of Pointsman's event loop is CPU time, too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from bench.apiserver import render_kubeconfig
from bench.hostile_objects import SCENARIOS, KubeDict, Scenario
from bench.measured import print_row
from bench.proxies import (
    FLAGS,
    Program,
    compile_modules,
    list_programs,
    read_cpu_seconds,
    read_memory_mib,
    render_config,
)
from tests.harness.kube_objects import endpoint_slice, node_object, service
from tests.harness.node import HEALTH_PORT, NODE_IP, LabNode

from pointsman.lab.netns import Namespace
from pointsman.lab.proxy import ProxyProcess
from pointsman.obs.slow_callbacks import MESSAGE, VARIABLE

PORT = 18098
INTERVAL_SECONDS = 0.05
BASE_SERVICES = 20
MIN_CALM_CHANGES = 4
"""Changes in a row that are served at once after which a scenario is over."""
CALM_SECONDS = 0.7
MAX_SECONDS = 60.0
MIN_CALLBACK_MS = 20
"""Shorter callbacks of the event loop are not reported."""


class LiveProbe:
    """Requests /livez on a thread of its own until the block ends."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.longest_gap = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        with self._namespace.entered():
            answered = time.monotonic()
            while not self._ended.wait(INTERVAL_SECONDS):
                if _is_alive():
                    now = time.monotonic()
                    self.longest_gap = max(self.longest_gap, now - answered - INTERVAL_SECONDS)
                    answered = now
            self.longest_gap = max(self.longest_gap, time.monotonic() - answered - INTERVAL_SECONDS)


def _is_alive() -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", HEALTH_PORT), 60) as sock:
        sock.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return sock.recv(100).startswith(b"HTTP/1.1 ")
    return False


class ApiProcess:
    """The fake API server in a process of its own, so that it never waits for the measurement."""

    def __init__(self, namespace: Namespace, work: Path, objects: Sequence[KubeDict]) -> None:
        self._work = work
        self._count = 0
        command = [sys.executable, "-m", "tests.fake.serve_api", f"--port={PORT}", "--read-objects"]
        with namespace.entered(), (work / "api.log").open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
        assert self._process.stdout is not None
        self._process.stdout.readline()
        self.put(objects)

    def put(self, objects: Sequence[KubeDict]) -> None:
        """Create or replace objects, in order."""
        assert self._process.stdin is not None
        self._count += 1
        path = self._work / f"objects-{self._count}.json"
        path.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": list(objects)}))
        self._process.stdin.write(f"{path}\n".encode())
        self._process.stdin.flush()

    def stop(self) -> None:
        self._process.terminate()
        self._process.communicate()


def _small_service(number: int) -> list[KubeDict]:
    name = f"small-{number}"
    return [
        service(name, f"10.96.{200 + number // 250}.{1 + number % 250}"),
        endpoint_slice(f"{name}-1", NODE_IP, service_name=name),
    ]


def _wait_served(namespace: Namespace, number: int, seconds: float) -> float:
    """Return the seconds until a connection to a small Service is answered."""
    address = _small_service(number)[0]["spec"]["clusterIP"]
    started = time.monotonic()
    with namespace.entered():
        while time.monotonic() - started < seconds:
            with contextlib.suppress(OSError), socket.create_connection((address, 80), 0.1):
                break
            time.sleep(0.01)
    return time.monotonic() - started


@contextlib.contextmanager
def _run_proxy(command: Sequence[str], mode: str) -> Iterator[tuple[LabNode, ApiProcess, ProxyProcess]]:
    node = LabNode()
    with tempfile.TemporaryDirectory() as text:
        work = Path(text)
        (work / "kubeconfig").write_text(render_kubeconfig(f"http://127.0.0.1:{PORT}"))
        (work / "config.json").write_text(render_config(work / "kubeconfig", mode, minSyncPeriod="10ms"))
        first = [node_object(), *(item for n in range(BASE_SERVICES) for item in _small_service(n))]
        api = ApiProcess(node.namespace, work, first)
        process = ProxyProcess(node.cluster, work)
        try:
            with node.backend():
                arguments = [part.format(work=work) for part in command]
                environment = compile_modules(work / "compiled") | {VARIABLE: str(MIN_CALLBACK_MS)}
                process.start_command([*arguments, f"--config={work / 'config.json'}"], environment)
                if _wait_served(node.namespace, 0, 60) >= 60:
                    raise SystemExit(f"the proxy serves nothing\n{process.log_end()}")
                yield node, api, process
        finally:
            process.stop(signal.SIGKILL)
            api.stop()
    node.close()


def measure(command: Sequence[str], scenario: Scenario, mode: str) -> dict[str, float]:
    """Run one scenario against a proxy of its own."""
    with _run_proxy(command, mode) as (node, api, process):
        time.sleep(2)
        before = read_cpu_seconds(process.pid)
        with LiveProbe(node.namespace) as live:
            longest = _follow(node, api, scenario)
        if not process.alive:
            raise SystemExit(f"the proxy ended\n{process.log_end()}")
        return {
            "delay_s": longest,
            "no_answer_s": live.longest_gap,
            "cpu_s": read_cpu_seconds(process.pid) - before,
            "peak_mib": read_memory_mib(process.pid, "VmHWM"),
            **_find_longest_callback(process.log_text),
        }


def _find_longest_callback(log: str) -> dict[str, float]:
    """Return the CPU time of the longest callback of the event loop that was logged; kube-proxy logs none."""
    found = [float(text) for text in re.findall(rf'"{MESSAGE}".* cpu_ms=(\d+)', log)]
    return {"callback_ms": max(found)} if found else {}


def _follow(node: LabNode, api: ApiProcess, scenario: Scenario) -> float:
    """Create the hostile objects, then small Services until they are served at once; return the longest delay."""
    deadline = time.monotonic() + MAX_SECONDS
    api.put([*scenario.objects(), *scenario.updates()])
    longest, calm, number = 0.0, 0, BASE_SERVICES
    while calm < MIN_CALM_CHANGES and time.monotonic() < deadline:
        api.put(_small_service(number))
        delay = _wait_served(node.namespace, number, deadline - time.monotonic())
        longest = max(longest, delay)
        calm = calm + 1 if delay < CALM_SECONDS else 0
        number += 1
        time.sleep(0.5)
    return longest


def choose_programs(before: str) -> list[Program]:
    """Those of every benchmark, and the command of an earlier release."""
    if not before:
        return list_programs()
    return [*list_programs(), Program("pointsman before", (*shlex.split(before), *FLAGS))]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", choices=SCENARIOS, metavar="SCENARIO", help=", ".join(SCENARIOS))
    parser.add_argument("--programs", nargs="+", help="pointsman, 'pointsman before', kube-proxy")
    parser.add_argument("--mode", default="nftables")
    parser.add_argument("--before", default="", help="command of an earlier release")


def run(options: argparse.Namespace) -> Any:
    rows: list[dict[str, Any]] = []
    if options.json is not None and options.json.exists():
        rows = json.loads(options.json.read_text())
    for name in options.only or SCENARIOS:
        scenario = SCENARIOS[name]
        for program in choose_programs(options.before):
            if options.programs and program.name not in options.programs:
                continue
            key = {"objects": scenario.title, "program": program.name}
            row = {**key, **measure(program.command, scenario, options.mode)}
            rows = [one for one in rows if not key.items() <= one.items()] + [row]
            print_row(row)
    titles = [scenario.title for scenario in SCENARIOS.values()]
    return sorted(rows, key=lambda row: (titles.index(row["objects"]), row["program"] != "pointsman"))
