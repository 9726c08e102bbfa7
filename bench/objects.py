"""Made-up clusters for benchmarks: Services and EndpointSlices as the API server would send them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

_STAMP = "2026-01-01T00:00:00Z"


def compute_service_address(index: int) -> str:
    number = (10 << 24) + (96 << 16) + 1 + index
    return ".".join(str(number >> shift & 255) for shift in (24, 16, 8, 0))


def compute_endpoint_address(index: int, slot: int, generation: int = 0) -> str:
    """Unique per service and slot; another generation is another pod."""
    number = (10 << 24) + (128 << 16) + ((index * 64 + slot) * 5 + generation) % (1 << 22)
    return ".".join(str(number >> shift & 255) for shift in (24, 16, 8, 0))


def encode_service(index: int, annotations: Mapping[str, str] | None = None) -> bytes:
    address = compute_service_address(index)
    return msgspec.json.encode(
        {
            "kind": "Service",
            "apiVersion": "v1",
            "metadata": {
                "name": f"service-{index}",
                "namespace": "default",
                "uid": f"00000000-0000-0000-0000-{index:012d}",
                "resourceVersion": str(1000 + index),
                "creationTimestamp": _STAMP,
                "labels": {"app": f"app-{index}"},
                **({"annotations": annotations} if annotations else {}),
            },
            "spec": {
                "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}],
                "selector": {"app": f"app-{index}"},
                "clusterIP": address,
                "clusterIPs": [address],
                "type": "ClusterIP",
                "sessionAffinity": "None",
                "ipFamilies": ["IPv4"],
                "ipFamilyPolicy": "SingleStack",
                "internalTrafficPolicy": "Cluster",
            },
            "status": {"loadBalancer": {}},
        }
    )


def encode_slice(index: int, endpoints: int, generation: int = 0, nodes: int = 100) -> bytes:
    """A slice of ready endpoints; `generation` replaces its first endpoint."""
    return msgspec.json.encode(
        {
            "kind": "EndpointSlice",
            "apiVersion": "discovery.k8s.io/v1",
            "metadata": {
                "name": f"service-{index}-abcde",
                "namespace": "default",
                "uid": f"00000000-0000-0000-0001-{index:012d}",
                "resourceVersion": str(100_000 + index + generation),
                "generation": 1 + generation,
                "creationTimestamp": _STAMP,
                "labels": {
                    "kubernetes.io/service-name": f"service-{index}",
                    "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
                },
            },
            "addressType": "IPv4",
            "endpoints": [
                {
                    "addresses": [compute_endpoint_address(index, slot, generation if slot == 0 else 0)],
                    "conditions": {"ready": True, "serving": True, "terminating": False},
                    "targetRef": {"kind": "Pod", "namespace": "default", "name": f"pod-{index}-{slot}"},
                    "nodeName": f"node-{(index + slot) % nodes}",
                    "zone": f"zone-{(index + slot) % 3}",
                }
                for slot in range(endpoints)
            ],
            "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
        }
    )
