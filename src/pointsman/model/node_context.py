"""What the Node object and the configuration contribute to the rules: facts of the node, and one context per IP family.

When a context differs from the one of the last sync, that sync is a full one.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec

from pointsman.model.addresses import (
    LOCALHOST,
    LOOPBACK,
    Cidr,
    Family,
    address_from_text,
    cidr_from_text,
    family_of,
)
from pointsman.model.balancing import BalancingDefaults
from pointsman.model.objects import ZONE_LABEL, Node


class NodeFacts(msgspec.Struct, frozen=True, gc=False):
    """What rules use of the node."""

    name: str
    primary_family: Family = Family.IPV4
    ips: tuple[bytes, ...] = ()
    """One address per family, primary first."""
    zone: str = ""
    pod_cidrs: tuple[str, ...] = ()

    def ips_of(self, family: Family) -> tuple[bytes, ...]:
        return tuple(ip for ip in self.ips if family_of(ip) is family)


def find_host_ips(node: Node) -> tuple[bytes, ...]:
    """Return the first address of the node and the first of the other family, InternalIPs before ExternalIPs."""
    found: list[bytes] = []
    for kind in ("InternalIP", "ExternalIP"):
        for entry in node.status.addresses or ():
            address = address_from_text(entry.address) if entry.type == kind else None
            if address is not None:
                found.append(address)
    if not found:
        return ()
    other = [ip for ip in found if len(ip) != len(found[0])]
    return (found[0], *other[:1])


def build_node_facts(
    name: str, node: Node | None, bind_address: str, fallback_ips: Sequence[bytes] = ()
) -> NodeFacts:
    """Return the facts with addresses chosen as by kube-proxy: from the Node, `bind_address` overriding its own family.

    Without a Node (manifests, or no such object) `fallback_ips` are used, else localhost.
    """
    ips = list((find_host_ips(node) if node is not None else ()) or fallback_ips)
    bound = address_from_text(bind_address)
    if bound is not None and any(bound):
        ips = [bound, *(ip for ip in ips if len(ip) != len(bound))]
    if not ips:
        ips = [LOCALHOST[Family.IPV4]]
    return NodeFacts(
        name=name,
        primary_family=family_of(ips[0]),
        ips=tuple(ips),
        zone=(node.metadata.label(ZONE_LABEL) or "") if node is not None else "",
        pod_cidrs=_find_pod_cidrs(node),
    )


def _find_pod_cidrs(node: Node | None) -> tuple[str, ...]:
    if node is None:
        return ()
    if node.spec.pod_cidrs:
        return tuple(node.spec.pod_cidrs)
    return (node.spec.pod_cidr,) if node.spec.pod_cidr else ()


class LocalMode(enum.Enum):
    """How traffic of local pods is recognised."""

    NONE = "None"
    CIDR = "CIDR"
    """Source inside `cidr` (ClusterCIDR and NodeCIDR modes)."""
    INTERFACE = "BridgeInterface"
    """Arrived on the interface `interface`."""
    INTERFACE_PREFIX = "InterfaceNamePrefix"
    """Arrived on an interface whose name starts with `interface`."""


class LocalDetector(msgspec.Struct, frozen=True, gc=False):
    """Distinguishes packets of local pods from others."""

    mode: LocalMode = LocalMode.NONE
    cidr: Cidr | None = None
    interface: str = ""


class NodePortAddresses(msgspec.Struct, frozen=True, gc=False):
    """Addresses of node ports: every local address, or exactly `addresses` (resolved, this family)."""

    match_all: bool = True
    addresses: tuple[bytes, ...] = ()
    loopback: bool = True
    """IPv4 loopback is among the configured ranges (127.0.0.0/8 is covered or everything is)."""
    loopback_requested: bool = False
    """Loopback is configured by name, as `localhost` or a range inside it (nftables, behind its gate)."""


class NodeContext(msgspec.Struct, frozen=True, gc=False):
    """Node and configuration of one IP family, as used by planning and compiling."""

    family: Family
    node_name: str
    node_ips: tuple[bytes, ...] = ()
    """The Node's addresses of this family, primary first."""
    zone: str = ""
    local: LocalDetector = LocalDetector()
    node_port_addresses: NodePortAddresses = NodePortAddresses()
    service_cidrs: tuple[Cidr, ...] = ()
    masquerade_all: bool = False
    masquerade_bit: int = 14
    external_allow: tuple[Cidr, ...] = ()
    """When not empty, external and load-balancer IPs outside these ranges are not served."""
    addresses_in_rules: tuple[bytes, ...] = ()
    """The node's own addresses where rules depend on each of them (ipvs); empty in other modes."""
    balancing: BalancingDefaults = BalancingDefaults()

    @property
    def masquerade_mark(self) -> int:
        return 1 << self.masquerade_bit


