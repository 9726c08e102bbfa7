"""Kubernetes objects for the lab's hosts, as in a manifest file.

A `LabService` has a number from which all its addresses follow, in both IP families, so that scenarios can name a
frontend (`cluster`, `lb`, `external`, node port) instead of repeating addresses.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from pointsman.lab.hosts import HOSTS, POD_RANGES, SERVICE_RANGES, ZONES

Manifest = dict[str, Any]

TARGET_PORT = 8080
FIRST_NODE_PORT = 30000
_ADDRESS_PATTERNS = {
    "cluster": ("10.96.1.{}", "fd00:10:96::{:x}"),
    "lb": ("203.0.113.{}", "fd00:203::{:x}"),
    "external": ("198.51.100.{}", "fd00:198::{:x}"),
}


class Backend(msgspec.Struct, frozen=True):
    """One endpoint: its host and its state."""

    host: str
    conditions: dict[str, bool] | None = msgspec.field(default_factory=lambda: {"ready": True})
    zones: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    named_node: bool = True
    """False leaves nodeName out."""
    port: int = TARGET_PORT

    def manifest(self, family: int) -> Manifest:
        host = HOSTS[self.host]
        made: Manifest = {"addresses": [host.address(family)]}
        if self.conditions is not None:
            made["conditions"] = dict(self.conditions)
        if self.named_node and host.node:
            made["nodeName"] = host.node
            made["zone"] = ZONES[host.node]
        if self.zones or self.nodes:
            made["hints"] = {
                **({"forZones": [{"name": zone} for zone in self.zones]} if self.zones else {}),
                **({"forNodes": [{"name": node} for node in self.nodes]} if self.nodes else {}),
            }
        return made


class LabService(msgspec.Struct, frozen=True):
    """A Service and its EndpointSlices, dual-stack."""

    name: str
    number: int
    backends: tuple[Backend, ...] = ()
    type: str = "ClusterIP"
    ports: tuple[int, ...] = (80,)
    protocols: tuple[str, ...] = ("TCP",)
    external: bool = False
    """Has external IPs."""
    external_policy: str = "Cluster"
    internal_policy: str = "Cluster"
    affinity_seconds: int = 0
    source_ranges: tuple[str, ...] = ()
    ip_mode: str = "VIP"
    slices: int = 1
    """Every slice holds all backends."""
    annotations: dict[str, str] = {}

    def address(self, kind: str, family: int) -> str:
        """Return the `cluster`, `lb` or `external` address."""
        return _ADDRESS_PATTERNS[kind][0 if family == 4 else 1].format(self.number)

    @property
    def node_port(self) -> int:
        return FIRST_NODE_PORT + self.number

    def node_port_of(self, port: int) -> int:
        """Return the node port of one of `ports`: each further port is 200 higher."""
        return self.node_port + 200 * self.ports.index(port)

    def manifests(self) -> list[Manifest]:
        return [self._service(), *self._slices()]

    def _service(self) -> Manifest:
        addresses = [self.address("cluster", family) for family in (4, 6)]
        spec: Manifest = {
            "type": self.type,
            "clusterIP": addresses[0],
            "clusterIPs": addresses,
            "ipFamilies": ["IPv4", "IPv6"],
            "ipFamilyPolicy": "RequireDualStack",
            "internalTrafficPolicy": self.internal_policy,
            "sessionAffinity": "ClientIP" if self.affinity_seconds else "None",
            "ports": [self._port(port, protocol) for port in self.ports for protocol in self.protocols],
        }
        if self.affinity_seconds:
            spec["sessionAffinityConfig"] = {"clientIP": {"timeoutSeconds": self.affinity_seconds}}
        if self.type != "ClusterIP" or self.external:
            spec["externalTrafficPolicy"] = self.external_policy
        if self.external:
            spec["externalIPs"] = [self.address("external", family) for family in (4, 6)]
        made: Manifest = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": self.name, "namespace": "lab"},
            "spec": spec,
        }
        if self.annotations:
            made["metadata"]["annotations"] = dict(self.annotations)
        if self.type == "LoadBalancer":
            if self.external_policy == "Local":
                spec["healthCheckNodePort"] = 32000 + self.number
            if self.source_ranges:
                spec["loadBalancerSourceRanges"] = list(self.source_ranges)
            ingress = [{"ip": self.address("lb", family), "ipMode": self.ip_mode} for family in (4, 6)]
            made["status"] = {"loadBalancer": {"ingress": ingress}}
        return made

    def _port(self, port: int, protocol: str) -> Manifest:
        made: Manifest = {
            "name": _format_port_name(port, protocol),
            "port": port,
            "protocol": protocol,
            "targetPort": TARGET_PORT,
        }
        if self.type != "ClusterIP":
            made["nodePort"] = self.node_port_of(port)
        return made

    def _slices(self) -> Iterable[Manifest]:
        for copy in range(self.slices):
            for family in (4, 6):
                for target in sorted({backend.port for backend in self.backends}):
                    yield {
                        "apiVersion": "discovery.k8s.io/v1",
                        "kind": "EndpointSlice",
                        "metadata": {
                            "name": f"{self.name}-v{family}-{target}-{copy}",
                            "namespace": "lab",
                            "labels": {"kubernetes.io/service-name": self.name},
                        },
                        "addressType": f"IPv{family}",
                        "ports": [
                            {"name": _format_port_name(port, protocol), "port": target, "protocol": protocol}
                            for port in self.ports
                            for protocol in self.protocols
                        ],
                        "endpoints": [b.manifest(family) for b in self.backends if b.port == target],
                    }


def _format_port_name(port: int, protocol: str) -> str:
    return f"p{port}-{protocol.lower()}"


def backends(*hosts: str) -> tuple[Backend, ...]:
    """Return ready endpoints on these hosts."""
    return tuple(Backend(host) for host in hosts)


def node_manifest(name: str, zone: str = "") -> Manifest:
    host = HOSTS[name]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "topology.kubernetes.io/zone": zone or ZONES[name],
            },
        },
        "spec": {"podCIDR": POD_RANGES[name][0], "podCIDRs": list(POD_RANGES[name])},
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": host.ipv4},
                {"type": "InternalIP", "address": host.ipv6},
                {"type": "Hostname", "address": name},
            ]
        },
    }


def service_range_manifest() -> Manifest:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "ServiceCIDR",
        "metadata": {"name": "kubernetes"},
        "spec": {"cidrs": list(SERVICE_RANGES)},
    }
