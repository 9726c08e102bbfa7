"""Service ports: one value per (Service, port, IP family), with every field a backend needs."""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec

from pointsman.model.addresses import (
    Cidr,
    Family,
    address_from_text,
    cidr_from_text,
    family_of,
    find_unusable_reason,
)
from pointsman.model.balancing import NO_REQUEST, BalancingRequest, parse_balancing_request
from pointsman.model.findings import Code, Finding, bad_annotation, clip
from pointsman.model.objects import SERVICE_PROXY_NAME_LABEL, Service, ServicePortSpec

DEFAULT_AFFINITY_SECONDS = 10800
MAX_AFFINITY_SECONDS = 86400
IPVS_SCHEDULER_ANNOTATION = "pointsman.dev/ipvs-scheduler"
SOURCE_RANGES_ANNOTATION = "pointsman.dev/source-ranges"


class Protocol(enum.Enum):
    """A transport protocol; the value is its IP protocol number."""

    TCP = 6
    UDP = 17
    SCTP = 132

    @property
    def lower(self) -> str:
        return self.name.lower()

    def __lt__(self, other: Protocol) -> bool:
        return self.value < other.value


PROTOCOL_NAMES = {protocol.value: protocol.lower for protocol in Protocol}
"""By IP protocol number, as every tool prints them."""


class ServicePortName(msgspec.Struct, frozen=True, gc=False, order=True, cache_hash=True):
    """Identity of a service port; prints as kube-proxy does in chain hashes and comments."""

    namespace: str
    service: str
    port: str
    protocol: Protocol

    def __str__(self) -> str:
        return f"{self.key}:{self.port}" if self.port else self.key

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.service}"


class ServicePort(msgspec.Struct, frozen=True, gc=False):
    """A service port in one IP family. Addresses are packed and all of that family."""

    name: ServicePortName
    family: Family
    cluster_ip: bytes
    port: int
    node_port: int = 0
    external_ips: tuple[bytes, ...] = ()
    load_balancer_ips: tuple[bytes, ...] = ()
    source_ranges: tuple[Cidr, ...] = ()
    """loadBalancerSourceRanges of this family; empty means unrestricted."""
    ranges_everywhere: bool = False
    """They are to hold at the node port and the external IPs as well."""
    ranges_of_other_family: bool = False
    """Some are given, and all keep out clients of the other family only."""
    internal_local: bool = False
    external_local: bool = False
    affinity_seconds: int = 0
    """Session affinity timeout; 0 means no affinity."""
    health_check_node_port: int = 0
    created: str = ""
    """creationTimestamp: the older Service wins a contested address."""
    ipvs_scheduler: str = ""
    """Asked for in ipvs mode only."""
    balancing: BalancingRequest = NO_REQUEST
    of_ports: int = 1
    """How many ports its Service lists: they share what hashing may cost."""
    external_ips_ignored: bool = False
    """externalIPs are given but switched off; upstream's iptables mode still makes the external chain."""

    @property
    def protocol(self) -> Protocol:
        return self.name.protocol

    @property
    def externally_accessible(self) -> bool:
        return bool(self.node_port or self.load_balancer_ips or self.external_ips)

    @property
    def has_external_chain(self) -> bool:
        """What lies behind external frontends is programmed, even where none is left because they are switched off."""
        return self.externally_accessible or self.external_ips_ignored

    @property
    def uses_cluster_endpoints(self) -> bool:
        """Also with a Local external policy: pods and the node itself are short-circuited to all endpoints."""
        return not self.internal_local or self.has_external_chain

    @property
    def uses_local_endpoints(self) -> bool:
        return self.internal_local or (self.external_local and self.has_external_chain)


def find_skip_reason(service: Service) -> Code | None:
    """Return why a Service is not served by this proxy, or None when it is."""
    if service.metadata.label(SERVICE_PROXY_NAME_LABEL) is not None:
        return Code.OTHER_PROXY
    if service.spec.type == "ExternalName":
        return Code.EXTERNAL_NAME
    if service.spec.cluster_ip == "None":
        return Code.HEADLESS
    return None if service.spec.cluster_ip else Code.NO_CLUSTER_IP


