"""From a Service object to its service ports of one IP family. Bad content is ignored and reported, never raised.

Everything that belongs to the whole Service is parsed once and shared by its ports.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from pointsman.model.addresses import (
    Cidr,
    Family,
    address_from_text,
    cidr_from_text,
    family_of,
    find_unusable_reason,
)
from pointsman.model.balancing import (
    IPVS_SCHEDULERS,
    parse_balancing_request,
    parse_seconds,
    read_annotation,
)
from pointsman.model.findings import Code, Finding, Value, build_bad_annotation, clip
from pointsman.model.objects import SERVICE_PROXY_NAME_LABEL, Ingress, Meta, Service, ServicePortSpec
from pointsman.model.service import (
    DEFAULT_AFFINITY_SECONDS,
    IPVS_SCHEDULER_ANNOTATION,
    MAX_AFFINITY_SECONDS,
    MAX_TCP_TIMEOUT_SECONDS,
    MAX_UDP_TIMEOUT_SECONDS,
    NO_TIMEOUTS,
    SOURCE_RANGES_ANNOTATION,
    TCP_TIMEOUT_ANNOTATION,
    UDP_DRAINING_ANNOTATION,
    UDP_TIMEOUT_ANNOTATION,
    FlowTimeouts,
    Protocol,
    ServicePort,
    ServicePortName,
    ServiceSettings,
    SourceRanges,
)

MAX_FRONTENDS = 50_000
"""Limit of ports times addresses of one Service. The API has none but the size of an object: 10,000 times 10,000 would fit."""
_MIN_EXTRA_ADDRESSES = 2
"""Load-balancer and external IPs that are served however many ports there are."""

_TYPES = {name: name for name in ("ClusterIP", "NodePort", "LoadBalancer")}
"""Types with service ports; each string is held once."""


def find_skip_reason(service: Service) -> Code | None:
    """Return why a Service is not served by this proxy, or None when it is."""
    if service.metadata.label(SERVICE_PROXY_NAME_LABEL) is not None:
        return Code.OTHER_PROXY
    if service.spec.type == "ExternalName":
        return Code.EXTERNAL_NAME
    if service.spec.cluster_ip == "None":
        return Code.HEADLESS
    return None if service.spec.cluster_ip else Code.NO_CLUSTER_IP


_AddressFields = tuple[list[str] | None, list[Ingress] | None, list[str] | None]
_NO_ADDRESS_FIELDS: _AddressFields = (None, None, None)


class ServiceAddresses(msgspec.Struct, frozen=True):
    """Addresses and ranges of one Service in one IP family, besides its cluster IP.

    Parsed once per Service and shared by its ports: both may have thousands of entries.
    """

    fields: _AddressFields = _NO_ADDRESS_FIELDS
    """As written."""
    external_ips: tuple[bytes, ...] = ()
    external_ips_ignored: bool = False
    load_balancer_ips: tuple[bytes, ...] = ()
    ranges: tuple[Cidr, ...] = ()
    other_family_only: bool = False
    findings: tuple[Finding, ...] = ()

    def __bool__(self) -> bool:
        return self.fields != _NO_ADDRESS_FIELDS


NO_ADDRESSES = ServiceAddresses()


class ParsedService(NamedTuple):
    """The service ports of one family, and what was found wrong with the Service."""

    ports: dict[ServicePortName, ServicePort]
    findings: list[Finding]
    addresses: ServiceAddresses = NO_ADDRESSES


def parse_service_ports(
    service: Service,
    family: Family,
    *,
    allow_external_ips: bool = True,
    known: ServiceAddresses = NO_ADDRESSES,
) -> ParsedService:
    """Return the service ports of one family. Never raises on bad content, which is ignored and reported.

    `known` are the addresses of the previous version; fields that did not change are not parsed again.
    """
    findings: list[Finding] = []
    if find_skip_reason(service) is not None:
        return ParsedService({}, findings)
    cluster_ip = _parse_cluster_ip(service, family, findings)
    if cluster_ip is None:
        return ParsedService({}, findings)
    addresses = _parse_addresses(service, family, known, allow_external_ips=allow_external_ips)
    findings += addresses.findings
    load_balancer_ips, external_ips = _limit_addresses(service, addresses, findings)
    settings = _parse_settings(service, addresses, findings)
    ports: dict[ServicePortName, ServicePort] = {}
    for entry in service.spec.ports or ():
        name = _parse_port_name(service, entry, findings)
        if name is not None:
            ports[name] = ServicePort(
                name,
                family,
                cluster_ip,
                entry.port,
                entry.node_port,
                external_ips,
                load_balancer_ips,
                settings,
            )
    return ParsedService(ports, list(dict.fromkeys(findings)), addresses)


def _parse_settings(
    service: Service, addresses: ServiceAddresses, findings: list[Finding]
) -> ServiceSettings:
    spec, meta = service.spec, service.metadata
    all_frontends = _parse_all_frontends(service, findings)
    return ServiceSettings(
        type=_TYPES.get(spec.type, ""),
        source_ranges=SourceRanges(addresses.ranges, all_frontends, addresses.other_family_only),
        internal_local=spec.internal_traffic_policy == "Local",
        external_local=spec.external_traffic_policy == "Local",
        affinity_seconds=_parse_affinity_seconds(service, findings),
        health_check_node_port=_parse_health_check_node_port(service, findings),
        created=meta.creation_timestamp or "",
        ipvs_scheduler=read_annotation(
            meta, IPVS_SCHEDULER_ANNOTATION, _IPVS_NAMES.get, _ANY_IPVS_NAME, findings
        )
        or "",
        balancing=parse_balancing_request(meta, findings),
        port_count=len(spec.ports or ()),
        keep_draining_udp=read_annotation(
            meta, UDP_DRAINING_ANNOTATION, _KEEPS_DRAINING.get, "keep", findings
        )
        or False,
        flow_timeouts=_parse_flow_timeouts(meta, findings),
        external_ips_ignored=addresses.external_ips_ignored,
    )


def _parse_addresses(
    service: Service, family: Family, known: ServiceAddresses, *, allow_external_ips: bool
) -> ServiceAddresses:
    spec, status = service.spec, service.status.load_balancer
    ingress = (status.ingress if status is not None else None) or None
    fields = (spec.external_ips or None, ingress, spec.load_balancer_source_ranges or None)
    if fields == known.fields:
        return known
    if fields == _NO_ADDRESS_FIELDS:
        return NO_ADDRESSES
    findings: list[Finding] = []
    external_ips: tuple[bytes, ...] = ()
    if spec.external_ips and allow_external_ips:
        external_ips = _parse_frontend_addresses(spec.external_ips, family, "externalIPs", findings)
    ranges, other_family_only = _parse_source_ranges(spec.load_balancer_source_ranges, family, findings)
    return ServiceAddresses(
        fields,
        external_ips,
        not allow_external_ips and _has_address_of(spec.external_ips, family),
        _parse_load_balancer_ips(ingress or (), family, findings),
        ranges,
        other_family_only,
        tuple(findings),
    )


def _limit_addresses(
    service: Service, addresses: ServiceAddresses, findings: list[Finding]
) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    """Return load-balancer and external IPs, without the last ones where there are too many ports for all of them."""
    load_balancer_ips, external_ips = addresses.load_balancer_ips, addresses.external_ips
    ports, given = len(service.spec.ports or ()), len(load_balancer_ips) + len(external_ips)
    # Two more are counted for the cluster IP and the node port.
    limit = max(MAX_FRONTENDS // max(1, ports) - 2, _MIN_EXTRA_ADDRESSES)
    if given <= limit:
        return load_balancer_ips, external_ips
    parameters: dict[str, Value] = {"limit": limit, "addresses": given, "ports": ports}
    findings.append(Finding(Code.TOO_MANY_FRONTENDS, parameters=parameters))
    load_balancer_ips = load_balancer_ips[:limit]
    return load_balancer_ips, external_ips[: limit - len(load_balancer_ips)]


def _parse_cluster_ip(service: Service, family: Family, findings: list[Finding]) -> bytes | None:
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


def _parse_port_name(
    service: Service, entry: ServicePortSpec, findings: list[Finding]
) -> ServicePortName | None:
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


def _parse_frontend_addresses(
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


def _parse_load_balancer_ips(
    ingress: Iterable[Ingress], family: Family, findings: list[Finding]
) -> tuple[bytes, ...]:
    """Return the addresses of the status without those of ipMode Proxy, which the load balancer serves itself.

    The type of the Service does not matter: API servers can be configured to keep them for other types.
    """
    texts = [entry.ip for entry in ingress if entry.ip and entry.ip_mode in (None, "VIP")]
    return _parse_frontend_addresses(texts, family, "status.loadBalancer.ingress", findings)


def _parse_source_ranges(
    texts: list[str] | None, family: Family, findings: list[Finding]
) -> tuple[tuple[Cidr, ...], bool]:
    """Return the valid ranges of a family, and whether all given ranges restrict the other family only.

    A range is a restriction. When only invalid ones are given, no client is admitted, where kube-proxy admits all: only the
    unspecified address, which is no source of a packet, stays admitted. An any-address range of the other family is not a
    restriction.
    """
    if not texts:
        return (), False
    cidrs = [cidr_from_text(text) for text in texts]
    own = dict.fromkeys(cidr for cidr in cidrs if cidr is not None and cidr.family is family)
    bad = [text for text, cidr in zip(texts, cidrs, strict=True) if cidr is None]
    findings += [Finding(Code.BAD_SOURCE_RANGE, parameters={"value": clip(text)}) for text in bad]
    if any(cidr.is_everything for cidr in own):
        return (), False
    if bad and not own:
        return (Cidr(family.any_address, family.address_length * 8),), False
    others_restricted = not own and not any(cidr is not None and cidr.is_everything for cidr in cidrs)
    return tuple(own), others_restricted


_ALL_FRONTENDS = "all"
_RESTRICTED_FRONTENDS = {_ALL_FRONTENDS: True, "load-balancer": False}


def _parse_all_frontends(service: Service, findings: list[Finding]) -> bool:
    """Return whether ranges restrict all frontends; an invalid value counts as the stricter one, as invalid ranges do."""
    text = service.metadata.annotation(SOURCE_RANGES_ANNOTATION)
    if text is None:
        return False
    if text not in _RESTRICTED_FRONTENDS:
        bad = build_bad_annotation(
            SOURCE_RANGES_ANNOTATION, text, f"one of {', '.join(_RESTRICTED_FRONTENDS)}", _ALL_FRONTENDS
        )
        findings.append(bad)
    return _RESTRICTED_FRONTENDS.get(text, True)


_IPVS_NAMES = {"": "", **{name: name for name in IPVS_SCHEDULERS}}
_ANY_IPVS_NAME = f"one of {', '.join(IPVS_SCHEDULERS)}"
_KEEPS_DRAINING = {"keep": True}


def _parse_flow_timeouts(meta: Meta, findings: list[Finding]) -> FlowTimeouts:
    if not meta.annotations:
        return NO_TIMEOUTS
    udp = _parse_timeout(meta, UDP_TIMEOUT_ANNOTATION, MAX_UDP_TIMEOUT_SECONDS, findings)
    tcp = _parse_timeout(meta, TCP_TIMEOUT_ANNOTATION, MAX_TCP_TIMEOUT_SECONDS, findings)
    return FlowTimeouts(udp, tcp) if udp or tcp else NO_TIMEOUTS


def _parse_timeout(meta: Meta, annotation: str, limit: int, findings: list[Finding]) -> int:
    expected = f"a time from 1s to {limit // 3600}h, such as 5s, 2m or 1h"
    return (
        read_annotation(meta, annotation, lambda text: parse_seconds(text, limit) or None, expected, findings)
        or 0
    )


def _parse_health_check_node_port(service: Service, findings: list[Finding]) -> int:
    """Return the port at which load balancers find the nodes with endpoints; 0 for none."""
    spec = service.spec
    if spec.type != "LoadBalancer" or spec.external_traffic_policy != "Local":
        return 0
    port = spec.health_check_node_port
    if 0 <= port <= 65535:
        return port
    findings.append(Finding(Code.BAD_PORT, parameters={"field": f"healthCheckNodePort {port}"}))
    return 0


def _parse_affinity_seconds(service: Service, findings: list[Finding]) -> int:
    """Return the timeout within the limits of the API: kernel timers are bounded."""
    if service.spec.session_affinity != "ClientIP":
        return 0
    config = service.spec.session_affinity_config
    if config is None or config.client_ip is None or config.client_ip.timeout_seconds is None:
        return DEFAULT_AFFINITY_SECONDS
    requested = config.client_ip.timeout_seconds
    granted = min(max(1, requested), MAX_AFFINITY_SECONDS)
    if granted != requested:
        findings.append(Finding(Code.BAD_AFFINITY_TIMEOUT, parameters={"value": requested, "used": granted}))
    return granted
