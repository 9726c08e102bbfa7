"""A whole proxy process in a network namespace, ours or kube-proxy, and what it says about itself."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pointsman.lab.netns import Namespace

OURS = "pointsman"
FLAGS = ("run", "--control-socket={work}/control", "--state-dir={work}/state")
METRICS_PORT = 10249
LAST_SYNC = "kubeproxy_sync_proxy_rules_last_timestamp_seconds"
IMPORTS = """\
import contextlib, pointsman.cli.main, pointsman.cli.run
pointsman.cli.run.limit_arenas()
import pointsman.app.supervisor, pointsman.backends.nftables.mode, pointsman.backends.iptables.mode, pointsman.backends.ipvs.mode
with contextlib.suppress(ImportError):
    import encodings.idna, pointsman.http.http2
"""
"""What a start imports; of HTTP/2 also where the commit that is measured has none."""


class Program(NamedTuple):
    """A command without its configuration; {work} is replaced by a directory of its own."""

    name: str
    command: tuple[str, ...]
    source: str = ""
    """Where Python finds our package, if it is not this one."""


def describe_ours(name: str = OURS, source: str = "") -> Program:
    return Program(name, (sys.executable, "-m", "pointsman", *FLAGS), source)


def list_programs() -> list[Program]:
    kube_proxy = os.environ.get("KUBE_PROXY_BINARY")
    return [describe_ours(), *([Program("kube-proxy", (kube_proxy,))] if kube_proxy else [])]


def render_config(kubeconfig: Path, mode: str = "nftables", node: str = "n1", **settings: object) -> str:
    """A KubeProxyConfiguration; `settings` are those of the mode."""
    return json.dumps(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": mode,
            "hostnameOverride": node,
            "clusterCIDR": "10.128.0.0/9",
            "conntrack": {"maxPerCore": 0},
            "clientConnection": {"kubeconfig": str(kubeconfig)},
            mode: {"syncPeriod": "1h", **settings},
        }
    )


def compile_modules(cache: Path, source: str = "") -> dict[str, str]:
    """The environment of a process that finds its modules compiled, as in our image; they are compiled now."""
    environment = {**os.environ, "PYTHONOPTIMIZE": "2", "PYTHONPYCACHEPREFIX": str(cache)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    if source:
        environment["PYTHONPATH"] = source
    subprocess.run([sys.executable, "-c", IMPORTS], env=environment, check=True)
    return environment


class Proxy:
    """One process with its configuration file, in a namespace that the caller owns."""

    def __init__(
        self, program: Program, namespace: Namespace, work: Path, text: str, environment: Mapping[str, str]
    ) -> None:
        self.program, self.namespace, self._work, self._environment = program, namespace, work, environment
        work.mkdir(exist_ok=True)
        (work / "config.json").write_text(text)
        self._process: subprocess.Popen[bytes] | None = None
        self._cpu_before = 0.0

    @property
    def control(self) -> Path:
        return self._work / "control"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        command = [part.format(work=self._work) for part in self.program.command]
        with self.namespace.entered(), (self._work / "proxy.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, f"--config={self._work / 'config.json'}"],
                stdout=log,
                stderr=log,
                env=dict(self._environment),
            )

    def stop(self) -> None:
        if self._process is not None:
            self._cpu_before = self.cpu()
            self._process.terminate()
            self._process.wait()
            self._process = None

    def cpu(self) -> float:
        """Processor seconds since the first start, programs that it started included."""
        return self._cpu_before + (read_cpu_seconds(self.pid, children=True) if self._process else 0.0)

    def metrics(self) -> str:
        """Its metrics, or nothing when there is no answer."""
        return fetch(self.namespace, f"http://127.0.0.1:{METRICS_PORT}/metrics")

    def synced_at(self) -> float:
        """When the last sync ended (Unix seconds), 0 before the first."""
        return read_metric(self.metrics(), LAST_SYNC)


def prepare_proxy(
    program: Program, namespace: Namespace, work: Path, kubeconfig: str, mode: str, min_sync_period: str
) -> Proxy:
    """Write the files of a proxy, which can then be started."""
    work.mkdir(exist_ok=True)
    file = work / "kubeconfig"
    file.write_text(kubeconfig)
    text = render_config(file, mode, minSyncPeriod=min_sync_period)
    return Proxy(program, namespace, work, text, compile_modules(work / "compiled", program.source))


def fetch(namespace: Namespace, url: str, accept: str = "*/*") -> str:
    request = urllib.request.Request(url, headers={"Accept": accept})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with contextlib.suppress(OSError), namespace.entered(), opener.open(request, timeout=60) as answer:
        return str(answer.read().decode(errors="replace"))
    return ""


def read_metric(text: str, name: str, labels: str = 'ip_family="IPv4"') -> float:
    """The first sample with these labels; 0 without one."""
    selected = rf"{{[^}}]*{labels}[^}}]*}}" if labels else "(?:{.*})?"
    found = re.search(rf"^{name}{selected} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


@dataclass(frozen=True)
class Histogram:
    """Of durations in seconds; `counts` are those up to and including each bound, the last one being infinite."""

    bounds: tuple[float, ...] = ()
    counts: tuple[float, ...] = ()
    total: float = 0.0

    @property
    def count(self) -> float:
        return self.counts[-1] if self.counts else 0.0

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def since(self, before: Histogram) -> Histogram:
        pairs = itertools.zip_longest(self.counts, before.counts, fillvalue=0.0)
        return Histogram(self.bounds, tuple(now - was for now, was in pairs), self.total - before.total)

    def quantile(self, share: float) -> float:
        """As Prometheus computes it: linear within a bucket, the highest finite bound at most."""
        rank, low, below = share * self.count, 0.0, 0.0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            if count >= rank and count > below:
                return low + (bound - low) * (rank - below) / (count - below) if bound < float("inf") else low
            low, below = bound, count
        return low


def read_histogram(text: str, name: str, labels: str = 'ip_family="IPv4"') -> Histogram:
    pattern = rf'^{name}_bucket{{[^}}]*{labels}[^}}]*le="([^"]+)"}} (\S+)$'
    found = [(float(bound), float(count)) for bound, count in re.findall(pattern, text, re.MULTILINE)]
    bounds, counts = zip(*found, strict=True) if found else ((), ())
    return Histogram(bounds, counts, read_metric(text, f"{name}_sum", labels))


def wait_for(condition: Callable[[], Any], seconds: float, what: str, pause: float = 0.1) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"gave up waiting for {what}")
        time.sleep(pause)


def read_memory_mib(pid: int | str = "self", what: str = "VmRSS") -> float:
    """VmRSS, what it holds now, VmHWM, the most it ever held, or Pss, where shared pages count in part."""
    file = f"/proc/{pid}/{'smaps_rollup' if what == 'Pss' else 'status'}"
    found = re.search(rf"^{what}:\s+(\d+) kB", Path(file).read_text(), re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0


def read_cpu_seconds(pid: int, *, children: bool = False) -> float:
    """User and system time of all its threads, and of the programs it waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(field) for field in fields[11 : 15 if children else 13]) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def run_process(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            yield process
        finally:
            process.terminate()
            process.wait()
