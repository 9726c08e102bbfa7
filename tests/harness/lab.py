"""The proxy under test: Pointsman, or kube-proxy when KUBE_PROXY_BINARY names one.

Running the same matrix against kube-proxy checks the expectations themselves.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.harness.raw_probes import serve_sctp
from tests.harness.waiting import wait_until

from pointsman.lab import HOSTS, Cluster
from pointsman.lab.objects import TARGET_PORT
from pointsman.lab.probe import Kind, Probe, connect
from pointsman.lab.proxy import Command, LabProxy, configuration, pointsman_command

REFERENCE = os.environ.get("KUBE_PROXY_BINARY", "")
MODES = tuple(os.environ.get("POINTSMAN_E2E_MODES", "nftables,iptables").split(","))
"""ipvs needs a kernel with ip_vs and must be requested."""
API_SCRIPT = Path(__file__).parent / "manifest_api.py"
API_PORT = 8099
OTHER_TARGET_PORT = 8081


def missing_privilege() -> str:
    """Return why the lab cannot run here; empty when it can."""
    return "" if os.geteuid() == 0 else "needs root: network namespaces and netfilter"


@contextlib.contextmanager
def build_lab() -> Iterator[Cluster]:
    """Build a cluster with an echo server on every host that can be an endpoint."""
    with Cluster() as cluster:
        for host in HOSTS:
            if HOSTS[host].node:
                cluster.serve(host, TARGET_PORT, OTHER_TARGET_PORT)
                serve_sctp(cluster, host)
        yield cluster


@contextlib.contextmanager
def prepare_proxy(
    cluster: Cluster, directory: Path, mode: str, *, through_api: bool = False, **changes: object
) -> Iterator[LabProxy]:
    """Configure a proxy for n1 without starting it, and stop it at the end. kube-proxy reads from an API server."""
    settings = configuration(mode, **changes)
    command: Command = pointsman_command
    if REFERENCE or through_api:
        settings["clientConnection"] = {
            "kubeconfig": str(directory / "kubeconfig"),
            "contentType": "application/json",
        }
        command = _reference_command if REFERENCE else _api_command
    process = LabProxy(cluster, directory, command)
    with contextlib.ExitStack() as stack:
        if command is not pointsman_command:
            stack.enter_context(api_server(cluster, directory))
        process.configure(settings)
        stack.callback(process.stop)
        yield process


def _reference_command(configuration_file: Path, manifests: Path) -> Sequence[str]:
    return (REFERENCE, f"--config={configuration_file}", "-v=2")


def _api_command(configuration_file: Path, manifests: Path) -> Sequence[str]:
    command = pointsman_command(configuration_file, manifests)
    return [argument for argument in command if not argument.startswith("--manifests=")]


@contextlib.contextmanager
def api_server(cluster: Cluster, directory: Path) -> Iterator[None]:
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "lab",
        "clusters": [{"name": "lab", "cluster": {"server": f"http://127.0.0.1:{API_PORT}"}}],
        "users": [{"name": "lab", "user": {}}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
    }
    (directory / "kubeconfig").write_text(json.dumps(kubeconfig))
    command = (sys.executable, str(API_SCRIPT), str(API_PORT), str(directory / "manifests" / "cluster.json"))
    with cluster["n1"].entered(), (directory / "api.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        listening = Probe("n1", "127.0.0.1", API_PORT)
        wait_until(lambda: connect(cluster, listening).kind is not Kind.REFUSED)
        yield
    finally:
        server.kill()
        server.wait()
