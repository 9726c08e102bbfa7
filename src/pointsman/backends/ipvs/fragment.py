"""What one service port contributes to the kernel's state in ipvs mode."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from pointsman.kernel.ipset_objects import SetEntry
from pointsman.kernel.ipvs_objects import RealKey, VirtualKey, VirtualServer

SetMember = tuple[str, SetEntry]
"""Set name and entry."""

WEIGHT = 1
"""Of a real server whose Service does not say; one that is to go has 0."""


class Fragment(msgspec.Struct, frozen=True, gc=False):
    """Everything in the kernel that exists because of one service port."""

    servers: tuple[tuple[VirtualServer, Mapping[RealKey, int]], ...] = ()
    """Virtual servers, each with its real servers and their weights."""
    entries: tuple[SetMember, ...] = ()
    addresses: tuple[bytes, ...] = ()
    """To be bound to the dummy device."""
    hidden: tuple[VirtualKey, ...] = ()
    """Load balancer addresses that this node itself may not use: it is outside their source ranges."""
    may_drain: frozenset[RealKey] | None = None
    """The only real servers that may wait for the end of their connections; None for all."""
    note: str = ""
    """What an operator should know about it."""
