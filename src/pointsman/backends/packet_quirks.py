"""Where modes treat the same packet differently; `explain` knows what they have in common. Pure."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from pointsman.model.node_context import NodePortAddresses
from pointsman.model.plan import FrontendKind
from pointsman.model.service import Protocol


class LoopbackNodePort(msgspec.Struct, frozen=True):
    """A node port at a loopback address, of which a mode says whether it answers."""

    address: bytes
    protocol: Protocol
    where: NodePortAddresses
    allowed: bool
    """The configuration allows it; see `Mode.localhost_node_ports`."""


def _never_on_loopback(_question: LoopbackNodePort) -> str:
    return "this mode does not serve node ports on loopback"


class PacketQuirks(msgspec.Struct, frozen=True, kw_only=True):
    """What is special about a mode; by default nothing."""

    local_falls_back: bool = False
    """Policy Local without local endpoints leads to remote ones instead of nowhere."""
    holds_addresses: bool = False
    """Service addresses are addresses of the node, so its own packets to them have them as their source."""
    rejects_denied_when_empty: bool = False
    """Clients outside the source ranges are rejected, not dropped, while the Service has no endpoints."""
    own_packets_leave: bool = False
    """The node's own packets to an external address without endpoints leave the node instead of being rejected."""
    rejects_other_ports_of: frozenset[FrontendKind] = frozenset()
    """At addresses of these kinds, ports that no Service has are rejected."""
    drops_unallocated: bool = False
    """Packets to addresses of the service range that no Service has are dropped."""
    usual_node_ports: str = ""
    """Where node ports answer when nothing is configured, as text; empty for everywhere."""
    untraceable: str = ""
    """What tracing with nftables does not show of this mode, as text."""
    loopback_denial: Callable[[LoopbackNodePort], str] = _never_on_loopback
    """Why the node port does not answer there; empty when it does."""
