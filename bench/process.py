"""The whole process in a network namespace against an API server on loopback: start, memory, one change.

With KUBE_PROXY_BINARY set to the path of a kube-proxy, it runs on the same objects after ours and ratios are printed.
With several rounds both take turns, and every figure is the median with its range.
The API server is the tests' fake one, which has every object encoded in protobuf before either starts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.measured import print_row, summary
from bench.objects import service_json, slice_json

from pointsman.kube.protobuf import PROTOBUF

NAMESPACE = f"pm-bench-process-{os.getpid()}"
PORT = 18099
LARGE = "50000x2,100000x1"
OURS = "pointsman"
REMEMBERED = ("started_to_synced_s", "full_sync_s", "change_p50_ms", "rss_mib", "peak_mib")
"""Figures that are kept when they are measured again."""
NODE = {
    "kind": "Node",
    "apiVersion": "v1",
    "metadata": {"name": "n1"},
    "status": {"addresses": [{"type": "InternalIP", "address": "172.30.0.10"}]},
}
CONFIG = """\
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: {mode}
hostnameOverride: n1
clusterCIDR: 10.128.0.0/9
conntrack: {{maxPerCore: 0}}
clientConnection: {{kubeconfig: {kubeconfig}, qps: 100, burst: 200}}
iptables: {{minSyncPeriod: 10ms, syncPeriod: 1h}}
nftables: {{minSyncPeriod: 10ms, syncPeriod: 1h}}
"""
KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters: [{{name: c, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
users: [{{name: u, user: {{}}}}]
contexts: [{{name: x, context: {{cluster: c, user: u}}}}]
current-context: x
"""


IMPORTS = """\
import pointsman.cli.run
pointsman.cli.run.limit_arenas()
import pointsman.app.supervisor, pointsman.backends.nftables.mode, pointsman.backends.iptables.mode, pointsman.backends.ipvs.mode
"""


def as_shipped(cache: Path) -> dict[str, str]:
    """The environment of a process that finds its modules compiled, as in our image; they are compiled now."""
    environment = {**os.environ, "PYTHONOPTIMIZE": "2", "PYTHONPYCACHEPREFIX": str(cache)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    subprocess.run([sys.executable, "-c", IMPORTS], env=environment, check=True)
    return environment


def inside(*command: str) -> list[str]:
    return ["ip", "netns", "exec", NAMESPACE, *command]


@contextlib.contextmanager
def namespace() -> Iterator[None]:
    subprocess.run(["ip", "netns", "del", NAMESPACE], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "add", NAMESPACE], check=True)
    for command in ("link set lo up", "addr add 172.30.0.10/32 dev lo"):
        subprocess.run(["ip", "-n", NAMESPACE, *command.split()], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "netns", "del", NAMESPACE], check=False)


