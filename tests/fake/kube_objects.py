"""Kubernetes objects as an API server sends them, for tests: one line each."""

from __future__ import annotations

from typing import Any


def service(
    name: str, cluster_ip: str = "10.96.0.10", *, namespace: str = "default", **spec: Any
) -> dict[str, Any]:
    return {
        "kind": "Service",
        "apiVersion": "v1",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "type": "ClusterIP",
            "clusterIP": cluster_ip,
            "clusterIPs": [cluster_ip],
            "ports": [{"port": 80, "protocol": "TCP", "targetPort": 8080}],
            **spec,
        },
        "status": {"loadBalancer": {}},
    }


def endpoint_slice(
    name: str,
    *addresses: str,
    service_name: str = "web",
    namespace: str = "default",
    node: str = "n1",
    zone: str = "zone-a",
) -> dict[str, Any]:
    return {
        "kind": "EndpointSlice",
        "apiVersion": "discovery.k8s.io/v1",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"kubernetes.io/service-name": service_name},
        },
        "addressType": "IPv4",
        "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
        "endpoints": [
            {
                "addresses": [address],
                "conditions": {"ready": True, "serving": True, "terminating": False},
                "nodeName": node,
                "zone": zone,
                "targetRef": {"kind": "Pod", "name": f"pod-{address}", "namespace": namespace},
            }
            for address in addresses
        ],
    }


def node(name: str, address: str = "172.30.0.10") -> dict[str, Any]:
    return {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": "zone-a"}},
        "spec": {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24"]},
        "status": {"addresses": [{"type": "InternalIP", "address": address}]},
    }


def service_cidr(name: str, *cidrs: str) -> dict[str, Any]:
    return {
        "kind": "ServiceCIDR",
        "apiVersion": "networking.k8s.io/v1",
        "metadata": {"name": name},
        "spec": {"cidrs": list(cidrs)},
    }