def build_local_detector(
    mode: str,
    family: Family,
    *,
    cluster_cidrs: Sequence[str] = (),
    pod_cidrs: Sequence[str] = (),
    bridge_interface: str = "",
    interface_prefix: str = "",
) -> LocalDetector:
    """Return the configured detector; one without data for this family detects nothing, as in kube-proxy."""
    if mode == "BridgeInterface":
        return LocalDetector(LocalMode.INTERFACE, interface=bridge_interface)
    if mode == "InterfaceNamePrefix":
        return LocalDetector(LocalMode.INTERFACE_PREFIX, interface=interface_prefix)
    cidr = _find_first_of_family(pod_cidrs if mode == "NodeCIDR" else cluster_cidrs, family)
    if cidr is None or cidr.is_everything:
        return LocalDetector()
    return LocalDetector(LocalMode.CIDR, cidr=cidr)


def _find_first_of_family(texts: Sequence[str], family: Family) -> Cidr | None:
    for text in texts:
        cidr = cidr_from_text(text)
        if cidr is not None and cidr.family is family:
            return cidr
    return None


def resolve_node_port_addresses(
    configured: Sequence[str],
    family: Family,
    *,
    node_ips: Sequence[bytes],
    local_addresses: Sequence[bytes],
) -> NodePortAddresses:
    """Resolve ranges and keywords with the current addresses of the node.

    A list without an entry for this family means every address, as in kube-proxy, and so does an empty list (the
    defaults of the mode were applied before).
    """
    ranges = resolve_node_port_ranges(configured or ("all",), family, node_ips)
    loopback = LOOPBACK[family]
    requested = any(loopback.contains(cidr.network) for cidr in ranges)
    if not ranges or any(cidr.is_everything for cidr in ranges):
        return NodePortAddresses(loopback_requested=requested)
    found = {address for address in local_addresses if any(cidr.contains(address) for cidr in ranges)}
    return NodePortAddresses(
        match_all=False,
        addresses=tuple(sorted(found)),
        loopback=requested or any(cidr.contains(loopback.network) for cidr in ranges),
        loopback_requested=requested,
    )


def resolve_node_port_ranges(
    configured: Sequence[str], family: Family, node_ips: Sequence[bytes]
) -> list[Cidr]:
    """Return the ranges of one family that the entries mean."""
    return [cidr for entry in configured for cidr in _resolve_entry(entry, family, node_ips)]


def _resolve_entry(entry: str, family: Family, node_ips: Sequence[bytes]) -> Sequence[Cidr]:
    """Return the ranges of one family that an entry means.

    A loopback address as the primary address of the node (`bindAddress`, or no address known) is not reachable for clients
    and means no range.
    """
    if entry == "all":
        return (Cidr(family.any_address, 0),)
    if entry == "localhost":
        return (LOOPBACK[family],)
    if entry == "primary":
        primary = next((ip for ip in node_ips if len(ip) == family.address_length), None)
        if primary is None or LOOPBACK[family].contains(primary):
            return ()
        return (Cidr(primary, len(primary) * 8),)
    cidr = cidr_from_text(entry)
    return (cidr,) if cidr is not None and cidr.family is family else ()