def parse_service_ports(
    service: Service, family: Family, *, allow_external_ips: bool = True
) -> tuple[dict[ServicePortName, ServicePort], list[Finding]]:
    """The service ports of one family, and what had to be left out. Never raises on bad content."""
    findings: list[Finding] = []
    if find_skip_reason(service) is not None:
        return {}, findings
    spec = service.spec
    cluster_ip = _cluster_ip(service, family, findings)
    if cluster_ip is None:
        return {}, findings
    external_ips: tuple[bytes, ...] = ()
    if spec.external_ips and allow_external_ips:
        external_ips = _frontend_addresses(spec.external_ips, family, "externalIPs", findings)
    balancing = parse_balancing_request(service.metadata, findings)
    ports: dict[ServicePortName, ServicePort] = {}
    for entry in spec.ports or ():
        name = _port_name(service, entry, findings)
        if name is None:
            continue
        ports[name] = ServicePort(
            name=name,
            family=family,
            cluster_ip=cluster_ip,
            port=entry.port,
            node_port=entry.node_port,
            external_ips=external_ips,
            load_balancer_ips=_load_balancer_ips(service, family, findings),
            source_ranges=_source_ranges(spec.load_balancer_source_ranges, family, findings),
            ranges_everywhere=_ranges_everywhere(service, findings),
            ranges_of_other_family=_ranges_of_other_family(spec.load_balancer_source_ranges, family),
            internal_local=spec.internal_traffic_policy == "Local",
            external_local=spec.external_traffic_policy == "Local",
            affinity_seconds=_affinity_seconds(service, findings),
            health_check_node_port=_health_check_node_port(service, findings),
            created=service.metadata.creation_timestamp or "",
            ipvs_scheduler=service.metadata.annotation(IPVS_SCHEDULER_ANNOTATION) or "",
            balancing=balancing,
            of_ports=len(spec.ports or ()),
            external_ips_ignored=not allow_external_ips and _has_address_of(spec.external_ips, family),
        )
    return ports, list(dict.fromkeys(findings))


def _cluster_ip(service: Service, family: Family, findings: list[Finding]) -> bytes | None:
    texts = service.spec.cluster_ips or [service.spec.cluster_ip]
    for text in texts:
        address = address_from_text(text)
        if address is None:
            findings.append(Finding(Code.BAD_CLUSTER_IP, parameters={"value": clip(text)}))
        elif family_of(address) is family:
            reason = find_unusable_reason(address)
            if reason is None:
                return address
            findings.append(
                Finding(Code.FORBIDDEN_CLUSTER_IP, parameters={"value": clip(text), "reason": reason})
            )
    return None


def _port_name(service: Service, entry: ServicePortSpec, findings: list[Finding]) -> ServicePortName | None:
    try:
        protocol = Protocol[entry.protocol or "TCP"]
    except KeyError:
        findings.append(
            Finding(
                Code.BAD_PROTOCOL, parameters={"port": clip(entry.name), "value": clip(entry.protocol or "")}
            )
        )
        return None
    if not 1 <= entry.port <= 65535 or not 0 <= entry.node_port <= 65535:
        findings.append(Finding(Code.BAD_PORT, parameters={"field": f"ports[{clip(entry.name)!r}]"}))
        return None
    return ServicePortName(service.metadata.namespace, service.metadata.name, entry.name, protocol)


def _frontend_addresses(
    texts: Iterable[str], family: Family, field: str, findings: list[Finding]
) -> tuple[bytes, ...]:
    found: dict[bytes, None] = {}
    for text in texts:
        address = address_from_text(text)
        if address is None:
            findings.append(Finding(Code.BAD_ADDRESS, parameters={"field": field, "value": clip(text)}))
        elif family_of(address) is family:
            reason = find_unusable_reason(address)
            if reason is None:
                found[address] = None
            else:
                parameters = {"field": field, "value": clip(text), "reason": reason}
                findings.append(Finding(Code.FORBIDDEN_ADDRESS, parameters=parameters))
    return tuple(found)


