"""The Kubernetes objects a proxy reads, with only the fields it needs.

Decoded straight from bytes, protobuf or JSON: fields not named here are skipped without being built. Everything
optional has the API's meaning of "absent" as its default, so one struct serves full and sparse objects.
"""

from __future__ import annotations

import sys
from typing import Annotated, TypeVar

import msgspec

SERVICE_PROXY_NAME_LABEL = "service.kubernetes.io/service-proxy-name"
HEADLESS_LABEL = "service.kubernetes.io/headless"
SERVICE_NAME_LABEL = "kubernetes.io/service-name"
ZONE_LABEL = "topology.kubernetes.io/zone"
TRIGGER_TIME_ANNOTATION = "endpoints.kubernetes.io/last-change-trigger-time"
AUTOSCALER_TAINT = "ToBeDeletedByClusterAutoscaler"

MAX_ENTRIES = 20_000
"""Limit of one list in an object: an EndpointSlice may have as many ports, and 1,000 endpoints."""
T = TypeVar("T")
Entries = Annotated[list[T], msgspec.Meta(max_length=MAX_ENTRIES)]


class Meta(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """metadata"""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None

    @property
    def key(self) -> str:
        """`namespace/name`, or `name` for cluster-scoped objects; one shared string."""
        return sys.intern(f"{self.namespace}/{self.name}") if self.namespace else self.name

    def label(self, name: str) -> str | None:
        return self.labels.get(name) if self.labels else None

    def annotation(self, name: str) -> str | None:
        return self.annotations.get(name) if self.annotations else None


class ServicePortSpec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """spec.ports[]"""

    port: int
    name: str = ""
    protocol: str = "TCP"
    node_port: int = 0
    target_port: int | str | None = None


class ClientIPConfig(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """spec.sessionAffinityConfig.clientIP"""

    timeout_seconds: int | None = None


class SessionAffinityConfig(msgspec.Struct, frozen=True, gc=False, rename={"client_ip": "clientIP"}):
    """spec.sessionAffinityConfig"""

    client_ip: ClientIPConfig | None = None


class ServiceSpec(
    msgspec.Struct,
    frozen=True,
    gc=False,
    rename={
        "cluster_ip": "clusterIP",
        "cluster_ips": "clusterIPs",
        "session_affinity": "sessionAffinity",
        "session_affinity_config": "sessionAffinityConfig",
        "external_ips": "externalIPs",
        "load_balancer_source_ranges": "loadBalancerSourceRanges",
        "internal_traffic_policy": "internalTrafficPolicy",
        "traffic_distribution": "trafficDistribution",
        "external_traffic_policy": "externalTrafficPolicy",
        "health_check_node_port": "healthCheckNodePort",
        "ip_families": "ipFamilies",
    },
):
    """spec"""

    type: str = "ClusterIP"
    cluster_ip: str = ""
    cluster_ips: Entries[str] | None = None
    ports: Entries[ServicePortSpec] | None = None
    session_affinity: str = "None"
    session_affinity_config: SessionAffinityConfig | None = None
    external_ips: Entries[str] | None = None
    load_balancer_source_ranges: Entries[str] | None = None
    internal_traffic_policy: str | None = None
    external_traffic_policy: str | None = None
    health_check_node_port: int = 0
    ip_families: Entries[str] | None = None
    traffic_distribution: str | None = None
    """For `pointsman simulate`: the EndpointSlice controller writes hints by it, and a proxy reads the hints."""


class Ingress(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """status.loadBalancer.ingress[]"""

    ip: str = ""
    ip_mode: str | None = None


class LoadBalancerStatus(msgspec.Struct, frozen=True, gc=False):
    """status.loadBalancer"""

    ingress: Entries[Ingress] | None = None


class ServiceStatus(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """status"""

    load_balancer: LoadBalancerStatus | None = None


class Service(msgspec.Struct, frozen=True, gc=False):
    """v1 Service"""

    metadata: Meta
    spec: ServiceSpec = ServiceSpec()
    status: ServiceStatus = ServiceStatus()


class Conditions(msgspec.Struct, frozen=True, gc=False):
    """endpoints[].conditions: absent means unknown, which Kubernetes defines as ready"""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class Hint(msgspec.Struct, frozen=True, gc=False):
    """endpoints[].hints.forZones[] and .forNodes[]"""

    name: str = ""


class Hints(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """endpoints[].hints"""

    for_zones: Entries[Hint] | None = None
    for_nodes: Entries[Hint] | None = None


class TargetRef(msgspec.Struct, frozen=True, gc=False):
    """endpoints[].targetRef"""

    kind: str = ""
    name: str = ""


class SliceEndpoint(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """endpoints[]"""

    addresses: Entries[str] | None = None
    conditions: Conditions | None = None
    node_name: str | None = None
    zone: str | None = None
    hints: Hints | None = None
    target_ref: TargetRef | None = None


class SlicePort(msgspec.Struct, frozen=True, gc=False):
    """ports[]; a port without a number means all ports, which a proxy cannot use"""

    name: str | None = None
    protocol: str | None = None
    port: int | None = None


class EndpointSlice(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """discovery.k8s.io/v1 EndpointSlice"""

    metadata: Meta
    address_type: str = ""
    endpoints: Entries[SliceEndpoint] | None = None
    ports: Entries[SlicePort] | None = None


class Taint(msgspec.Struct, frozen=True, gc=False):
    """spec.taints[]"""

    key: str = ""


class NodeSpec(
    msgspec.Struct, frozen=True, gc=False, rename={"pod_cidr": "podCIDR", "pod_cidrs": "podCIDRs"}
):
    """spec"""

    pod_cidr: str = ""
    pod_cidrs: Entries[str] | None = None
    taints: Entries[Taint] | None = None


class NodeAddress(msgspec.Struct, frozen=True, gc=False):
    """status.addresses[]"""

    type: str = ""
    address: str = ""


class NodeStatus(msgspec.Struct, frozen=True, gc=False):
    """status"""

    addresses: Entries[NodeAddress] | None = None


class Node(msgspec.Struct, frozen=True, gc=False):
    """v1 Node"""

    metadata: Meta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class ServiceCIDRSpec(msgspec.Struct, frozen=True, gc=False):
    """spec"""

    cidrs: Entries[str] | None = None


class ServiceCIDR(msgspec.Struct, frozen=True, gc=False):
    """networking.k8s.io/v1 ServiceCIDR"""

    metadata: Meta
    spec: ServiceCIDRSpec = ServiceCIDRSpec()


KubeObject = Service | EndpointSlice | Node | ServiceCIDR


class Upsert(msgspec.Struct, frozen=True, gc=False):
    """An object was added or changed."""

    object: KubeObject


class Delete(msgspec.Struct, frozen=True, gc=False):
    """An object was deleted; `kind` is its type (Service, EndpointSlice, Node, ServiceCIDR)."""

    kind: type[KubeObject]
    key: str


class Synced(msgspec.Struct, frozen=True, gc=False):
    """The initial list of this kind is complete."""

    kind: type[KubeObject]


SourceEvent = Upsert | Delete | Synced
"""What every source delivers; a relist delivers only differences."""
