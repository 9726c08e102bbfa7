"""A Service proxy as a process on node n1 that reads manifests.

Nothing is assumed about the proxy except that it programs the kernel of its namespace. The beacon is a Service whose port
changes with every write: when connections to the new port are answered, everything written before has been applied.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from pointsman.config.mode_table import MODES
from pointsman.errors import PointsmanError
from pointsman.lab.cluster import Cluster
from pointsman.lab.hosts import CLUSTER_RANGES
from pointsman.lab.objects import Backend, LabService, Manifest, node_manifest, service_range_manifest
from pointsman.lab.probe import Kind, Probe, run_probes

BEACON_PORT = 8090
_BEACON_NUMBER = 250
_BEACON_HOST = "n2"
_STOP_TIMEOUT_SECONDS = 15.0

Command = Callable[[Path, Path], Sequence[str]]
"""(configuration file, manifest directory) -> command line."""


def pointsman_command(configuration: Path, manifests: Path) -> Sequence[str]:
    return (
        sys.executable,
        *("-m", "pointsman", "run"),
        f"--config={configuration}",
        f"--manifests={manifests}",
        f"--state-dir={configuration.parent / 'state'}",
        "--hostname-override=n1",
    )


def configuration(mode: str, **changes: object) -> Manifest:
    """Return a KubeProxyConfiguration for n1. `changes` replace top-level fields or update sections; None removes."""
    made: Manifest = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": mode,
        "hostnameOverride": "n1",
        "clusterCIDR": ",".join(CLUSTER_RANGES),
        "conntrack": {"maxPerCore": 0},
        **{row.periods: {"minSyncPeriod": "50ms"} for row in MODES.values()},
    }
    for name, value in changes.items():
        if isinstance(value, dict) and isinstance(made.get(name), dict):
            made[name] = {**made[name], **value}
        elif value is None:
            del made[name]
        else:
            made[name] = value
    return made


class ProxyFailed(PointsmanError):
    """The proxy exited or did not sync in time. The message holds the end of its log."""


class ProxyProcess:
    """A program in the namespace of n1, with its configuration, manifests and log under `directory`."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.cluster = cluster
        self.directory = directory
        self.config_file = directory / "config.yaml"
        self.manifests = directory / "manifests"
        self.manifests.mkdir(parents=True, exist_ok=True)
        self.log = directory / "proxy.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log_text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def write_objects(self, items: Iterable[Manifest]) -> None:
        """Replace all manifests atomically."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(items)}, indent=1)
        fresh = self.directory / "cluster.json.new"
        fresh.write_text(text)
        fresh.replace(self.manifests / "cluster.json")

    def start_command(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        guard = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()
        with self.cluster["n1"].entered(), self.log.open("ab") as log:
            self._process = subprocess.Popen(
                (*guard, *command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
            )

    def send(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Stop the process and return its exit status. The kernel keeps its rules."""
        if self._process is None:
            return 0
        process, self._process = self._process, None
        process.send_signal(number)
        try:
            return process.wait(_STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise

    def wait_exit(self, seconds: float = 60.0) -> int:
        """Wait until the process exits by itself and return its exit status."""
        return self._process.wait(seconds) if self._process else 0

    def check_alive(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            raise ProxyFailed(f"the proxy exited with status {self._process.returncode}\n{self.log_end()}")

    def log_end(self) -> str:
        return "\n".join(self.log_text.splitlines()[-25:])


class LabProxy(ProxyProcess):
    """A proxy of a whole lab: serves LabServices, and the beacon shows when it has synced."""

    def __init__(self, cluster: Cluster, directory: Path, command: Command = pointsman_command) -> None:
        super().__init__(cluster, directory)
        self._command = command
        self._generation = 0
        cluster.serve(_BEACON_HOST, BEACON_PORT, name="beacon")

    def configure(self, settings: Manifest) -> None:
        self.config_file.write_text(json.dumps(settings, indent=1))

    def start(self) -> None:
        self.start_command(self._command(self.config_file, self.manifests))

    def write(self, services: Iterable[LabService], others: Iterable[Manifest] | None = None) -> None:
        """Replace all manifests. `others` defaults to both nodes and the service range."""
        self._generation += 1
        if others is None:
            others = (node_manifest("n1"), node_manifest("n2"), service_range_manifest())
        self.write_objects(
            (*others, *(m for service in (*services, self._beacon()) for m in service.manifests()))
        )

    def wait(self, seconds: float = 20.0) -> float:
        """Wait until everything written is applied in both families, and return how long that took."""
        started = time.monotonic()
        beacon = self._beacon()
        probes = [Probe("pod3", beacon.address("cluster", family), beacon.ports[0]) for family in (4, 6)]
        while probes:
            self.check_alive()
            if time.monotonic() - started > seconds:
                raise ProxyFailed(f"the proxy did not sync within {seconds:.0f} s\n{self.log_end()}")
            outcomes = run_probes(self.cluster, probes, timeout=0.2)
            probes = [p for p, o in zip(probes, outcomes, strict=True) if o.kind is not Kind.ANSWERED]
            if probes:
                time.sleep(0.01)
        return time.monotonic() - started

    def apply(self, services: Iterable[LabService], others: Iterable[Manifest] | None = None) -> float:
        """Write and wait."""
        self.write(services, others)
        return self.wait()

    def _beacon(self) -> LabService:
        return LabService(
            "zz-beacon",
            _BEACON_NUMBER,
            (Backend(_BEACON_HOST, port=BEACON_PORT),),
            ports=(1000 + self._generation,),
        )
