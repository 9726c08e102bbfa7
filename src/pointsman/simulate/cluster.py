"""The objects of a cluster, and where its clients are."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from pointsman.errors import ConfigError
from pointsman.kube.client import ApiClient
from pointsman.kube.resources import ENDPOINT_SLICES, SERVICE_CIDRS, SERVICES, Resource
from pointsman.kube.status import WatchStatus
from pointsman.kube.watch import ListWatch
from pointsman.model.objects import (
    ZONE_LABEL,
    EndpointSlice,
    KubeObject,
    Node,
    Service,
    ServiceCIDR,
    SourceEvent,
    Synced,
    Upsert,
)
from pointsman.text import did_you_mean

_FAILURE_CHECK_SECONDS = 0.5
NODES = Resource(Node, "/api/v1/nodes")


class Cluster(msgspec.Struct, frozen=True):
    """Every object that decides where connections go, by key."""

    nodes: Mapping[str, Node] = {}
    services: Mapping[str, Service] = {}
    slices: Mapping[str, EndpointSlice] = {}
    ranges: Mapping[str, ServiceCIDR] = {}

    def find_zone(self, node: str) -> str:
        """Return the zone of a node; empty when it has none or is unknown."""
        found = self.nodes.get(node)
        return (found.metadata.label(ZONE_LABEL) or "") if found is not None else ""

    @property
    def zones(self) -> set[str]:
        return {self.find_zone(name) for name in self.nodes}

    @property
    def service_cidrs(self) -> tuple[str, ...]:
        return tuple(cidr for item in self.ranges.values() for cidr in item.spec.cidrs or ())

    @property
    def objects(self) -> Iterator[KubeObject]:
        for kind in (self.nodes, self.services, self.slices, self.ranges):
            yield from kind.values()


def build_cluster(objects: Iterable[KubeObject]) -> Cluster:
    """Return the cluster of these objects; of an object that comes twice the last counts."""
    by_kind: dict[type, dict[str, Any]] = defaultdict(dict)
    for item in objects:
        by_kind[type(item)][item.metadata.key] = item
    return Cluster(by_kind[Node], by_kind[Service], by_kind[EndpointSlice], by_kind[ServiceCIDR])


async def list_cluster(client: ApiClient, timeout_seconds: float) -> Cluster:
    """List everything once. Raises ConfigError when a list is refused, or not complete within the timeout."""
    objects: list[KubeObject] = []
    lists = [
        asyncio.create_task(_list_kind(client, resource, objects))
        for resource in (NODES, SERVICE_CIDRS, SERVICES, ENDPOINT_SLICES)
    ]
    try:
        async with asyncio.timeout(timeout_seconds):
            await asyncio.gather(*lists)
    except TimeoutError as error:
        raise ConfigError([f"{client.server}: no complete list within {timeout_seconds:g} s"]) from error
    finally:
        for task in lists:
            task.cancel()
        await asyncio.gather(*lists, return_exceptions=True)
    return build_cluster(objects)


async def _list_kind(client: ApiClient, resource: Resource[Any], objects: list[KubeObject]) -> None:
    done = asyncio.Event()

    async def deliver(event: SourceEvent) -> None:
        if isinstance(event, Upsert):
            objects.append(event.object)
        elif isinstance(event, Synced):
            done.set()

    status = WatchStatus()
    watch = ListWatch(client, resource, status=status, on_finding=lambda _finding: None)
    following = asyncio.create_task(watch.follow(deliver))
    try:
        while not done.is_set():
            if status.failures:
                raise ConfigError([status.last_error])
            await asyncio.wait((asyncio.ensure_future(done.wait()),), timeout=_FAILURE_CHECK_SECONDS)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


class ClientWeights(msgspec.Struct, frozen=True):
    """Where connections come from: relative numbers by node, and their sums by zone."""

    by_node: Mapping[str, float]
    by_zone: Mapping[str, float]
    nodes: Mapping[str, tuple[str, ...]]
    """Names by zone."""
    source: str
    """The assumption, for the reader."""


def weigh_nodes(cluster: Cluster) -> ClientWeights:
    """As many clients on each node."""
    return _build_weights(cluster, dict.fromkeys(cluster.nodes, 1.0), "equal per node")


def weigh_pods(cluster: Cluster) -> ClientWeights:
    """As many clients on each node as it has pods behind Services."""
    pods = {
        (item.metadata.namespace, endpoint.target_ref.name, endpoint.node_name)
        for item in cluster.slices.values()
        for endpoint in item.endpoints or ()
        if endpoint.target_ref is not None and endpoint.target_ref.kind == "Pod" and endpoint.node_name
    }
    found = Counter(node for _, _, node in pods)
    by_node = {name: float(found[name]) for name in cluster.nodes}
    if not any(by_node.values()):
        raise ConfigError(["--clients pods: no endpoint names a pod and a Node of this cluster"])
    return _build_weights(cluster, by_node, "by the pods of each node that are endpoints")


class WeightFile(msgspec.Struct, forbid_unknown_fields=True):
    """A file for --clients. Nodes and zones that it does not name have no clients."""

    nodes: dict[str, float] = {}
    zones: dict[str, float] = {}
    """The weight of a zone is distributed equally over those of its nodes that the file does not name."""


def weigh_by_file(cluster: Cluster, given: WeightFile, name: str) -> ClientWeights:
    """Return the weights that a file names. Raises ConfigError for names that do not exist and for no clients at all."""
    unknown = [
        f"node {node}{did_you_mean(node, cluster.nodes)}" for node in given.nodes if node not in cluster.nodes
    ]
    unknown += [
        f"zone {zone}{did_you_mean(zone, cluster.zones)}" for zone in given.zones if zone not in cluster.zones
    ]
    if unknown:
        raise ConfigError([f"{name}: the cluster has no {text}" for text in unknown])
    sizes = Counter(cluster.find_zone(node) for node in cluster.nodes if node not in given.nodes)
    by_node = {
        node: given.nodes[node] if node in given.nodes else given.zones.get(zone, 0.0) / sizes[zone]
        for node in cluster.nodes
        for zone in (cluster.find_zone(node),)
    }
    if min(by_node.values(), default=0.0) < 0 or not any(by_node.values()):
        raise ConfigError([f"{name}: weights must be positive, and at least one node must have clients"])
    return _build_weights(cluster, by_node, f"by {name}")


def _build_weights(cluster: Cluster, by_node: Mapping[str, float], source: str) -> ClientWeights:
    by_zone: dict[str, float] = {}
    nodes: dict[str, tuple[str, ...]] = {}
    for node, weight in by_node.items():
        zone = cluster.find_zone(node)
        by_zone[zone] = by_zone.get(zone, 0.0) + weight
        nodes[zone] = (*nodes.get(zone, ()), node)
    return ClientWeights(by_node, by_zone, nodes, source)
