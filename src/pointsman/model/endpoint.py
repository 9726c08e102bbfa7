"""Endpoints as a backend sees them: one packed address and port, its state and its hints."""

from __future__ import annotations

import msgspec

from pointsman.model.addresses import host_port_text

UNSAID_WEIGHT = -1
FULL_SHARE = 100


class Endpoint(msgspec.Struct, frozen=True, gc=False):
    """One endpoint of one service port."""

    address: bytes
    port: int
    ready: bool = True
    serving: bool = True
    terminating: bool = False
    local: bool = False
    """Its nodeName is this node."""
    node: str = ""
    zone: str = ""
    zone_hints: tuple[str, ...] = ()
    node_hints: tuple[str, ...] = ()
    pod: str = ""
    """The pod behind it, where the slice names one; it is in the namespace of the Service."""
    weight: int = UNSAID_WEIGHT
    """Given by its slice."""
    share: int = FULL_SHARE
    """Percent of its weight that counts now."""

    def __str__(self) -> str:
        return host_port_text(self.address, self.port)
