"""From iptables or ipvs mode to nftables mode: the converted configuration, and what changes for a cluster.

Pure. What keeps its behaviour by conversion is converted; what cannot be kept, or what people should look at before, becomes a
finding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta

import msgspec

from pointsman.backends.contract import Migration
from pointsman.backends.nftables.preflight import OLDEST_KERNEL
from pointsman.config.mode_table import IPVS, NFTABLES
from pointsman.config.types import IPTables, IPVirtualServer, KubeProxyConfiguration
from pointsman.model.balancing import IPVS_SCHEDULERS, SCHEDULER_ANNOTATION, Scheduler
from pointsman.model.findings import Code, Finding, Severity, Value
from pointsman.model.objects import Service
from pointsman.model.service import IPVS_SCHEDULER_ANNOTATION, SOURCE_RANGES_ANNOTATION

LOOPBACK_GATE = "KubeProxyNFTablesLocalhostNodePorts"
_EVERYWHERE = ("0.0.0.0/0", "::/0")
_DEFAULT_SCHEDULER = "rr"


def plan_migration(
    config: KubeProxyConfiguration, services: Sequence[Service], kernel: tuple[int, int]
) -> Migration:
    """Return what changes for these Services on a node with this kernel, errors first."""
    found = [
        *_check_kernel(kernel),
        *_compare_node_ports(config, services),
        *_compare_rules(config, services),
    ]
    if config.mode == IPVS:
        found += _compare_ipvs(config, services)
    else:
        found.append(Finding(Code.MIGRATE_CHAINS, Severity.NOTICE))
    found.sort(key=lambda finding: list(Severity).index(finding.severity))
    return Migration(convert_configuration(config), tuple(found))


def convert_configuration(config: KubeProxyConfiguration) -> KubeProxyConfiguration:
    """Return the configuration for nftables mode that serves the same node ports, with the same masquerading and periods."""
    former = _get_former_block(config)
    return msgspec.structs.replace(
        config,
        mode=NFTABLES,
        node_port_addresses=config.node_port_addresses or _EVERYWHERE,
        nftables=msgspec.structs.replace(
            config.nftables,
            masquerade_all=config.iptables.masquerade_all,
            masquerade_bit=config.iptables.masquerade_bit,
            sync_period=former.sync_period,
            min_sync_period=former.min_sync_period,
        ),
    )


def _get_former_block(config: KubeProxyConfiguration) -> IPTables | IPVirtualServer:
    return config.ipvs if config.mode == IPVS else config.iptables


def _check_kernel(kernel: tuple[int, int]) -> Iterator[Finding]:
    if (0, 0) < kernel < OLDEST_KERNEL:
        yield Finding(
            Code.MIGRATE_KERNEL,
            Severity.ERROR,
            parameters={"kernel": "{}.{}".format(*kernel), "oldest": "{}.{}".format(*OLDEST_KERNEL)},
        )


def _compare_node_ports(config: KubeProxyConfiguration, services: Sequence[Service]) -> Iterator[Finding]:
    with_node_port = [
        service for service in services if any(port.node_port for port in service.spec.ports or ())
    ]
    if not with_node_port:
        return
    if not config.node_port_addresses:
        yield _build(Code.MIGRATE_NODE_PORT_ADDRESSES, with_node_port)
    answers_on_loopback = config.mode == IPVS or config.iptables.localhost_node_ports
    if answers_on_loopback and not config.feature_gates.get(LOOPBACK_GATE):
        yield _build(Code.MIGRATE_LOOPBACK, with_node_port, {"gate": LOOPBACK_GATE})


def _compare_rules(config: KubeProxyConfiguration, services: Sequence[Service]) -> Iterator[Finding]:
    external = [service for service in services if service.spec.external_ips]
    if external:
        yield _build(Code.MIGRATE_EXTERNAL_IPS, external, severity=Severity.NOTICE)
    period = _get_former_block(config).min_sync_period
    if period > timedelta(0):
        yield Finding(
            Code.MIGRATE_MIN_SYNC_PERIOD,
            Severity.NOTICE,
            parameters={"seconds": f"{period.total_seconds():g}"},
        )


def _compare_ipvs(config: KubeProxyConfiguration, services: Sequence[Service]) -> Iterator[Finding]:
    ipvs = config.ipvs
    if ipvs.scheduler not in ("", _DEFAULT_SCHEDULER):
        yield _build_scheduler(ipvs.scheduler, "ipvs.scheduler", ())
    by_name: dict[str, list[Service]] = {}
    for service in services:
        requested = service.metadata.annotation(IPVS_SCHEDULER_ANNOTATION)
        if requested and not service.metadata.annotation(SCHEDULER_ANNOTATION):
            by_name.setdefault(requested, []).append(service)
    for name, users in sorted(by_name.items()):
        yield _build_scheduler(name, IPVS_SCHEDULER_ANNOTATION, users)
    restricted = [one for one in services if one.metadata.annotation(SOURCE_RANGES_ANNOTATION) is not None]
    if restricted:
        yield _build(Code.MIGRATE_SOURCE_RANGES, restricted, {"annotation": SOURCE_RANGES_ANNOTATION})
    if ipvs.strict_arp:
        yield Finding(Code.MIGRATE_STRICT_ARP, Severity.NOTICE)
    if ipvs.exclude_cidrs:
        yield Finding(Code.MIGRATE_EXCLUDE_CIDRS, Severity.NOTICE, parameters={"cidrs": ipvs.exclude_cidrs})
    for field, timeout, instead in (
        ("ipvs.tcpTimeout", ipvs.tcp_timeout, "conntrack.tcpEstablishedTimeout"),
        ("ipvs.tcpFinTimeout", ipvs.tcp_fin_timeout, "conntrack.tcpCloseWaitTimeout"),
        ("ipvs.udpTimeout", ipvs.udp_timeout, "conntrack.udpStreamTimeout"),
    ):
        if timeout:
            yield Finding(Code.MIGRATE_TIMEOUT, parameters={"field": field, "instead": instead})
    yield Finding(Code.MIGRATE_IPVS_ADDRESSES, Severity.NOTICE)


def _build_scheduler(name: str, place: str, services: Sequence[Service]) -> Finding:
    equivalent = IPVS_SCHEDULERS.get(name, Scheduler.IPVS_ONLY)
    parameters: dict[str, Value] = {"scheduler": name, "place": place}
    if equivalent is Scheduler.IPVS_ONLY:
        return _build(Code.MIGRATE_NO_SCHEDULER, services, parameters)
    return _build(Code.MIGRATE_SCHEDULER, services, {**parameters, "equivalent": equivalent.value})


def _build(
    code: Code,
    services: Sequence[Service],
    parameters: Mapping[str, Value] = {},
    *,
    severity: Severity = Severity.WARNING,
) -> Finding:
    names = tuple(sorted(service.metadata.key for service in services))
    return Finding(code, severity, parameters={**parameters, "services": names})
