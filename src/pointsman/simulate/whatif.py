"""Changes to a cluster that have not been made: what is removed, scaled, set or applied, and what controllers then do.

Pure: a cluster in, a cluster out. Endpoints disappear with their node or pod; nothing is rescheduled, because the question
is what happens before that. Hints are written again, as the EndpointSlice controller does, for the Services that changed.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import msgspec

from pointsman.errors import ConfigError
from pointsman.model.objects import (
    SERVICE_NAME_LABEL,
    EndpointSlice,
    Hint,
    Hints,
    KubeObject,
    Service,
    SliceEndpoint,
    TargetRef,
)
from pointsman.simulate.cluster import Cluster, build_cluster
from pointsman.text import did_you_mean

MAX_REPLICAS = 5000
_SAME_ZONE, _SAME_NODE, _NO_PREFERENCE = "PreferSameZone", "PreferSameNode", ""
_DISTRIBUTIONS = {
    "PreferSameZone": _SAME_ZONE,
    "PreferClose": _SAME_ZONE,
    "PreferSameNode": _SAME_NODE,
    "": _NO_PREFERENCE,
}
_POLICIES = ("Cluster", "Local")
_FIELDS: Mapping[str, tuple[str, Sequence[str]]] = {
    "trafficDistribution": ("traffic_distribution", tuple(_DISTRIBUTIONS)),
    "internalTrafficPolicy": ("internal_traffic_policy", _POLICIES),
    "externalTrafficPolicy": ("external_traffic_policy", _POLICIES),
}

KeepEndpoint = Callable[[EndpointSlice, SliceEndpoint], bool]


class WhatIf(msgspec.Struct, frozen=True):
    """Changes as given on the command line."""

    apply: Sequence[KubeObject] = ()
    settings: Sequence[str] = ()
    """`NAMESPACE/NAME:FIELD=VALUE`"""
    scales: Sequence[str] = ()
    """`NAMESPACE/NAME=REPLICAS`"""
    removals: Sequence[str] = ()
    """`node/NAME`, `zone/NAME` or `pod/NAMESPACE/NAME`"""

    def __bool__(self) -> bool:
        return bool(self.apply or self.settings or self.scales or self.removals)

    def apply_to(self, cluster: Cluster) -> Cluster:
        """Return the changed cluster. Raises ConfigError for what does not exist in it."""
        if self.apply:
            cluster = build_cluster([*cluster.objects, *self.apply])
        touched = {item.metadata.key for item in self.apply if isinstance(item, Service)}
        for text in self.settings:
            cluster, key = _set_field(cluster, text)
            touched.add(key)
        for text in self.scales:
            cluster, key = _scale_service(cluster, text)
            touched.add(key)
        cluster = _write_hints(cluster, touched)
        for text in self.removals:
            cluster = _remove(cluster, text)
        return cluster


def _set_field(cluster: Cluster, text: str) -> tuple[Cluster, str]:
    target, _, assignment = text.partition(":")
    name, separator, value = assignment.partition("=")
    if not separator or name not in _FIELDS:
        meant = did_you_mean(name, _FIELDS)
        raise ConfigError(
            [
                f"--set {text}: must be NAMESPACE/NAME:FIELD=VALUE, with one of the fields {', '.join(_FIELDS)}{meant}"
            ]
        )
    attribute, values = _FIELDS[name]
    if value not in values:
        known = ", ".join(filter(None, values))
        raise ConfigError([f"--set {text}: {name} must be one of {known}{did_you_mean(value, values)}"])
    service = _find_service(cluster, target, f"--set {text}")
    spec = msgspec.structs.replace(service.spec, **{attribute: value})
    changed = msgspec.structs.replace(service, spec=spec)
    key = service.metadata.key
    return msgspec.structs.replace(cluster, services={**cluster.services, key: changed}), key


def _find_service(cluster: Cluster, name: str, given: str) -> Service:
    found = cluster.services.get(name)
    if found is None:
        raise ConfigError([f"{given}: no Service {name}{did_you_mean(name, cluster.services)}"])
    return found


def _scale_service(cluster: Cluster, text: str) -> tuple[Cluster, str]:
    name, _, count = text.partition("=")
    if not count.isdecimal() or int(count) > MAX_REPLICAS:
        raise ConfigError(
            [f"--scale {text}: must be NAMESPACE/NAME=REPLICAS, with 0 to {MAX_REPLICAS} replicas"]
        )
    key = _find_service(cluster, name, f"--scale {text}").metadata.key
    slices = dict(cluster.slices)
    families: dict[str, list[EndpointSlice]] = {}
    for item in slices.values():
        if _find_owner(item) == key:
            families.setdefault(item.address_type, []).append(item)
    if not families:
        raise ConfigError(
            [f"--scale {text}: {name} has no EndpointSlice, so the ports of its pods are not known"]
        )
    for own in families.values():
        for changed in _scale_slices(cluster, own, int(count)):
            slices[changed.metadata.key] = changed
    return msgspec.structs.replace(cluster, slices=slices), key


def _scale_slices(cluster: Cluster, own: Sequence[EndpointSlice], replicas: int) -> Iterator[EndpointSlice]:
    """Yield the slices of one family with as many endpoints, evenly over zones and nodes.

    The last one of the zone and node with most is removed first, as a ReplicaSet does; a new one is placed in the zone and
    on the node with fewest, as topology spread constraints do by default.
    """
    endpoints = [(index, endpoint) for index, item in enumerate(own) for endpoint in item.endpoints or ()]
    while len(endpoints) > replicas:
        zones = Counter(endpoint.zone for _, endpoint in endpoints)
        nodes = Counter(endpoint.node_name for _, endpoint in endpoints)
        most = max(
            range(len(endpoints)),
            key=lambda at: (zones[endpoints[at][1].zone], nodes[endpoints[at][1].node_name], at),
        )
        del endpoints[most]
    used = {address for _, endpoint in endpoints for address in endpoint.addresses or ()}
    addresses = _invent_addresses(own[0].address_type, used)
    zones = Counter(cluster.find_zone(endpoint.node_name or "") for _, endpoint in endpoints)
    nodes = Counter(endpoint.node_name or "" for _, endpoint in endpoints)
    hinted = any(endpoint.hints is not None for _, endpoint in endpoints)
    for number in range(replicas - len(endpoints)):
        node = min(
            cluster.nodes, key=lambda name: (zones[cluster.find_zone(name)], nodes[name], name), default=""
        )
        zone = cluster.find_zone(node)
        zones[zone] += 1
        nodes[node] += 1
        endpoints.append((0, _invent_endpoint(next(addresses), node, zone, number, hinted=hinted)))
    for index, item in enumerate(own):
        yield msgspec.structs.replace(item, endpoints=[endpoint for at, endpoint in endpoints if at == index])


def _invent_addresses(address_type: str, used: set[str]) -> Iterator[str]:
    """Yield addresses of a range for documentation, which no pod has."""
    network = ipaddress.ip_network("2001:db8::/64" if address_type == "IPv6" else "198.18.0.0/15")
    return (text for address in network.hosts() if (text := str(address)) not in used)


def _invent_endpoint(address: str, node: str, zone: str, number: int, *, hinted: bool) -> SliceEndpoint:
    return SliceEndpoint(
        hints=Hints(for_zones=[Hint(zone)]) if hinted and zone else None,
        addresses=[address],
        node_name=node or None,
        zone=zone or None,
        target_ref=TargetRef(kind="Pod", name=f"new-{number + 1}"),
    )


def _remove(cluster: Cluster, text: str) -> Cluster:
    kind, _, name = text.partition("/")
    if kind == "node":
        _require(text, name, cluster.nodes)
        return _remove_nodes(cluster, {name})
    if kind == "zone":
        _require(text, name, cluster.zones)
        return _remove_nodes(cluster, {node for node in cluster.nodes if cluster.find_zone(node) == name})
    if kind != "pod" or name.count("/") != 1:
        raise ConfigError([f"--remove {text}: must be node/NAME, zone/NAME or pod/NAMESPACE/NAME"])
    pods = {
        f"{item.metadata.namespace}/{endpoint.target_ref.name}"
        for item in cluster.slices.values()
        for endpoint in item.endpoints or ()
        if endpoint.target_ref is not None
    }
    _require(text, name, pods)

    def keep(item: EndpointSlice, endpoint: SliceEndpoint) -> bool:
        pod = endpoint.target_ref.name if endpoint.target_ref is not None else ""
        return f"{item.metadata.namespace}/{pod}" != name

    return _filter_endpoints(cluster, keep)


def _require(text: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise ConfigError([f"--remove {text}: not found{did_you_mean(name, known)}"])


def _remove_nodes(cluster: Cluster, removed: set[str]) -> Cluster:
    left = {name: node for name, node in cluster.nodes.items() if name not in removed}
    smaller = msgspec.structs.replace(cluster, nodes=left)
    return _filter_endpoints(smaller, lambda _slice, endpoint: endpoint.node_name not in removed)


def _filter_endpoints(cluster: Cluster, keep: KeepEndpoint) -> Cluster:
    """Return the cluster without some endpoints, and with new hints for the Services that lost one."""
    slices, touched = dict(cluster.slices), set()
    for key, item in cluster.slices.items():
        kept = [endpoint for endpoint in item.endpoints or () if keep(item, endpoint)]
        if len(kept) != len(item.endpoints or ()):
            slices[key] = msgspec.structs.replace(item, endpoints=kept)
            touched.add(_find_owner(item))
    return _write_hints(msgspec.structs.replace(cluster, slices=slices), touched)


def _find_owner(item: EndpointSlice) -> str:
    return f"{item.metadata.namespace}/{item.metadata.label(SERVICE_NAME_LABEL)}"


def _write_hints(cluster: Cluster, touched: set[str]) -> Cluster:
    """Return the cluster with the hints that the EndpointSlice controller writes by trafficDistribution.

    Where a Service has none, hints of its endpoints were made by something else (`topology-mode: Auto`) and are kept.
    """
    slices = dict(cluster.slices)
    for key, item in cluster.slices.items():
        service = cluster.services.get(_find_owner(item))
        if service is None or service.metadata.key not in touched:
            continue
        distribution = service.spec.traffic_distribution
        if distribution is not None:
            preference = _DISTRIBUTIONS.get(distribution, _NO_PREFERENCE)
            hinted = [_write_hint(endpoint, preference) for endpoint in item.endpoints or ()]
            slices[key] = msgspec.structs.replace(item, endpoints=hinted)
    return msgspec.structs.replace(cluster, slices=slices)


def _write_hint(endpoint: SliceEndpoint, preference: str) -> SliceEndpoint:
    ready = endpoint.conditions is None or endpoint.conditions.ready is not False
    if not ready or not endpoint.zone or preference == _NO_PREFERENCE:
        return msgspec.structs.replace(endpoint, hints=None)
    for_nodes = [Hint(endpoint.node_name)] if preference == _SAME_NODE and endpoint.node_name else None
    return msgspec.structs.replace(
        endpoint, hints=Hints(for_zones=[Hint(endpoint.zone)], for_nodes=for_nodes)
    )
