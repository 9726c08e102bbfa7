"""Check a configuration against the node: settings that are probably wrong, and settings that cannot work. Pure.

The rules are kube-proxy's, which warns about the former and exits on the latter.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from pointsman.config.types import KubeProxyConfiguration
from pointsman.model.addresses import Family, address_from_text, cidr_from_text, family_of, split_host_port
from pointsman.model.findings import Code, Finding, ObjectReference, Severity, Value
from pointsman.model.node_context import NodeFacts, resolve_node_port_ranges

_CONFIGURATION = ObjectReference("KubeProxyConfiguration")


def check_config_on_node(
    config: KubeProxyConfiguration, node: NodeFacts, served: Collection[Family]
) -> tuple[Finding, ...]:
    """Return the findings; the mode is decided, `served` are the families that the machine can serve.

    A proxy does not start with an error, and a running one does not apply it.
    """
    return tuple(_check(config, node, served))


def _check(config: KubeProxyConfiguration, node: NodeFacts, served: Collection[Family]) -> Iterator[Finding]:
    primary = node.primary_family
    other = Family.IPV6 if primary is Family.IPV4 else Family.IPV4
    dual_stack = len(served) > 1
    cluster = f"{primary.value}-{'primary' if dual_stack else 'only'}"
    by_pod_range = config.detect_local_mode == "NodeCIDR"
    yield from _check_node_ports(config, node, served)
    if primary not in served:
        yield _build_finding(Code.PRIMARY_FAMILY_NOT_SERVED, error=True, family=primary.value)
    if _has_only(other, config.cluster_cidrs):
        needed = config.detect_local_mode == "ClusterCIDR" and not dual_stack
        yield _build_other_family(cluster, "clusterCIDR", other, error=needed)
    if _has_only(other, node.pod_cidrs):
        yield _build_other_family(cluster, "the Node's podCIDRs", other, error=by_pod_range)
    if by_pod_range and not node.pod_cidrs:
        yield _build_finding(Code.NO_POD_RANGE, error=True, node=node.name)
    if not dual_stack:
        for field in _find_unused(config, other):
            yield _build_other_family(cluster, field, other, error=False)


def _build_finding(code: Code, *, error: bool, **parameters: Value) -> Finding:
    severity = Severity.ERROR if error else Severity.WARNING
    return Finding(code, severity, _CONFIGURATION, parameters)


def _build_other_family(cluster: str, field: str, other: Family, *, error: bool) -> Finding:
    return _build_finding(
        Code.OTHER_FAMILY_ONLY, error=error, cluster=cluster, field=field, family=other.value
    )


def _check_node_ports(
    config: KubeProxyConfiguration, node: NodeFacts, served: Collection[Family]
) -> Iterator[Finding]:
    """Yield families whose node ports are served at every address, which a list without a range of that family means."""
    if not config.node_port_addresses:
        yield _build_finding(Code.NODE_PORT_ADDRESSES_UNSET, error=False)
        return
    dual_stack = any(
        _find_families(texts) == set(Family)
        for texts in (config.cluster_cidrs, config.ipvs.exclude_cidrs, node.pod_cidrs)
    )
    for family in served:
        is_primary = family is node.primary_family
        if resolve_node_port_ranges(config.node_port_addresses, family, node.ips) or not (
            is_primary or dual_stack
        ):
            continue
        cluster = f"{family.value}-primary" if is_primary else "dual-stack"
        yield _build_finding(Code.NODE_PORTS_EVERYWHERE, error=False, cluster=cluster, family=family.value)


def _find_unused(config: KubeProxyConfiguration, unserved: Family) -> Iterator[str]:
    """Yield the fields that are set for a family that is not served."""
    if _has_only(unserved, config.ipvs.exclude_cidrs):
        yield "ipvs.excludeCIDRs"
    for field, served_at in (
        ("healthzBindAddress", config.healthz_bind_address),
        ("metricsBindAddress", config.metrics_bind_address),
    ):
        host, _ = split_host_port(served_at) or ("", "")
        address = address_from_text(host)
        if address is not None and any(address) and family_of(address) is unserved:
            yield field


def _has_only(family: Family, texts: Sequence[str]) -> bool:
    return _find_families(texts) == {family}


def _find_families(texts: Sequence[str]) -> set[Family | None]:
    """Return those of the ranges; None where the text is not a range."""
    ranges = (cidr_from_text(text) for text in texts)
    return {None if cidr is None else cidr.family for cidr in ranges}
