"""Defaults and validation of an API server, for objects from files. Pure.

Only the rules the proxy relies on; whatever the model already reports and works around (a bad external IP, a
bad source range) is left to it. An API server would also allocate cluster IPs and node ports; a file cannot,
so a cluster IP must be there and a missing node port is pointed out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from pointsman.model.addresses import address_from_text, cidr_from_text, family_of
from pointsman.model.objects import (
    SERVICE_NAME_LABEL,
    ClientIPConfig,
    EndpointSlice,
    KubeObject,
    Node,
    Service,
    ServiceCIDR,
    ServicePortSpec,
    ServiceSpec,
    SessionAffinityConfig,
    SlicePort,
)
from pointsman.model.service import DEFAULT_AFFINITY_SECONDS, MAX_AFFINITY_SECONDS

_PROTOCOLS = ("TCP", "UDP", "SCTP")
_SERVICE_TYPES = ("ClusterIP", "NodePort", "LoadBalancer", "ExternalName")
_POLICIES = ("Cluster", "Local")
_MAX_CLUSTER_IPS = 2
_MAX_NAME_CHARACTERS = 253


class Admitted(msgspec.Struct, frozen=True):
    """An object as an API server would store it, and what a file could not give it; each starts with the field's path."""

    object: KubeObject
    notices: list[str] = []


class Refused(msgspec.Struct, frozen=True):
    """Why an API server would not store an object; each reason starts with the field's path."""

    reasons: list[str]


def admit(item: KubeObject) -> Admitted | Refused:
    """Return the object as an API server would store it, or why it would not."""
    if not item.metadata.name:
        return Refused(["metadata.name: required"])
    if max(len(item.metadata.name), len(item.metadata.namespace)) > _MAX_NAME_CHARACTERS:
        return Refused([f"metadata: name and namespace have at most {_MAX_NAME_CHARACTERS} characters"])
    match item:
        case Service():
            return _admit_service(_with_namespace(item))
        case EndpointSlice():
            return _admit_slice(_with_namespace(item))
        case ServiceCIDR():
            return _admit_service_cidr(item)
        case Node():
            return Admitted(item)


_Namespaced = TypeVar("_Namespaced", Service, EndpointSlice)


def _with_namespace(item: _Namespaced) -> _Namespaced:
    if item.metadata.namespace:
        return item
    return msgspec.structs.replace(item, metadata=msgspec.structs.replace(item.metadata, namespace="default"))


def _admit_service(service: Service) -> Admitted | Refused:
    spec = service.spec
    problems = _check_choice("spec.type", spec.type, _SERVICE_TYPES)
    problems += _check_choice("spec.sessionAffinity", spec.session_affinity, ("None", "ClientIP"))
    problems += _check_choice(
        "spec.internalTrafficPolicy", spec.internal_traffic_policy or "Cluster", _POLICIES
    )
    problems += _check_choice(
        "spec.externalTrafficPolicy", spec.external_traffic_policy or "Cluster", _POLICIES
    )
    if spec.type == "ExternalName":
        return Refused(problems) if problems else Admitted(service)
    cluster_ips, families = _check_cluster_ips(spec, problems)
    ports = [_admit_port(entry, index, problems) for index, entry in enumerate(spec.ports or ())]
    headless = cluster_ips == ["None"]
    if not ports and not headless:
        problems.append("spec.ports: required")
    problems += _find_port_conflicts(ports)
    external = spec.type in ("NodePort", "LoadBalancer") or bool(spec.external_ips)
    if spec.external_traffic_policy and not external:
        problems.append(
            "spec.externalTrafficPolicy: only with type NodePort or LoadBalancer, or with externalIPs"
        )
    affinity = _complete_affinity(spec, problems)
    if problems:
        return Refused(problems)
    defaulted = msgspec.structs.replace(
        spec,
        cluster_ip=cluster_ips[0],
        cluster_ips=cluster_ips,
        ip_families=families or spec.ip_families,
        ports=ports,
        session_affinity_config=affinity,
        internal_traffic_policy=spec.internal_traffic_policy or "Cluster",
        external_traffic_policy=(spec.external_traffic_policy or "Cluster") if external else None,
    )
    return Admitted(msgspec.structs.replace(service, spec=defaulted), _find_unallocated(defaulted))


def _check_cluster_ips(spec: ServiceSpec, problems: list[str]) -> tuple[list[str], list[str]]:
    """Return the cluster IPs and their families; empty, with a problem noted, when they cannot be used."""
    texts = list(spec.cluster_ips or ([spec.cluster_ip] if spec.cluster_ip else []))
    if not texts:
        problems.append(
            "spec.clusterIP: required here, because there is no API server to allocate one "
            "(use None for a headless Service)"
        )
        return [], []
    if spec.cluster_ip and spec.cluster_ip != texts[0]:
        problems.append("spec.clusterIPs[0]: must be the same as spec.clusterIP")
    if texts == ["None"]:
        return texts, []
    families: list[str] = []
    for index, text in enumerate(texts):
        address = address_from_text(text)
        if address is None:
            problems.append(f"spec.clusterIPs[{index}]: {text!r} is not an IP address")
        else:
            families.append(family_of(address).value)
    if len(texts) > _MAX_CLUSTER_IPS or len(set(families)) < len(families):
        problems.append("spec.clusterIPs: at most one per IP family")
    if spec.ip_families and len(families) == len(texts) and spec.ip_families != families:
        problems.append(f"spec.ipFamilies: {spec.ip_families} does not fit the cluster IPs ({families})")
    return texts, families


