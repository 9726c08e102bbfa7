"""Settings that are allowed and probably not what was meant, as kube-proxy warns of them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pointsman.config.types import KubeProxyConfiguration
from pointsman.model.addresses import Family, cidr_from_text


def configuration_doubts(
    config: KubeProxyConfiguration, primary: Family, pod_cidrs: Sequence[str] = ()
) -> Iterator[str]:
    """One sentence each; the mode is decided, `primary` is the family of the Node's first address."""
    other = Family.IPV6 if primary is Family.IPV4 else Family.IPV4
    if not config.node_port_addresses:
        yield (
            "nodePortAddresses is unset: node ports answer on all local addresses; consider "
            "--nodeport-addresses=primary"
        )
    elif _only(other, config.node_port_addresses):
        yield (
            f"the cluster seems to be {primary.value}-primary, but nodePortAddresses holds only {other.value} ranges: "
            f"node ports answer on all local {primary.value} addresses"
        )
    for field, cidrs in (("clusterCIDR", config.cluster_cidrs), ("the Node's podCIDRs", pod_cidrs)):
        if _only(other, cidrs):
            yield f"the cluster is {primary.value}-primary, but {field} holds only {other.value} ranges"


def _only(family: Family, texts: Sequence[str]) -> bool:
    """Whether there is something, and all of it ranges of this family; keywords stand for both."""
    ranges = [cidr_from_text(text) for text in texts]
    return bool(ranges) and all(cidr is not None and cidr.family is family for cidr in ranges)
