"""What this node is: which changes matter to rules, and when the first sync may happen."""

from __future__ import annotations

from tests import factory

from pointsman.config.defaults import with_file_defaults, with_mode
from pointsman.config.types import KubeProxyConfiguration
from pointsman.model.addresses import Family
from pointsman.model.objects import EndpointSlice, Node, Service, ServiceCIDR
from pointsman.node.start import StartGate
from pointsman.node.state import NodeState, Settings

LOOPBACK, OWN, POD_LINK = b"\x7f\0\0\1", b"\x0a\0\0\5", b"\xa9\xfe\0\1"
ADDRESSED = factory.node(addresses=[{"type": "InternalIP", "address": "172.30.0.10"}])


def state(mode: str = "nftables", *, from_manifests: bool = False) -> NodeState:
    config = with_mode(with_file_defaults(KubeProxyConfiguration()), mode)
    settings = Settings(config=config, node_name="n1", from_manifests=from_manifests)
    return NodeState(settings, {Family.IPV4: (LOOPBACK, POD_LINK, OWN)})


def test_rules_may_differ_when_the_node_a_service_range_or_the_configuration_changes() -> None:
    node = state()
    assert node.set_node(ADDRESSED)
    assert not node.set_node(ADDRESSED)
    assert node.set_service_ranges("default", ["10.96.0.0/16"])
    assert not node.set_service_ranges("default", ["10.96.0.0/16"])
    assert node.set_service_ranges("default", None)
    masquerading = KubeProxyConfiguration(cluster_cidr="10.244.0.0/16")
    assert node.set_config(with_mode(with_file_defaults(masquerading), "nftables"))


def test_a_new_own_address_changes_rules_only_where_they_name_it_and_is_known_everywhere() -> None:
    for mode, differ in (("nftables", False), ("ipvs", True)):
        node = state(mode)
        assert node.set_addresses({Family.IPV4: (LOOPBACK, OWN, b"\x0a\0\0\6")}) is differ
        assert node.addresses[Family.IPV4] == (LOOPBACK, OWN, b"\x0a\0\0\6")


def test_without_a_node_object_manifests_make_do_with_the_first_address_others_can_reach() -> None:
    assert state(from_manifests=True).facts.ips == (OWN,)
    assert state().facts.ips == (LOOPBACK,)


def test_the_gate_opens_once_when_all_is_listed_and_the_node_has_addresses() -> None:
    gate = StartGate("n1", needs_node=True)
    assert not gate.mark_node(is_complete=True)
    assert [gate.mark_listed(kind) for kind in (Service, EndpointSlice, Node)] == [False] * 3
    assert gate.waiting_for == "the first list of ServiceCIDR"
    assert gate.mark_listed(ServiceCIDR)
    assert gate.is_open
    assert gate.waiting_for == ""
    assert not gate.mark_node(is_complete=False)
    assert gate.is_open


def test_a_node_without_addresses_is_waited_for_until_the_patience_ends() -> None:
    gate = StartGate("n1", needs_node=True)
    for kind in (Service, EndpointSlice, Node, ServiceCIDR):
        gate.mark_listed(kind)
    assert not gate.mark_node(is_complete=False)
    assert gate.waiting_for == "the Node n1"
    assert gate.skip_node()
    assert not gate.skip_node()
