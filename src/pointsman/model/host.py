"""What the host does with packets beside the proxy's own rules, as plain facts of one IP family."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from pointsman.model.addresses import Family
from pointsman.model.packet_filter import FilterChain


class Route(msgspec.Struct, frozen=True):
    """How this node reaches an address."""

    error: str = ""
    """Why it does not; empty when it does."""
    interface: str = ""
    source: bytes = b""
    """The address that the node's own packets to it would have."""
    local: bool = False
    """It is an address of this node."""


class HostFacts(msgspec.Struct, frozen=True):
    """One look at the host."""

    family: Family
    forwarding: bool | None = None
    """None where the kernel does not say."""
    not_forwarding: tuple[str, ...] = ()
    """Interfaces whose incoming packets are not forwarded although forwarding is on."""
    strict_reverse_path: frozenset[str] = frozenset()
    """Interfaces that drop packets from addresses that are not reached through them."""
    interface_addresses: Mapping[bytes, str] = {}
    """The interface that has each of this node's addresses."""
    routes: Mapping[bytes, Route] = {}
    """For the addresses that were asked about."""
    chains: Mapping[tuple[str, str], FilterChain] = {}
    """Base chains of others, and the chains they lead to, by table and name."""
    conntrack_count: int | None = None
    conntrack_max: int | None = None
    conntrack_loose: bool | None = None
    """A TCP connection is tracked from whichever packet is seen first."""
    not_read: tuple[str, ...] = ()
    """What could not be looked at, and why."""
