"""Settings that do not fit the node: probably not what was meant, or sure not to work. Pure.

The rules are kube-proxy's, which warns of the first kind and ends at the second.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from pointsman.config.types import KubeProxyConfiguration
from pointsman.model.addresses import Family, address_from_text, cidr_from_text, family_of, split_host_port
from pointsman.model.node import NodeFacts
from pointsman.model.node_context import resolve_node_port_ranges


class Judgement(NamedTuple):
    """One sentence each."""

    doubts: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    """No proxy starts with one of these, and no running one takes it over."""


def judged(config: KubeProxyConfiguration, node: NodeFacts, served: Collection[Family]) -> Judgement:
    """The configuration on this node; the mode is decided, `served` are the families that the machine can serve."""
    primary = node.primary_family
    other = Family.IPV6 if primary is Family.IPV4 else Family.IPV4
    dual_stack = len(served) > 1
    cluster = f"the cluster is {primary.value}-{'primary' if dual_stack else 'only'}"
    doubts, faults = [*_node_port_doubts(config, node, served)], []
    if primary not in served:
        faults.append(
            f"this node's first address is {primary.value}, which this machine cannot serve: enable it in the kernel, "
            "or put the other family first in the Node's addresses or in bindAddress"
        )
    if _only(other, config.cluster_cidrs):
        needed = config.detect_local_mode == "ClusterCIDR" and not dual_stack
        found = faults if needed else doubts
        found.append(f"{cluster}, but clusterCIDR holds only {other.value} ranges")
    by_pod_range = config.detect_local_mode == "NodeCIDR"
    if _only(other, node.pod_cidrs):
        found = faults if by_pod_range else doubts
        found.append(f"{cluster}, but the Node's podCIDRs holds only {other.value} ranges")
    if by_pod_range and not node.pod_cidrs:
        faults.append(
            f"detectLocalMode is NodeCIDR and the Node {node.name} has no spec.podCIDRs: let the controller manager "
            "allocate ranges (--allocate-node-cidrs), or use another detectLocalMode"
        )
    if not dual_stack:
        doubts += [f"{cluster}, but {problem}" for problem in _of_no_use(config, other)]
    return Judgement(tuple(doubts), tuple(faults))


def _node_port_doubts(
    config: KubeProxyConfiguration, node: NodeFacts, served: Collection[Family]
) -> Iterator[str]:
    """Node ports that answer at every address of a family, which a list without ranges of that family means."""
    if not config.node_port_addresses:
        yield (
            "nodePortAddresses is unset: node ports answer on all local addresses; consider "
            "--nodeport-addresses=primary"
        )
        return
    dual_stack = any(
        _families(texts) == set(Family)
        for texts in (config.cluster_cidrs, config.ipvs.exclude_cidrs, node.pod_cidrs)
    )
    for family in served:
        is_primary = family is node.primary_family
        if resolve_node_port_ranges(config.node_port_addresses, family, node.ips) or not (
            is_primary or dual_stack
        ):
            continue
        yield (
            f"the cluster seems to be {f'{family.value}-primary' if is_primary else 'dual-stack'}, but "
            f"nodePortAddresses holds no {family.value} range: node ports answer on all local {family.value} addresses"
        )


def _of_no_use(config: KubeProxyConfiguration, unserved: Family) -> Iterator[str]:
    """What is given for a family that is not served."""
    if _only(unserved, config.ipvs.exclude_cidrs):
        yield f"ipvs.excludeCIDRs holds only {unserved.value} ranges"
    for field, served_at in (
        ("healthzBindAddress", config.healthz_bind_address),
        ("metricsBindAddress", config.metrics_bind_address),
    ):
        host, _ = split_host_port(served_at) or ("", "")
        address = address_from_text(host)
        if address is not None and any(address) and family_of(address) is unserved:
            yield f"{field} is an {unserved.value} address"


def _only(family: Family, texts: Sequence[str]) -> bool:
    return _families(texts) == {family}


def _families(texts: Sequence[str]) -> set[Family | None]:
    """Those of the ranges; None stands for text that is no range."""
    ranges = (cidr_from_text(text) for text in texts)
    return {None if cidr is None else cidr.family for cidr in ranges}