def _has_address_of(texts: Iterable[str] | None, family: Family) -> bool:
    found = (address_from_text(text) for text in texts or ())
    return any(address is not None and family_of(address) is family for address in found)


def _load_balancer_ips(service: Service, family: Family, findings: list[Finding]) -> tuple[bytes, ...]:
    """Addresses of the status that are to be served here: ipMode Proxy ones belong to the balancer itself.

    They count whatever the type: an API server may be told to keep them for other types, and clears them otherwise.
    """
    status = service.status.load_balancer
    if status is None or not status.ingress:
        return ()
    texts = [entry.ip for entry in status.ingress if entry.ip and entry.ip_mode in (None, "VIP")]
    return _frontend_addresses(texts, family, "status.loadBalancer.ingress", findings)


def _source_ranges(texts: list[str] | None, family: Family, findings: list[Finding]) -> tuple[Cidr, ...]:
    """The readable ranges of a family.

    Somebody who gives ranges wants to keep others out. When a mistake leaves none of them, nobody is let in, where
    kube-proxy would let in everybody: only the unspecified address, which no packet comes from, stays admitted.
    """
    ranges: dict[Cidr, None] = {}
    unreadable = False
    for text in texts or ():
        cidr = cidr_from_text(text)
        if cidr is None:
            unreadable = True
            findings.append(Finding(Code.BAD_SOURCE_RANGE, parameters={"value": clip(text)}))
        elif cidr.is_everything and cidr.family is family:
            return ()
        elif cidr.family is family:
            ranges[cidr] = None
    if unreadable and not ranges:
        return (Cidr(family.any_address, family.address_length * 8),)
    return tuple(ranges)


def _ranges_of_other_family(texts: list[str] | None, family: Family) -> bool:
    """Somebody who admits every client of the other family keeps nobody out on purpose."""
    ranges = [cidr_from_text(text) for text in texts or ()]
    return bool(ranges) and all(
        cidr is not None and cidr.family is not family and not cidr.is_everything for cidr in ranges
    )


_EVERYWHERE = "all"
_RANGES_HOLD = {_EVERYWHERE: True, "load-balancer": False}


def _ranges_everywhere(service: Service, findings: list[Finding]) -> bool:
    """A value that cannot be read counts as the stricter one, as unreadable ranges do."""
    text = service.metadata.annotation(SOURCE_RANGES_ANNOTATION)
    if text is None:
        return False
    if text not in _RANGES_HOLD:
        bad = bad_annotation(SOURCE_RANGES_ANNOTATION, text, f"one of {', '.join(_RANGES_HOLD)}", _EVERYWHERE)
        findings.append(bad)
    return _RANGES_HOLD.get(text, True)


def _health_check_node_port(service: Service, findings: list[Finding]) -> int:
    """Only balancers that must find the nodes with endpoints ask there."""
    spec = service.spec
    if spec.type != "LoadBalancer" or spec.external_traffic_policy != "Local":
        return 0
    port = spec.health_check_node_port
    if 0 <= port <= 65535:
        return port
    findings.append(Finding(Code.BAD_PORT, parameters={"field": f"healthCheckNodePort {port}"}))
    return 0


def _affinity_seconds(service: Service, findings: list[Finding]) -> int:
    """Within the API's limits: no API server stores more, and kernel timers are bounded."""
    if service.spec.session_affinity != "ClientIP":
        return 0
    config = service.spec.session_affinity_config
    if config is None or config.client_ip is None or config.client_ip.timeout_seconds is None:
        return DEFAULT_AFFINITY_SECONDS
    asked = config.client_ip.timeout_seconds
    granted = min(max(1, asked), MAX_AFFINITY_SECONDS)
    if granted != asked:
        findings.append(Finding(Code.BAD_AFFINITY_TIMEOUT, parameters={"value": asked, "used": granted}))
    return granted
