"""Groups of all endpoints of an IP family by place, with their ranges, for checks of the host. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from pointsman.model.tracker import PortState

MAX_EXAMPLES = 3
MAX_ADDRESSES = 256


class EndpointGroup(msgspec.Struct):
    """Endpoints in one place; ranges are first and last value."""

    low: bytes = b""
    high: bytes = b""
    ports: tuple[int, int] = (0, 0)
    protocols: tuple[int, int] = (0, 0)
    examples: tuple[str, ...] = ()
    """As `ip:port`."""
    addresses: set[bytes] = msgspec.field(default_factory=set)
    """The first of them."""

    def __bool__(self) -> bool:
        return bool(self.low)

    def add(self, address: bytes, port: int, protocol: int, text: str) -> None:
        if not self.low:
            self.low = self.high = address
            self.ports, self.protocols = (port, port), (protocol, protocol)
        elif address < self.low:
            self.low = address
        elif address > self.high:
            self.high = address
        self.ports = (min(self.ports[0], port), max(self.ports[1], port))
        self.protocols = (min(self.protocols[0], protocol), max(self.protocols[1], protocol))
        if len(self.examples) < MAX_EXAMPLES and text not in self.examples:
            self.examples = (*self.examples, text)
        if len(self.addresses) < MAX_ADDRESSES:
            self.addresses.add(address)


class EndpointGroups(msgspec.Struct):
    """The endpoints of one IP family."""

    own: EndpointGroup = msgspec.field(default_factory=EndpointGroup)
    """At addresses of this node: their packets are not forwarded."""
    local: EndpointGroup = msgspec.field(default_factory=EndpointGroup)
    """Pods on this node."""
    remote: EndpointGroup = msgspec.field(default_factory=EndpointGroup)

    @property
    def forwarded(self) -> tuple[EndpointGroup, ...]:
        """Those whose packets pass through this node."""
        return tuple(group for group in (self.local, self.remote) if group)


def group_endpoints(states: Iterable[PortState], own_addresses: Collection[bytes]) -> EndpointGroups:
    """Return the groups of all endpoints; takes time in proportion to their number."""
    groups = EndpointGroups()
    own = frozenset(own_addresses)
    for state in states:
        protocol = state.port.protocol.value
        for endpoint in state.endpoints:
            if endpoint.address in own:
                group = groups.own
            else:
                group = groups.local if endpoint.local else groups.remote
            group.add(endpoint.address, endpoint.port, protocol, str(endpoint))
    return groups
