import pytest
from tests.factory import node, packed

from pointsman.model.addresses import Family
from pointsman.model.node_context import (
    LocalDetector,
    LocalMode,
    NodePortAddresses,
    build_local_detector,
    build_node_facts,
    find_host_ips,
    resolve_node_port_addresses,
)

ADDRESSES = [packed(a) for a in ("127.0.0.1", "172.30.0.10", "10.244.1.1")]
ADDRESSES6 = [packed(a) for a in ("::1", "fd00:30::10")]


def resolved(*configured: str, family: Family = Family.IPV4) -> NodePortAddresses:
    v4 = family is Family.IPV4
    return resolve_node_port_addresses(
        configured,
        family,
        node_ips=[packed("172.30.0.10")] if v4 else [packed("fd00:30::10")],
        local_addresses=ADDRESSES if v4 else ADDRESSES6,
    )


def test_unset_means_everywhere_and_primary_the_nodes_first_address() -> None:
    assert resolved().match_all
    assert resolved("primary").addresses == (packed("172.30.0.10"),)


@pytest.mark.parametrize("everything", ["all", "0.0.0.0/0"])
def test_everything_matches_all(everything: str) -> None:
    assert resolved("10.0.0.0/8", everything).match_all
    assert resolved(everything).loopback


def test_ranges_select_the_nodes_own_addresses() -> None:
    found = resolved("172.30.0.0/24", "10.244.0.0/16")
    assert set(found.addresses) == {packed("172.30.0.10"), packed("10.244.1.1")}
    assert not found.loopback


def test_a_loopback_range_is_the_single_loopback_address() -> None:
    found = resolved("127.0.0.0/8")
    assert found.addresses == (packed("127.0.0.1"),)
    assert found.loopback


def test_ranges_of_one_family_leave_the_other_at_all_addresses() -> None:
    assert resolved("172.30.0.0/24", family=Family.IPV6).match_all


def test_primary_and_localhost_together() -> None:
    found = resolved("primary", "localhost")
    assert set(found.addresses) == {packed("127.0.0.1"), packed("172.30.0.10")}
    assert found.loopback_requested


@pytest.mark.parametrize(
    ("entries", "asked"),
    [
        (("127.0.0.0/8",), {Family.IPV4}),
        (("127.0.0.1/32", "172.30.0.0/24"), {Family.IPV4}),
        (("::1/128",), {Family.IPV6}),
        (("all", "localhost"), {Family.IPV4, Family.IPV6}),
        (("0.0.0.0/0", "::/0"), set()),
        (("0.0.0.0/1",), set()),
    ],
)
def test_loopback_is_asked_for_by_name_not_by_a_range_around_it(
    entries: tuple[str, ...], asked: set[Family]
) -> None:
    found = {family for family in Family if resolved(*entries, family=family).loopback_requested}
    assert found == asked


def test_primary_is_everywhere_on_a_node_known_by_a_loopback_address_only() -> None:
    found = resolve_node_port_addresses(
        ["primary"],
        Family.IPV4,
        node_ips=[packed("127.0.0.1")],
        local_addresses=ADDRESSES,
    )
    assert found.match_all
    assert not found.loopback_requested


def test_a_range_that_holds_no_address_serves_nowhere() -> None:
    found = resolved("192.0.2.0/24")
    assert (found.match_all, found.addresses) == (False, ())


def test_node_addresses_are_the_first_and_the_first_of_the_other_family() -> None:
    made = node(
        addresses=[
            {"type": "ExternalIP", "address": "198.51.100.1"},
            {"type": "InternalIP", "address": "172.30.0.10"},
            {"type": "InternalIP", "address": "172.30.0.11"},
            {"type": "InternalIP", "address": "fd00:30::10"},
            {"type": "Hostname", "address": "n1"},
        ]
    )
    assert find_host_ips(made) == (packed("172.30.0.10"), packed("fd00:30::10"))
    assert find_host_ips(node()) == ()


def test_bind_address_overrides_its_family_and_decides_the_primary_one() -> None:
    made = node(
        addresses=[
            {"type": "InternalIP", "address": "172.30.0.10"},
            {"type": "InternalIP", "address": "fd00:30::10"},
        ]
    )
    facts = build_node_facts("n1", made, "0.0.0.0")
    assert (facts.primary_family, facts.zone) == (Family.IPV4, "zone-a")
    facts = build_node_facts("n1", made, "fd00:30::99")
    assert facts.primary_family is Family.IPV6
    assert facts.ips == (packed("fd00:30::99"), packed("172.30.0.10"))


def test_without_a_node_the_fallback_and_then_localhost_stand_in() -> None:
    assert build_node_facts("n1", None, "0.0.0.0", [packed("192.0.2.1")]).ips == (packed("192.0.2.1"),)
    assert build_node_facts("n1", None, "0.0.0.0").ips == (packed("127.0.0.1"),)


@pytest.mark.parametrize(
    ("mode", "family", "expected"),
    [
        ("", Family.IPV4, "10.244.0.0/16"),
        ("ClusterCIDR", Family.IPV6, "fd00:10:244::/48"),
        ("NodeCIDR", Family.IPV4, "10.244.1.0/24"),
        ("NodeCIDR", Family.IPV6, None),
    ],
)
def test_cidr_detectors(mode: str, family: Family, expected: str | None) -> None:
    found = build_local_detector(
        mode, family, cluster_cidrs=["10.244.0.0/16", "fd00:10:244::/48"], pod_cidrs=["10.244.1.0/24"]
    )
    assert (str(found.cidr) if found.cidr else None) == expected
    assert found.mode is (LocalMode.CIDR if expected else LocalMode.NONE)


def test_interface_detectors() -> None:
    assert build_local_detector("BridgeInterface", Family.IPV4, bridge_interface="cni0") == LocalDetector(
        LocalMode.INTERFACE, interface="cni0"
    )
    assert (
        build_local_detector("InterfaceNamePrefix", Family.IPV4, interface_prefix="veth").interface == "veth"
    )
    assert (
        build_local_detector("ClusterCIDR", Family.IPV4, cluster_cidrs=["0.0.0.0/0"]).mode is LocalMode.NONE
    )