@contextlib.contextmanager
def started(
    command: list[str], log: Path, environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        try:
            yield process
        finally:
            process.terminate()
            process.wait()


def fetch(url: str, accept: str = "*/*") -> str:
    """The answer, or nothing when there is none; what is no text comes mangled."""
    script = (
        "import sys, urllib.request as u\n"
        f"answer = u.urlopen(u.Request({url!r}, headers={{'Accept': {accept!r}}}), timeout=300)\n"
        "sys.stdout.buffer.write(answer.read())"
    )
    done = subprocess.run(inside(sys.executable, "-c", script), capture_output=True, check=False)
    return done.stdout.decode(errors="replace")


def wait_synced(url: str, metric_name: str) -> float:
    """When the first sync ended (Unix seconds), by the proxy's own metric.

    One watcher asks now and then, so that asking costs the proxy little of the machine.
    """
    script = f"""
import re, time, urllib.request as u
while True:
    time.sleep(0.2)
    try:
        text = u.urlopen({url!r}, timeout=60).read().decode()
    except OSError:
        continue
    found = re.search(r'^{metric_name}{{[^}}]*ip_family="IPv4"[^}}]*}} (\\S+)$', text, re.MULTILINE)
    if found and float(found[1]) > 0:
        print(found[1])
        break
"""
    done = subprocess.run(
        inside(sys.executable, "-c", script), capture_output=True, text=True, check=True, timeout=900
    )
    return float(done.stdout)


def metric(text: str, name: str, family: str = "IPv4") -> float:
    found = re.search(rf'^{name}{{[^}}]*ip_family="{family}"[^}}]*}} (\S+)$', text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def wait(condition: Callable[[], Any], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"gave up waiting for {what}")
        time.sleep(0.1)


def memory_mib(pid: int, what: str) -> float:
    """VmRSS, what it holds now, or VmHWM, the most it ever held."""
    found = re.search(rf"{what}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def cpu_seconds(pid: int) -> float:
    """User and system time of all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def put_slice(index: int, endpoints: int, generation: int) -> None:
    body = slice_json(index, endpoints, generation)
    path = f"/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/service-{index}-abcde"
    script = (
        "import sys, urllib.request as u\n"
        f"u.urlopen(u.Request('http://127.0.0.1:{PORT}{path}', data=sys.stdin.buffer.read(), method='PUT'), timeout=5)"
    )
    subprocess.run(inside(sys.executable, "-c", script), input=body, check=True)


def measure(command: list[str], services: int, endpoints: int, changes: int, work: Path) -> dict[str, float]:
    """Time to the first complete sync, memory after it, and the sync time of single changes."""
    environment = as_shipped(work / "compiled")
    began = time.time()
    with started(command, work / "proxy.log", environment) as process:
        url = "http://127.0.0.1:10249/metrics"
        last = "kubeproxy_sync_proxy_rules_last_timestamp_seconds"
        first_seen, cpu = wait_synced(url, last) - began, cpu_seconds(process.pid)
        time.sleep(3)
        before = fetch(url)
        result = {
            "started_to_synced_s": first_seen,
            "full_sync_s": metric(before, "kubeproxy_sync_full_proxy_rules_duration_seconds_sum"),
            "start_cpu_s": cpu,
            "rss_mib": memory_mib(process.pid, "VmRSS"),
            "peak_mib": memory_mib(process.pid, "VmHWM"),
        }
        each: list[float] = []
        partial = "kubeproxy_sync_partial_proxy_rules_duration_seconds"
        for number in range(changes if services else 0):
            was = (metric(before, f"{partial}_count"), metric(before, f"{partial}_sum"))
            put_slice(number * 97 % services, endpoints, 1 + number)
            text = [before]

            def synced(text: list[str] = text, count: float = was[0]) -> bool:
                text[0] = fetch(url)
                return metric(text[0], f"{partial}_count") > count

            wait(synced, 60, "a change to be synced")
            before = text[0]
            each.append(metric(before, f"{partial}_sum") - was[1])
        if each:
            result["change_p50_ms"] = statistics.median(each) * 1000
        return result


def one_round(command: list[str], services: int, endpoints: int, mode: str, changes: int) -> dict[str, float]:
    """A program from its start, against a server and in a namespace of its own."""
    with tempfile.TemporaryDirectory() as directory, namespace():
        work = Path(directory)
        items = [json.loads(service_json(i)) for i in range(services)]
        items += [json.loads(slice_json(i, endpoints)) for i in range(services)]
        (work / "objects.json").write_text(
            json.dumps({"kind": "List", "apiVersion": "v1", "items": [NODE, *items]})
        )
        del items
        (work / "kubeconfig").write_text(KUBECONFIG.format(port=PORT))
        (work / "config.yaml").write_text(CONFIG.format(mode=mode, kubeconfig=work / "kubeconfig"))
        server = [sys.executable, "-m", "tests.fake.serve_api", "--objects", str(work / "objects.json")]
        with started(inside(*server, "--port", str(PORT)), work / "api.log"):
            wait(lambda: fetch(f"http://127.0.0.1:{PORT}/api/v1/nodes"), 300, "the API server")
            for path in ("/api/v1/services", "/apis/discovery.k8s.io/v1/endpointslices"):
                fetch(f"http://127.0.0.1:{PORT}{path}", PROTOBUF)
            full = [part.format(work=work) for part in command] + [f"--config={work / 'config.yaml'}"]
            return measure(inside(*full), services, endpoints, changes, work)


def ratios(rows: list[dict[str, Any]]) -> Iterator[str]:
    """How many times more kube-proxy took or held, for every size both were measured at."""
    by_size: dict[tuple[int, int], dict[str, dict[str, Any]]] = {}
    for row in rows:
        by_size.setdefault((row["services"], row["endpoints"]), {})[row["program"]] = row
    for (services, endpoints), programs in by_size.items():
        if len(programs) == 2:
            ours, theirs = programs["pointsman"], programs["kube-proxy"]
            figures = [name for name in ours if name in theirs and isinstance(ours[name], float)]
            shown = ", ".join(f"{name} {theirs[name] / ours[name]:.1f}x" for name in figures)
            yield f"kube-proxy / pointsman at {services}x{endpoints}: {shown}"


def history(kept: list[dict[str, Any]], rows: list[dict[str, Any]], label: str) -> list[dict[str, Any]]:
    """What was kept of earlier states of the program, and ours of this one with the ratios to kube-proxy."""
    added = []
    for row in rows:
        if row["program"] != OURS:
            continue
        size = {name: row[name] for name in ("services", "endpoints")}
        theirs = next((r for r in rows if r is not row and size.items() <= r.items()), {})
        figures = {name: row[name] for name in REMEMBERED if name in row}
        ratios = {
            f"{name.rpartition('_')[0]}_ratio": theirs[name] / row[name] for name in figures if name in theirs
        }
        added.append({"state": label, **size, **figures, **ratios})
    mixed = [row for row in kept if row["state"] != label] + added
    return sorted(mixed, key=lambda row: (row["services"], row["endpoints"]))


def programs() -> dict[str, list[str]]:
    """Commands without their configuration; {work} stands for a directory of their own."""
    found = {
        OURS: [
            sys.executable,
            "-m",
            "pointsman",
            "run",
            "--control-socket=",
            "--state-dir={work}/state",
        ]
    }
    if os.environ.get("KUBE_PROXY_BINARY"):
        found["kube-proxy"] = [os.environ["KUBE_PROXY_BINARY"]]
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", default="0x0,1000x10,10000x10")
    parser.add_argument(
        "--large", action="store_true", help="50,000 and 100,000 Services, without kube-proxy"
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--mode", default="nftables")
    parser.add_argument("--changes", type=int, default=10)
    parser.add_argument("--history", type=Path, help="a file that keeps the main figures of every --state")
    parser.add_argument("--state", default="now", help="name of this state of the program, for --history")


def run(options: argparse.Namespace) -> Any:
    rows: list[dict[str, Any]] = []
    measured = programs()
    if options.large:
        options.sizes = LARGE
        measured.pop("kube-proxy", None)
    for size in options.sizes.split(","):
        services, endpoints = map(int, size.split("x"))
        rounds: dict[str, list[dict[str, float]]] = {name: [] for name in measured}
        for _ in range(options.rounds):
            for name, command in measured.items():
                rounds[name].append(one_round(command, services, endpoints, options.mode, options.changes))
        for name, found in rounds.items():
            rows.append({"program": name, "services": services, "endpoints": endpoints, **summary(found)})
            print_row(rows[-1])
    for line in ratios(rows):
        print(line)
    if options.history:
        kept = json.loads(options.history.read_text()) if options.history.exists() else []
        options.history.write_text(json.dumps(history(kept, rows, options.state), indent=1) + "\n")
    return rows
