"""Settings that kube-proxy warns of, those it ends at, and those it lets pass."""

from __future__ import annotations

from typing import Any

import pytest

from pointsman.config.node_check import check_config_on_node
from pointsman.config.types import IPVirtualServer, KubeProxyConfiguration
from pointsman.model.addresses import Family, address_from_text, family_of
from pointsman.model.findings import Code, Finding
from pointsman.model.node_context import NodeFacts
from pointsman.wording.findings import render_message

BOTH = (Family.IPV4, Family.IPV6)
V4, V6 = "10.244.0.0/16", "fd00:1::/64"


def check(
    *, ips: tuple[str, ...] = ("172.30.0.10",), pods: tuple[str, ...] = (), served: Any = BOTH, **fields: Any
) -> tuple[Finding, ...]:
    """Check these fields on a node with these addresses and pod ranges."""
    fields = {"node_port_addresses": ("localhost",), "detect_local_mode": "ClusterCIDR", **fields}
    packed = tuple(address for text in ips if (address := address_from_text(text)) is not None)
    node = NodeFacts("n1", family_of(packed[0]), packed, pod_cidrs=pods)
    return check_config_on_node(KubeProxyConfiguration(**fields), node, served)


@pytest.mark.parametrize(
    ("node_ports", "cluster_cidr", "pods", "words"),
    [
        ((), V4, (), ["nodePortAddresses is unset"]),
        (("primary",), V4, ("10.244.1.0/24",), []),
        (("localhost",), f"{V4},{V6}", (), []),
        (("10.0.0.0/8", "fd00::/8"), f"{V4},{V6}", (), []),
        (
            ("fd00::/8",),
            V4,
            (),
            ["nodePortAddresses has no IPv4 range: node ports are served at all local IPv4"],
        ),
        (("10.0.0.0/8",), V4, (), []),
        (("10.0.0.0/8",), f"{V4},{V6}", (), ["dual-stack, but nodePortAddresses has no IPv6 range"]),
        (("10.0.0.0/8",), "", (V4, V6), ["dual-stack, but nodePortAddresses has no IPv6 range"]),
        (("primary",), f"{V4},{V6}", (), ["dual-stack, but nodePortAddresses has no IPv6 range"]),
        (("primary",), V6, (), ["IPv4-primary, but clusterCIDR is IPv6 only"]),
        (("primary",), "", (V6,), ["IPv4-primary, but the Node's podCIDRs is IPv6 only"]),
    ],
)
def test_doubtful_settings_are_named_as_kube_proxy_names_them(
    node_ports: tuple[str, ...], cluster_cidr: str, pods: tuple[str, ...], words: list[str]
) -> None:
    found = check(node_port_addresses=node_ports, cluster_cidr=cluster_cidr, pods=pods)
    assert not any(finding.is_error for finding in found)
    assert len(found) == len(words)
    assert all(part in render_message(finding) for part, finding in zip(words, found, strict=True))


def test_the_word_primary_limits_nothing_on_a_node_without_an_address() -> None:
    (finding,) = check(ips=("127.0.0.1",), node_port_addresses=("primary",))
    assert (finding.code, finding.parameters["family"]) == (Code.NODE_PORTS_EVERYWHERE, "IPv4")


def test_node_ports_of_a_family_that_is_not_served_are_not_worried_about() -> None:
    found = check(node_port_addresses=("primary",), cluster_cidr=f"{V4},{V6}", served=(Family.IPV4,))
    assert found == ()


def test_an_ipv6_cluster_is_judged_by_its_own_family() -> None:
    found = check(ips=("2001:db8::1",), node_port_addresses=("primary",), cluster_cidr=V4)
    assert [(finding.is_error, render_message(finding)) for finding in found] == [
        (False, "the cluster is IPv6-primary, but clusterCIDR is IPv4 only")
    ]


@pytest.mark.parametrize(
    ("mode", "fields", "served", "fault"),
    [
        ("ClusterCIDR", {"cluster_cidr": V6}, BOTH, ""),
        ("ClusterCIDR", {"cluster_cidr": V6}, BOTH[:1], "IPv4-only, but clusterCIDR is IPv6 only"),
        ("BridgeInterface", {"cluster_cidr": V6}, BOTH[:1], ""),
        ("ClusterCIDR", {"pods": (V6,)}, BOTH[:1], ""),
        ("NodeCIDR", {"pods": (V6,)}, BOTH[:1], "podCIDRs is IPv6 only"),
        ("NodeCIDR", {"pods": (V6,)}, BOTH, "podCIDRs is IPv6 only"),
        ("NodeCIDR", {"pods": (V4, V6)}, BOTH[:1], ""),
        ("NodeCIDR", {}, BOTH, "the Node n1 has no spec.podCIDRs"),
        (
            "ClusterCIDR",
            {"ips": ("2001:db8::1",)},
            BOTH[:1],
            "first address is IPv6, which this machine cannot",
        ),
    ],
)
def test_what_kube_proxy_ends_at_is_a_fault(
    mode: str, fields: dict[str, Any], served: tuple[Family, ...], fault: str
) -> None:
    found = check(detect_local_mode=mode, served=served, **fields)
    errors = [render_message(finding) for finding in found if finding.is_error]
    assert len(errors) == bool(fault)
    assert all(fault in error for error in errors)


def test_where_one_family_is_served_addresses_of_the_other_are_of_no_use() -> None:
    fields: dict[str, Any] = {
        "ipvs": IPVirtualServer(exclude_cidrs=(V6,)),
        "healthz_bind_address": "[2001:db8::1]:10256",
        "metrics_bind_address": "[::1]:10249",
    }
    assert check(**fields) == ()
    alone = check(**fields, served=(Family.IPV4,))
    assert [(finding.code, finding.parameters["field"]) for finding in alone] == [
        (Code.OTHER_FAMILY_ONLY, field)
        for field in ("ipvs.excludeCIDRs", "healthzBindAddress", "metricsBindAddress")
    ]
    anywhere: dict[str, Any] = {"healthz_bind_address": "[::]:10256", "metrics_bind_address": ""}
    assert check(**anywhere, served=(Family.IPV4,)) == ()
