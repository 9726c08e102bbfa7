"""Small builders of objects and plans for tests; every argument has a plain default."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.harness import kube_objects

from pointsman.model.addresses import Cidr, Family, address_from_text, cidr_from_text, family_of
from pointsman.model.endpoint import Endpoint, EndpointState
from pointsman.model.node_context import NodeContext
from pointsman.model.objects import EndpointSlice, Meta, Node, Service, ServiceCIDR, ServiceCIDRSpec
from pointsman.model.plan import ServicePlan
from pointsman.model.planning import plan_service_port
from pointsman.model.service import Protocol, ServicePort, ServicePortName, ServiceSettings, SourceRanges


def packed(text: str) -> bytes:
    address = address_from_text(text)
    assert address is not None, text
    return address


def cidr(text: str) -> Cidr:
    found = cidr_from_text(text)
    assert found is not None, text
    return found


def service(name: str = "web", namespace: str = "default", **spec: Any) -> Service:
    """A Service; keyword arguments are fields of its spec, by their API names."""
    spec.setdefault("ports", [{"name": "http", "port": 80, "protocol": "TCP"}])
    address = spec.pop("clusterIP", "10.96.0.10")
    return msgspec.convert(kube_objects.service(name, address, namespace=namespace, **spec), Service)


def endpoint_slice(
    *addresses: str | dict[str, Any],
    name: str = "web-a",
    service_name: str = "web",
    namespace: str = "default",
    family: str = "IPv4",
    ports: list[dict[str, Any]] | None = None,
    metadata: dict[str, Any] | None = None,
) -> EndpointSlice:
    """An EndpointSlice; an address may be text (ready, on n1) or a whole endpoint."""
    endpoints = [{"addresses": [a], "nodeName": "n1"} if isinstance(a, str) else a for a in addresses]
    body = kube_objects.slice_of(name, endpoints, service_name, namespace, family=family)
    body["metadata"] |= metadata or {}
    if ports is not None:
        body["ports"] = ports
    return msgspec.convert(body, EndpointSlice)


def node(
    name: str = "n1", zone: str = "zone-a", addresses: list[dict[str, str]] | None = None, **spec: Any
) -> Node:
    body = kube_objects.node(name, zone=zone, spec=spec)
    body["status"] = {"addresses": addresses or []}
    if not zone:
        body["metadata"]["labels"] = {}
    return msgspec.convert(body, Node)


def service_cidr(*cidrs: str) -> ServiceCIDR:
    return ServiceCIDR(Meta(name="kubernetes"), ServiceCIDRSpec(list(cidrs)))


def endpoint(text: str = "10.244.1.1", port: int = 8080, pod: str = "", **fields: Any) -> Endpoint:
    return Endpoint(packed(text), port, pod, EndpointState(**fields))


def service_port(
    name: str = "web",
    port_name: str = "http",
    cluster_ip: str = "10.96.0.10",
    port: int = 80,
    protocol: Protocol = Protocol.TCP,
    namespace: str = "default",
    **fields: Any,
) -> ServicePort:
    """A ServicePort; address fields take text."""
    for field in ("external_ips", "load_balancer_ips"):
        if field in fields:
            fields[field] = tuple(packed(text) for text in fields[field])
    address = packed(cluster_ip)
    settings = take_settings(fields)
    return ServicePort(
        name=ServicePortName(namespace, name, port_name, protocol),
        family=family_of(address),
        cluster_ip=address,
        port=port,
        service=settings,
        **fields,
    )


def take_settings(fields: dict[str, Any]) -> ServiceSettings:
    """Take the fields of a ServiceSettings, and those of its source ranges, out of a dictionary."""
    ranges = SourceRanges(
        fields.pop("source_ranges", ()),
        fields.pop("ranges_everywhere", False),
        fields.pop("ranges_of_other_family", False),
    )
    names = [name for name in ServiceSettings.__struct_fields__ if name in fields]
    return ServiceSettings(source_ranges=ranges, **{name: fields.pop(name) for name in names})


def context(family: Family = Family.IPV4, **fields: Any) -> NodeContext:
    return NodeContext(family=family, node_name="n1", **fields)


def plan(
    port: ServicePort | None = None,
    *endpoints: Endpoint,
    node_context: NodeContext | None = None,
) -> ServicePlan:
    port = port or service_port()
    ordered = tuple(sorted(endpoints, key=str))
    made = plan_service_port(port, ordered, node_context or context(port.family))
    assert isinstance(made, ServicePlan)
    return made


NOWHERE = Endpoint(address=b"?", port=1 << 16)


def impossible(name: str = "broken", cluster_ip: str = "10.96.0.66") -> ServicePlan:
    """A plan that no mode can compile: its endpoint has neither an address nor a port that exists."""
    made = plan(service_port(name, cluster_ip=cluster_ip), endpoint())
    selected = msgspec.structs.replace(made.endpoints, reachable=(NOWHERE,), cluster=(NOWHERE,))
    return msgspec.structs.replace(made, endpoints=selected)