def _admit_port(entry: ServicePortSpec, index: int, problems: list[str]) -> ServicePortSpec:
    field = f"spec.ports[{index}]"
    protocol = entry.protocol or "TCP"
    problems += _check_choice(f"{field}.protocol", protocol, _PROTOCOLS)
    problems += _check_port(f"{field}.port", entry.port)
    if entry.node_port:
        problems += _check_port(f"{field}.nodePort", entry.node_port)
    target = entry.target_port
    if isinstance(target, int) and target:
        problems += _check_port(f"{field}.targetPort", target)
    return msgspec.structs.replace(entry, protocol=protocol, target_port=target or entry.port)


def _find_port_conflicts(ports: list[ServicePortSpec]) -> list[str]:
    problems = []
    names: set[str] = set()
    numbers: set[tuple[str, int]] = set()
    for index, entry in enumerate(ports):
        if not entry.name and len(ports) > 1:
            problems.append(f"spec.ports[{index}].name: required when there are several ports")
        elif entry.name in names:
            problems.append(f"spec.ports[{index}].name: {entry.name!r} is used twice")
        if (entry.protocol, entry.port) in numbers:
            problems.append(f"spec.ports[{index}]: {entry.protocol} port {entry.port} is used twice")
        names.add(entry.name)
        numbers.add((entry.protocol, entry.port))
    return problems


def _complete_affinity(spec: ServiceSpec, problems: list[str]) -> SessionAffinityConfig | None:
    if spec.session_affinity != "ClientIP":
        return None
    config = spec.session_affinity_config
    seconds = (
        config.client_ip.timeout_seconds if config is not None and config.client_ip is not None else None
    )
    if seconds is None:
        seconds = DEFAULT_AFFINITY_SECONDS
    if not 0 < seconds <= MAX_AFFINITY_SECONDS:
        problems.append(
            f"spec.sessionAffinityConfig.clientIP.timeoutSeconds: {seconds} must be within "
            f"1..{MAX_AFFINITY_SECONDS}"
        )
    return SessionAffinityConfig(ClientIPConfig(seconds))


def _find_unallocated(spec: ServiceSpec) -> list[str]:
    """Return notices about what an API server would have allocated and the file does not set."""
    if spec.type != "NodePort":
        return []
    return [
        f"spec.ports[{index}].nodePort: not set, and there is no API server to allocate one; no node port is served"
        for index, entry in enumerate(spec.ports or ())
        if not entry.node_port
    ]


def _admit_slice(item: EndpointSlice) -> Admitted | Refused:
    problems = _check_choice("addressType", item.address_type, ("IPv4", "IPv6", "FQDN"))
    if not item.metadata.label(SERVICE_NAME_LABEL):
        problems.append(f"metadata.labels[{SERVICE_NAME_LABEL}]: required; it names the Service")
    for index, endpoint in enumerate(item.endpoints or ()):
        if not endpoint.addresses:
            problems.append(f"endpoints[{index}].addresses: required")
        elif item.address_type in ("IPv4", "IPv6"):
            problems += _check_addresses(
                f"endpoints[{index}].addresses", endpoint.addresses, item.address_type
            )
    ports: list[SlicePort] = []
    names: set[str] = set()
    for index, entry in enumerate(item.ports or ()):
        port = SlicePort(entry.name or "", entry.protocol or "TCP", entry.port)
        problems += _check_choice(f"ports[{index}].protocol", port.protocol or "", _PROTOCOLS)
        if port.port is not None:
            problems += _check_port(f"ports[{index}].port", port.port)
        if port.name in names:
            problems.append(f"ports[{index}].name: {port.name!r} is used twice")
        names.add(port.name or "")
        ports.append(port)
    return Refused(problems) if problems else Admitted(msgspec.structs.replace(item, ports=ports))


def _check_addresses(field: str, texts: Iterable[str], address_type: str) -> list[str]:
    problems = []
    for index, text in enumerate(texts):
        address = address_from_text(text)
        if address is None or family_of(address).value != address_type:
            problems.append(f"{field}[{index}]: {text!r} is not an {address_type} address")
    return problems


def _admit_service_cidr(item: ServiceCIDR) -> Admitted | Refused:
    problems = [
        f"spec.cidrs[{index}]: {text!r} is not a CIDR"
        for index, text in enumerate(item.spec.cidrs or ())
        if cidr_from_text(text) is None
    ]
    return Refused(problems) if problems else Admitted(item)


def _check_choice(field: str, value: str, choices: tuple[str, ...]) -> list[str]:
    return [] if value in choices else [f"{field}: {value!r}: use one of {', '.join(choices)}"]


def _check_port(field: str, value: int) -> list[str]:
    return [] if 1 <= value <= 65535 else [f"{field}: {value} must be within 1..65535"]
