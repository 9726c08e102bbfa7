"""What changes for a cluster that leaves ipvs or iptables mode, and the configuration that keeps the rest."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests import factory

from pointsman.backends.nftables.migration import convert_configuration, plan_migration
from pointsman.config.types import IPTables, IPVirtualServer, KubeProxyConfiguration
from pointsman.model.findings import Code, Severity
from pointsman.model.objects import Service
from pointsman.wording.findings import describe

NODE_PORT: dict[str, Any] = {"type": "NodePort", "ports": [{"name": "http", "port": 80, "nodePort": 30080}]}


def find(
    config: KubeProxyConfiguration, *services: Service, kernel: tuple[int, int] = (6, 1)
) -> dict[Code, dict[str, Any]]:
    found = plan_migration(config, services, kernel).findings
    for finding in found:
        described = describe(finding)
        assert described.message
        assert "{" not in described.message + described.remedy
    return {finding.code: dict(finding.parameters) for finding in found}


def ipvs(**fields: Any) -> KubeProxyConfiguration:
    return KubeProxyConfiguration(mode="ipvs", ipvs=IPVirtualServer(**fields))


@pytest.mark.parametrize(
    ("scheduler", "code", "equivalent"),
    [
        ("sh", Code.MIGRATE_SCHEDULER, "source-hash"),
        ("lc", Code.MIGRATE_SCHEDULER, "least-connections"),
        ("dh", Code.MIGRATE_NO_SCHEDULER, None),
    ],
)
def test_schedulers_have_an_equivalent_or_are_named(
    scheduler: str, code: Code, equivalent: str | None
) -> None:
    assert find(ipvs(scheduler=scheduler))[code].get("equivalent") == equivalent
    annotated = factory.service(metadata={"annotations": {"pointsman.dev/ipvs-scheduler": scheduler}})
    assert find(ipvs(), annotated)[code]["services"] == ("default/web",)


def test_the_default_scheduler_changes_nothing() -> None:
    assert set(find(ipvs(scheduler="rr"))) == {Code.MIGRATE_IPVS_ADDRESSES}


def test_settings_of_ipvs_that_lose_their_effect_are_named() -> None:
    found = find(ipvs(strict_arp=True, exclude_cidrs=("10.0.0.0/8",), udp_timeout=timedelta(seconds=10)))
    assert {Code.MIGRATE_STRICT_ARP, Code.MIGRATE_EXCLUDE_CIDRS, Code.MIGRATE_TIMEOUT} <= set(found)
    assert found[Code.MIGRATE_TIMEOUT] == {
        "field": "ipvs.udpTimeout",
        "instead": "conntrack.udpStreamTimeout",
    }


def test_source_ranges_that_ipvs_ignored_take_effect() -> None:
    service = factory.service(metadata={"annotations": {"pointsman.dev/source-ranges": "all"}})
    assert Code.MIGRATE_SOURCE_RANGES in find(ipvs(), service)


def test_node_ports_keep_their_addresses_and_lose_loopback() -> None:
    config = KubeProxyConfiguration(mode="iptables")
    assert {Code.MIGRATE_NODE_PORT_ADDRESSES, Code.MIGRATE_LOOPBACK} <= set(
        find(config, factory.service(**NODE_PORT))
    )
    assert not {Code.MIGRATE_NODE_PORT_ADDRESSES, Code.MIGRATE_LOOPBACK} & set(
        find(config, factory.service())
    )
    without = KubeProxyConfiguration(mode="iptables", iptables=IPTables(localhost_node_ports=False))
    assert Code.MIGRATE_LOOPBACK not in find(without, factory.service(**NODE_PORT))


def test_chains_of_iptables_mode_are_named() -> None:
    assert Code.MIGRATE_CHAINS in find(KubeProxyConfiguration(mode="iptables"))
    assert Code.MIGRATE_CHAINS not in find(ipvs())


def test_an_old_kernel_is_an_error_and_comes_first() -> None:
    first = plan_migration(ipvs(), (), (5, 10)).findings[0]
    assert (first.code, first.severity) == (Code.MIGRATE_KERNEL, Severity.ERROR)
    assert Code.MIGRATE_KERNEL not in find(ipvs(), kernel=(5, 13))


def test_the_converted_configuration_keeps_masquerading_periods_and_addresses() -> None:
    config = KubeProxyConfiguration(
        mode="ipvs",
        iptables=IPTables(masquerade_all=True, masquerade_bit=10),
        ipvs=IPVirtualServer(min_sync_period=timedelta(seconds=2), sync_period=timedelta(seconds=60)),
        cluster_cidr="10.244.0.0/16",
    )
    converted = convert_configuration(config)
    assert converted.mode == "nftables"
    assert converted.node_port_addresses == ("0.0.0.0/0", "::/0")
    assert (converted.masquerade_all, converted.masquerade_bit) == (True, 10)
    assert (converted.min_sync_period.seconds, converted.sync_period.seconds) == (2, 60)
    assert converted.cluster_cidr == "10.244.0.0/16"


def test_named_node_port_addresses_are_kept() -> None:
    config = KubeProxyConfiguration(mode="iptables", node_port_addresses=("192.0.2.0/24",))
    assert convert_configuration(config).node_port_addresses == ("192.0.2.0/24",)
