"""The four kinds a proxy watches, with the selectors kube-proxy uses for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from pointsman.kube.codec import T
from pointsman.model.objects import (
    HEADLESS_LABEL,
    SERVICE_PROXY_NAME_LABEL,
    EndpointSlice,
    Node,
    Service,
    ServiceCIDR,
)


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """What to list and watch."""

    kind: type[T]
    path: str
    label_selector: str = ""
    field_selector: str = ""
    field_selector_required: bool = True
    """False when the selector only saves traffic, so that it may be left out for a server that refuses it."""
    required: bool = True
    """False when a server without this kind (404), or one that hides it from us (403), is fine."""


SERVICES = Resource(
    Service,
    "/api/v1/services",
    label_selector=f"!{SERVICE_PROXY_NAME_LABEL}",
    field_selector="spec.clusterIP!=None",
    field_selector_required=False,
)
"""Headless Services are left out by the server where it can (1.30 and later), else by the model."""

ENDPOINT_SLICES = Resource(
    EndpointSlice,
    "/apis/discovery.k8s.io/v1/endpointslices",
    label_selector=f"!{HEADLESS_LABEL}",
)
"""Only the Service says who serves it: controllers copy its labels to slices, and copies may lag behind."""

SERVICE_CIDRS = Resource(ServiceCIDR, "/apis/networking.k8s.io/v1/servicecidrs", required=False)


def own_node(name: str) -> Resource[Node]:
    return Resource(Node, "/api/v1/nodes", field_selector=f"metadata.name={name}")
