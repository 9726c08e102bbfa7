"""The Service through which a node proves that its own packets are translated. Pure: only the objects."""

from __future__ import annotations

from collections.abc import Iterable

from pointsman.model.addresses import Family, address_text
from pointsman.model.objects import (
    SERVICE_NAME_LABEL,
    EndpointSlice,
    Meta,
    Service,
    ServicePortSpec,
    ServiceSpec,
    SliceEndpoint,
    SlicePort,
)

NAMESPACE = "pointsman.dev"
"""No namespace of a cluster can have a dot in its name, so no Service of others is ever meant."""
NAME = "datapath-probe"
KEY = f"{NAMESPACE}/{NAME}"
PORT = 7
_YOUNGEST = "9999-12-31T23:59:59Z"
"""The older Service wins a contested address: any other."""


def probe_service(addresses: Iterable[bytes]) -> Service:
    """The Service with these cluster IPs, at most one of each IP family."""
    texts = [address_text(address) for address in addresses]
    return Service(
        Meta(name=NAME, namespace=NAMESPACE, creation_timestamp=_YOUNGEST),
        ServiceSpec(cluster_ip=texts[0], cluster_ips=texts, ports=[ServicePortSpec(port=PORT)]),
    )


def probe_slice(family: Family, endpoint: bytes, port: int, node: str) -> EndpointSlice:
    """Its only endpoint: this process, at an address of the node's own."""
    meta = Meta(name=f"{NAME}-{family.value.lower()}", namespace=NAMESPACE, labels={SERVICE_NAME_LABEL: NAME})
    only = SliceEndpoint(addresses=[address_text(endpoint)], node_name=node)
    return EndpointSlice(meta, family.value, [only], [SlicePort(name="", protocol="TCP", port=port)])
