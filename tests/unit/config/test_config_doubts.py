"""Settings that kube-proxy warns of, and those it does not."""

from __future__ import annotations

import pytest

from pointsman.config.doubts import configuration_doubts
from pointsman.config.types import KubeProxyConfiguration
from pointsman.model.addresses import Family


@pytest.mark.parametrize(
    ("node_ports", "cluster_cidr", "pod_cidrs", "words"),
    [
        ((), "10.244.0.0/16", (), ["nodePortAddresses is unset"]),
        (("primary",), "10.244.0.0/16", ("10.244.1.0/24",), []),
        (("localhost",), "", (), []),
        (("10.0.0.0/8", "fd00::/8"), "10.244.0.0/16,fd00:1::/64", (), []),
        (("fd00::/8",), "10.244.0.0/16", (), ["nodePortAddresses holds only IPv6 ranges"]),
        (("primary",), "fd00:1::/64", (), ["clusterCIDR holds only IPv6 ranges"]),
        (("primary",), "", ("fd00:1::/64",), ["podCIDRs holds only IPv6 ranges"]),
    ],
)
def test_doubtful_settings_are_named_as_kube_proxy_names_them(
    node_ports: tuple[str, ...], cluster_cidr: str, pod_cidrs: tuple[str, ...], words: list[str]
) -> None:
    config = KubeProxyConfiguration(node_port_addresses=node_ports, cluster_cidr=cluster_cidr)
    doubts = list(configuration_doubts(config, Family.IPV4, pod_cidrs))
    assert len(doubts) == len(words)
    assert all(part in doubt for part, doubt in zip(words, doubts, strict=True))


def test_an_ipv6_cluster_is_judged_by_its_own_family() -> None:
    config = KubeProxyConfiguration(node_port_addresses=("primary",), cluster_cidr="10.244.0.0/16")
    assert list(configuration_doubts(config, Family.IPV6)) == [
        "the cluster is IPv6-primary, but clusterCIDR holds only IPv4 ranges"
    ]
