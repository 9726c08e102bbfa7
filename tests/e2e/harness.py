"""Proxies under test: Pointsman, or the reference kube-proxy when KUBE_PROXY_BINARY names one.

Running the same matrix against the reference is how the expectations themselves are checked.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from pointsman.lab import HOSTS, Cluster
from pointsman.lab.objects import TARGET_PORT
from pointsman.lab.probe import Kind, Probe, connect
from pointsman.lab.proxy import Command, ProxyProcess, configuration, pointsman_command

REFERENCE = os.environ.get("KUBE_PROXY_BINARY", "")
MODES = tuple(os.environ.get("POINTSMAN_E2E_MODES", "nftables,iptables").split(","))
"""ipvs needs a kernel with ip_vs, so it is asked for where there is one."""
API_SCRIPT = Path(__file__).parent / "manifest_api.py"
API_PORT = 8099
OTHER_TARGET_PORT = 8081


def missing_privilege() -> str:
    """Why the lab cannot run here; empty when it can."""
    return "" if os.geteuid() == 0 else "needs root: network namespaces and netfilter"


@contextlib.contextmanager
def lab() -> Iterator[Cluster]:
    """A cluster with an echo server on every host that can be an endpoint."""
    with Cluster() as cluster:
        for host in HOSTS:
            if HOSTS[host].node:
                cluster.serve(host, TARGET_PORT, OTHER_TARGET_PORT)
                cluster.serve_sctp(host)
        yield cluster


@contextlib.contextmanager
def proxy(
    cluster: Cluster, directory: Path, mode: str, *, through_api: bool = False, **changes: object
) -> Iterator[ProxyProcess]:
    """A proxy for n1, not started yet; stopped at the end. The reference always reads from an API server."""
    settings = configuration(mode, **changes)
    command: Command = pointsman_command
    if REFERENCE or through_api:
        settings["clientConnection"] = {
            "kubeconfig": str(directory / "kubeconfig"),
            "contentType": "application/json",
        }
        command = _reference_command if REFERENCE else _api_command
    process = ProxyProcess(cluster, directory, command)
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
        until = time.monotonic() + 10
        listening = Probe("n1", "127.0.0.1", API_PORT)
        while connect(cluster, listening, 0.05).kind is Kind.REFUSED and time.monotonic() < until:
            time.sleep(0.05)
        yield
    finally:
        server.kill()
        server.wait()
