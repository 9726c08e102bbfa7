"""What the node and the configuration contribute to the rules, per IP family, as one frozen value.

When it differs from the one of the last sync, that sync is a full one.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec

from pointsman.model.addresses import LOOPBACK, Cidr, Family, cidr_from_text
from pointsman.model.balancing import BalancingDefaults


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
    cidr = _first_of_family(pod_cidrs if mode == "NodeCIDR" else cluster_cidrs, family)
    if cidr is None or cidr.is_everything:
        return LocalDetector()
    return LocalDetector(LocalMode.CIDR, cidr=cidr)


def _first_of_family(texts: Sequence[str], family: Family) -> Cidr | None:
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
