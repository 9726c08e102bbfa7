"""Kubernetes objects as an API server sends them. Typed objects and plans: tests.factory, which builds on these."""

from __future__ import annotations

from typing import Any

from pointsman.lab.hosts import HOSTS

KubeDict = dict[str, Any]
BACKEND_PORT = 8080


def service(
    name: str, cluster_ip: str = "10.96.0.10", *, namespace: str = "default", **spec: Any
) -> KubeDict:
    """A Service; keyword arguments are fields of its spec, or `metadata` and `status`."""
    metadata, status = spec.pop("metadata", {}), spec.pop("status", {"loadBalancer": {}})
    return {
        "kind": "Service",
        "apiVersion": "v1",
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "spec": {
            "type": "ClusterIP",
            "clusterIP": cluster_ip,
            "clusterIPs": [cluster_ip],
            "ports": [{"port": 80, "protocol": "TCP", "targetPort": BACKEND_PORT}],
            **spec,
        },
        "status": status,
    }


def endpoint_slice(
    name: str,
    *addresses: str,
    service_name: str = "web",
    namespace: str = "default",
    node: str = "n1",
    zone: str = "zone-a",
    port_name: str = "",
    **endpoint: Any,
) -> KubeDict:
    """An EndpointSlice of ready endpoints; keyword arguments are further fields of each endpoint."""
    endpoints = [
        {
            "addresses": [address],
            "conditions": {"ready": True, "serving": True, "terminating": False},
            "nodeName": node,
            "zone": zone,
            "targetRef": {"kind": "Pod", "name": f"pod-{address}", "namespace": namespace},
            **endpoint,
        }
        for address in addresses
    ]
    family = "IPv6" if any(":" in address for address in addresses) else "IPv4"
    return slice_of(name, endpoints, service_name, namespace, family=family, port_name=port_name)


def slice_of(
    name: str,
    endpoints: list[KubeDict],
    service_name: str = "web",
    namespace: str = "default",
    *,
    family: str = "IPv4",
    port_name: str = "http",
) -> KubeDict:
    """An EndpointSlice of whole endpoints."""
    return {
        "kind": "EndpointSlice",
        "apiVersion": "discovery.k8s.io/v1",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"kubernetes.io/service-name": service_name},
        },
        "addressType": family,
        "ports": [{"name": port_name, "port": BACKEND_PORT, "protocol": "TCP"}],
        "endpoints": endpoints,
    }


def node(
    name: str,
    *addresses: str,
    zone: str = "zone-a",
    metadata: KubeDict | None = None,
    spec: KubeDict | None = None,
) -> KubeDict:
    pod_ranges = {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24"]}
    return {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}, **(metadata or {})},
        "spec": pod_ranges if spec is None else spec,
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": address} for address in addresses or (HOSTS["n1"].ipv4,)
            ]
        },
    }


def service_cidr(name: str, *cidrs: str) -> KubeDict:
    return {
        "kind": "ServiceCIDR",
        "apiVersion": "networking.k8s.io/v1",
        "metadata": {"name": name},
        "spec": {"cidrs": list(cidrs)},
    }


def web_service(name: str = "web", number: int = 10, **spec: Any) -> KubeDict:
    """A dual-stack Service at 10.96.0.NUMBER and fd00:10:96::NUMBER with a port named http."""
    addresses = [f"10.96.0.{number}", f"fd00:10:96::{number}"]
    port = {"name": "http", "port": 80, "protocol": "TCP", "targetPort": BACKEND_PORT}
    return service(
        name,
        addresses[0],
        **{"clusterIPs": addresses, "ipFamilies": ["IPv4", "IPv6"], "ports": [port], **spec},
    )


def web_slices(name: str = "web", *addresses: str, node: str = "n1", **endpoint: Any) -> list[KubeDict]:
    """Slices of both families for a web_service; the addresses of n1 unless given."""
    made = []
    for family in (4, 6):
        mine = [a for a in addresses or (HOSTS["n1"].ipv4, HOSTS["n1"].ipv6) if (":" in a) == (family == 6)]
        item = endpoint_slice(
            f"{name}-v{family}",
            *mine,
            service_name=name,
            node=node,
            port_name="http",
            **{"conditions": {"ready": True}, **endpoint},
        )
        made.append(item | {"addressType": f"IPv{family}"})
    return made


def node_object(
    *addresses: str, name: str = "n1", zone: str = "zone-a", metadata: KubeDict | None = None, **spec: Any
) -> KubeDict:
    """The Node n1 of the lab without pod ranges; keyword arguments are fields of its spec."""
    both = (HOSTS["n1"].ipv4, HOSTS["n1"].ipv6)
    return node(name, *(addresses or both), zone=zone, metadata=metadata, spec=spec)
