"""Duration of every command as a new process, beside kubectl.

The proxy runs in a network namespace of its own, from manifests, and is asked through its control socket. Commands take turns, so
that a busy moment of the machine affects all of them. `--cpu` leaves out wall times, which mean nothing on a busy machine. A command
that has nothing to do with a proxy shows what Python and the imports cost; `top` is left out, because it waits on purpose.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.measured import print_row, read_children_cpu
from bench.network import build_node
from bench.objects import encode_service, encode_slice
from bench.proxies import run_process, wait_for

from pointsman.cli.control_client import NoProxy, ask
from pointsman.lab.netns import Namespace
from pointsman.report.status import StatusReport

ENDPOINTS = 10
PROGRAM = Path(sys.executable).with_name("pointsman")


def write_manifests(directory: Path, services: int) -> Path:
    """A file with that many Services."""
    items = [json.dumps(build_node(1)).encode()]
    for index in range(services):
        items += [encode_service(index), encode_slice(index, ENDPOINTS)]
    path = directory / "objects.json"
    path.write_bytes(b'{"kind": "List", "apiVersion": "v1", "items": [' + b",".join(items) + b"]}")
    return path


@contextlib.contextmanager
def run_proxy(namespace: Namespace, manifests: Path, directory: Path) -> Iterator[Path]:
    """Serving them; the path of its control socket."""
    control = directory / "state" / "control.sock"
    flags = ("--hostname-override=n1", "--conntrack-max-per-core=0", "--cluster-cidr=10.128.0.0/9")
    command = (str(PROGRAM), "run", f"--manifests={manifests}", f"--state-dir={control.parent}", *flags)
    with namespace.entered(), run_process(command, directory / "log"):
        wait_for(lambda: _synced(control), 120, "the first sync", pause=0.2)
        yield control


def _synced(control: Path) -> bool:
    try:
        status = ask(control, "/status", StatusReport)
    except NoProxy:
        return False
    return any(family.service_ports and not family.pending for family in status.families)


def list_commands(control: Path, manifests: Path) -> dict[str, list[str]]:
    """What is measured, by how it is shown."""
    live, pointsman = ["--control-socket", str(control)], str(PROGRAM)
    found = {
        "version": [pointsman, "version"],
        "help": [pointsman, "help"],
        "status": [pointsman, "status", *live],
        "list": [pointsman, "list", *live],
        "list of one": [pointsman, "list", "service-1", *live],
        "explain": [pointsman, "explain", "service-1", *live],
        "verify": [pointsman, "verify", *live],
        "check": [pointsman, "check"],
        "completion": [pointsman, "completion", "bash"],
        "list from files": [pointsman, "list", "--manifests", str(manifests)],
        "render": [pointsman, "render", "--manifests", str(manifests)],
    }
    kubectl = shutil.which("kubectl")
    if kubectl is not None:
        found["kubectl version --client"] = [kubectl, "version", "--client"]
    return found


def time_command(command: Sequence[str]) -> tuple[float, float]:
    """Return wall and processor time of a new process, in milliseconds."""
    before, began = read_children_cpu(), time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return (time.perf_counter() - began) * 1000, (read_children_cpu() - before) * 1000


def measure(measured: Mapping[str, Sequence[str]], runs: int, *, cpu_only: bool) -> list[dict[str, Any]]:
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in measured}
    for _ in range(runs):
        for name, command in measured.items():
            times[name].append(time_command(command))
    rows = []
    for name, taken in times.items():
        wall, cpu = (statistics.median(column) for column in zip(*taken, strict=True))
        rows.append({"command": name, **({} if cpu_only else {"wall_ms": wall}), "cpu_ms": cpu})
    return rows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--services", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--cpu", action="store_true", help="only processor time")


def run(options: argparse.Namespace) -> Any:
    with contextlib.closing(Namespace()) as namespace, tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        namespace.run(["ip", "link", "set", "lo", "up"])
        manifests = write_manifests(directory, options.services)
        with run_proxy(namespace, manifests, directory) as control:
            rows = measure(list_commands(control, manifests), options.runs, cpu_only=options.cpu)
    for row in rows:
        print_row(row)
    note = (
        f"medians of {options.runs} fresh processes each, in turns, with {options.services:,} Services of "
        f"{ENDPOINTS} endpoints; load average {os.getloadavg()[0]:.1f}"
    )
    return {"commands": rows, "note": note}
