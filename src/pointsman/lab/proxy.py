"""A Service proxy as a process on node n1, fed by manifests, and a way to know that it has caught up.

Nothing of the proxy is assumed but that it programs the kernel of its namespace: the beacon is a Service whose port
changes with every write; when connections through the new port are answered, everything written before is in force.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
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
    """A KubeProxyConfiguration for n1; `changes` replace top-level fields, None removes one."""
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
    """The proxy ended, or did not catch up in time; the message holds the end of its log."""


class ProxyProcess:
    """One proxy, its configuration and manifests under `directory`."""

    def __init__(self, cluster: Cluster, directory: Path, command: Command = pointsman_command) -> None:
        self._cluster = cluster
        self._directory = directory
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._generation = 0
        self.manifests = directory / "manifests"
        self.manifests.mkdir(parents=True, exist_ok=True)
        self.log = directory / "proxy.log"
        cluster.serve(_BEACON_HOST, BEACON_PORT, name="beacon")

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    def configure(self, settings: Manifest) -> None:
        (self._directory / "config.yaml").write_text(json.dumps(settings, indent=1))

    def write(self, services: Iterable[LabService], others: Iterable[Manifest] | None = None) -> None:
        """Replace all manifests at once; `others` defaults to both nodes and the service range."""
        self._generation += 1
        items = [node_manifest("n1"), node_manifest("n2"), service_range_manifest()]
        if others is not None:
            items = list(others)
        for service in (*services, self._beacon()):
            items += service.manifests()
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=1)
        fresh = self._directory / "cluster.json.new"
        fresh.write_text(text)
        fresh.replace(self.manifests / "cluster.json")

    def start(self) -> None:
        guard = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()
        command = (*guard, *self._command(self._directory / "config.yaml", self.manifests))
        with self._cluster["n1"].entered(), self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End the process; the kernel keeps what it programmed. Returns the exit status."""
        if self._process is None:
            return 0
        self._process.send_signal(number)
        try:
            status = self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self._process = None
        return status

    def wait(self, seconds: float = 20.0) -> float:
        """Block until what was written last is in force, in both families; returns how long that took."""
        started = time.monotonic()
        beacon = self._beacon()
        probes = [Probe("pod3", beacon.address("cluster", family), beacon.ports[0]) for family in (4, 6)]
        while probes:
            if self._process is not None and self._process.poll() is not None:
                raise ProxyFailed(
                    f"the proxy ended with status {self._process.returncode}\n{self._log_end()}"
                )
            if time.monotonic() - started > seconds:
                raise ProxyFailed(f"the proxy did not catch up within {seconds:.0f} s\n{self._log_end()}")
            outcomes = run_probes(self._cluster, probes, deadline=0.2)
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

    def _log_end(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join(lines[-25:])
