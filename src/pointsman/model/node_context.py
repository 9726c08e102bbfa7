"""What the node and the configuration contribute to the rules, per IP family, as one frozen value.

When it differs from the one of the last sync, that sync is a full one.
"""

from __future__ import annotations

import enum

import msgspec

from pointsman.model.addresses import Cidr, Family
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
    """Tells packets of local pods from others."""

    mode: LocalMode = LocalMode.NONE
    cidr: Cidr | None = None
    interface: str = ""


class NodePortAddresses(msgspec.Struct, frozen=True, gc=False):
    """Where node ports answer: every local address, or exactly `addresses` (already resolved, this family)."""

    match_all: bool = True
    addresses: tuple[bytes, ...] = ()
    loopback: bool = True
    """IPv4 loopback is among the configured ranges (127.0.0.0/8 is covered or everything is)."""
    loopback_asked: bool = False
    """Loopback was asked for by name, as `localhost` or a range inside it (nftables, behind its gate)."""


class NodeContext(msgspec.Struct, frozen=True, gc=False):
    """Node and configuration as the compile steps of one IP family see them."""

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
    """When not empty, external and load-balancer IPs outside these ranges are refused."""
    addresses_in_rules: tuple[bytes, ...] = ()
    """The node's own addresses where rules name each of them (ipvs); empty elsewhere, as a new one changes no rule."""
    balancing: BalancingDefaults = BalancingDefaults()

    @property
    def masquerade_mark(self) -> int:
        return 1 << self.masquerade_bit
