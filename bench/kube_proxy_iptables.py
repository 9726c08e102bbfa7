"""The real kube-proxy in iptables mode over the same made-up cluster, timed by its own metrics."""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.objects import service_json, slice_json

_API_PORT = 8099
METRICS = "http://127.0.0.1:10249/metrics"
_MANIFEST_API = Path(__file__).resolve().parents[1] / "tests" / "harness" / "manifest_api.py"
_TIMEOUT_SECONDS = 900
CONFIG: dict[str, object] = {
    "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
    "kind": "KubeProxyConfiguration",
    "mode": "iptables",
    "hostnameOverride": "node-0",
    "clusterCIDR": "10.128.0.0/9",
    "conntrack": {"maxPerCore": 0},
    "iptables": {"minSyncPeriod": "1ms", "syncPeriod": "1h"},
}


def measure_kube_proxy(
    binary: str, services: int, endpoints: int, variant: str, directory: Path
) -> dict[str, float]:
    """Seconds of the first (full) sync, of partial ones and of the first after a restart, by kube-proxy's own metrics."""
    objects = directory / "objects.json"
    generations = [0] * services
    write_objects(objects, generations, endpoints)
    with api_server(objects):
        with kube_proxy(binary, directory, variant):
            first = _full_sync()
            settled = _settled("partial")
            partial = []
            for generation in range(1, 6):
                generations[services // 2] = generation
                write_objects(objects, generations, endpoints)
                now = _wait_for("partial", settled[1] + 1)
                partial.append(now[0] - settled[0])
                settled = now
            generations.append(0)
            write_objects(objects, generations, endpoints)
            added = _wait_for("partial", settled[1] + 1)[0] - settled[0]
        with kube_proxy(binary, directory, variant):
            restarted = _full_sync()
    return {
        "first_s": first,
        "restart_s": restarted,
        "endpoint_s": statistics.median(partial),
        "service_s": added,
    }


def _full_sync() -> float:
    """Seconds of the full sync with which it starts; of several, their mean."""
    total, count = _wait_for("full", 1)
    return total / count


def write_objects(path: Path, generations: list[int], endpoints: int) -> None:
    items = [
        {
            "kind": "Node",
            "apiVersion": "v1",
            "metadata": {"name": "node-0"},
            "status": {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]},
        }
    ]
    for index, generation in enumerate(generations):
        items += [json.loads(service_json(index)), json.loads(slice_json(index, endpoints, generation))]
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps({"items": items}))
    temporary.replace(path)


@contextmanager
def api_server(objects: Path) -> Iterator[None]:
    with _running(
        [sys.executable, str(_MANIFEST_API), str(_API_PORT), str(objects)], objects.parent / "api.log"
    ):
        yield


def variant_programs(directory: Path, variant: str) -> Path:
    """A directory whose `iptables` and so on are of this variant, for the front of PATH."""
    programs = directory / f"programs-{variant}"
    programs.mkdir(exist_ok=True)
    multi = shutil.which(f"xtables-{variant}-multi", path="/usr/sbin:/sbin")
    if multi is None:
        raise SystemExit(f"xtables-{variant}-multi is not installed")
    for name in ("iptables", "ip6tables"):
        for suffix in ("", "-save", "-restore"):
            link = programs / f"{name}{suffix}"
            link.unlink(missing_ok=True)
            link.symlink_to(multi)
    return programs


@contextmanager
def kube_proxy(
    binary: str, directory: Path, variant: str, settings: dict[str, object] = CONFIG
) -> Iterator[None]:
    programs = variant_programs(directory, variant)
    kubeconfig = directory / "kubeconfig"
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{_API_PORT}"}}
    context = {"name": "c", "context": {"cluster": "c", "user": ""}}
    kubeconfig.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [cluster],
                "contexts": [context],
                "current-context": "c",
            }
        )
    )
    config = directory / "config.json"
    connection = {"kubeconfig": str(kubeconfig), "contentType": "application/json"}
    config.write_text(json.dumps(settings | {"clientConnection": connection}))
    environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"}
    with _running([binary, "--config", str(config), "-v", "2"], directory / "kube-proxy.log", environment):
        yield


@contextmanager
def _running(command: list[str], log: Path, environment: dict[str, str] | None = None) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        try:
            yield
        finally:
            process.terminate()
            process.wait()


def _sample(kind: str) -> tuple[float, int]:
    """Sum of seconds and number of syncs of a kind so far."""
    try:
        with urllib.request.urlopen(METRICS, timeout=10) as answer:
            text = answer.read().decode()
    except (OSError, urllib.error.URLError):
        return 0.0, 0
    name = rf'kubeproxy_sync_{kind}_proxy_rules_duration_seconds_(sum|count){{ip_family="IPv4"}} (\S+)'
    found = dict(re.findall(name, text))
    return float(found.get("sum", 0)), int(float(found.get("count", 0)))


def _wait_for(kind: str, count: int) -> tuple[float, int]:
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        total, seen = _sample(kind)
        if seen >= count:
            return total, seen
        time.sleep(0.05)
    raise SystemExit(f"kube-proxy did not finish {count} {kind} syncs within {_TIMEOUT_SECONDS} s")


def _settled(kind: str) -> tuple[float, int]:
    """The sample once two looks, half a second apart, agree."""
    before = _sample(kind)
    while True:
        time.sleep(0.5)
        now = _sample(kind)
        if now == before:
            return now
        before = now
