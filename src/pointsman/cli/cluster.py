"""The objects of a whole cluster, for commands that look at one: from manifests, or listed once through a kubeconfig."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pointsman.cli.output import warn
from pointsman.errors import ConfigError

if TYPE_CHECKING:
    from pointsman.model.objects import KubeObject
    from pointsman.simulate.cluster import Cluster

_LIST_TIMEOUT_SECONDS = 120.0


def add_cluster_source(to: argparse.ArgumentParser) -> None:
    source = to.add_argument_group("cluster")
    source.add_argument(
        "--manifests",
        type=Path,
        action="append",
        help="file or directory with Services, EndpointSlices and Nodes, or - for standard input; may be repeated",
    )
    source.add_argument("--kubeconfig", default="", help="default: $KUBECONFIG, else ~/.kube/config")
    source.add_argument("--context", default="", help="context in the kubeconfig; default: the current one")


def reject_two_sources(made: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    if given.manifests is not None and (given.kubeconfig or given.context):
        made.error("--manifests cannot be combined with --kubeconfig or --context")


def read_cluster(command: str, given: argparse.Namespace) -> Cluster:
    """Return the cluster that the arguments of `add_cluster_source` select. Raises ConfigError."""
    from pointsman.simulate.cluster import build_cluster

    if given.manifests is not None:
        return build_cluster(load_manifests(command, given.manifests))
    return _list(given)


def load_manifests(command: str, paths: Sequence[Path]) -> list[KubeObject]:
    """Return what can be used, and warn about the rest. Raises ConfigError where nothing can."""
    from pointsman.source.manifest_files import load_objects
    from pointsman.wording.findings import render_finding

    objects, findings = load_objects(*paths)
    problems = [render_finding(finding) for finding in findings]
    if not objects:
        raise ConfigError(
            problems or [f"{', '.join(map(str, paths))}: holds no Service, EndpointSlice or Node"]
        )
    warn(command, problems)
    return objects


def _list(given: argparse.Namespace) -> Cluster:
    import asyncio

    from pointsman.kube.client import ApiClient
    from pointsman.kube.kubeconfig import access_from_kubeconfig, read_kubeconfig
    from pointsman.simulate.cluster import list_cluster

    path = find_kubeconfig(given.kubeconfig, os.environ)
    access = access_from_kubeconfig(read_kubeconfig(path), path, context=given.context)

    async def list_once() -> Cluster:
        client = ApiClient(access, qps=50.0, burst=100)
        try:
            return await list_cluster(client, _LIST_TIMEOUT_SECONDS)
        finally:
            await client.close()

    return asyncio.run(list_once())


def find_kubeconfig(given: str, environ: Mapping[str, str]) -> Path:
    """Return the file that kubectl would use; of several in $KUBECONFIG the first. Raises ConfigError."""
    listed = given or environ.get("KUBECONFIG", "").split(os.pathsep)[0]
    path = Path(listed) if listed else Path(environ.get("HOME", "/")) / ".kube" / "config"
    if not path.exists():
        raise ConfigError([f"{path}: no such kubeconfig; name one with --kubeconfig, or use --manifests"])
    return path
