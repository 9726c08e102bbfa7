"""Groups of all endpoints of an IP family by place, with their ranges, for checks of the host. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from pointsman.model.balancing import BalancingDefaults
from pointsman.model.endpoint import Endpoint
from pointsman.model.planning import resets_gone
from pointsman.model.tracker import PortState

MAX_EXAMPLES = 3
MAX_ADDRESSES = 64


class EndpointGroup(msgspec.Struct):
    """Endpoints in one place; ranges are first and last value."""

    low: bytes = b""
    high: bytes = b""
    ports: tuple[int, int] = (0, 0)
    protocols: tuple[int, int] = (0, 0)
    examples: tuple[str, ...] = ()
    """As `ip:port`."""
    addresses: set[bytes] = msgspec.field(default_factory=set)
    """The first of those that are ready."""

    def __bool__(self) -> bool:
        return bool(self.low)

    def add(self, endpoint: Endpoint, protocol: int) -> None:
        address, port = endpoint.address, endpoint.port
        if not self.low:
            self.low = self.high = address
            self.ports, self.protocols = (port, port), (protocol, protocol)
        elif address < self.low:
            self.low = address
        elif address > self.high:
            self.high = address
        self.ports = (min(self.ports[0], port), max(self.ports[1], port))
        self.protocols = (min(self.protocols[0], protocol), max(self.protocols[1], protocol))
        if len(self.examples) < MAX_EXAMPLES and (text := str(endpoint)) not in self.examples:
            self.examples = (*self.examples, text)
        if endpoint.ready and len(self.addresses) < MAX_ADDRESSES:
            self.addresses.add(address)


class EndpointGroups(msgspec.Struct):
    """The endpoints of one IP family."""

    own: EndpointGroup = msgspec.field(default_factory=EndpointGroup)
    """At addresses of this node: their packets are not forwarded."""
    local: EndpointGroup = msgspec.field(default_factory=EndpointGroup)
    """Pods on this node."""
    remote: EndpointGroup = msgspec.field(default_factory=EndpointGroup)
    resetting: set[str] = msgspec.field(default_factory=set)
    """Services whose connections to removed endpoints are to be reset."""

    @property
    def forwarded(self) -> tuple[EndpointGroup, ...]:
        """Those whose packets pass through this node."""
        return tuple(group for group in (self.local, self.remote) if group)


def group_endpoints(
    states: Iterable[PortState], own_addresses: Collection[bytes], balancing: BalancingDefaults
) -> EndpointGroups:
    """Return the groups of all endpoints; takes time in proportion to their number."""
    groups = EndpointGroups()
    own = frozenset(own_addresses)
    for state in states:
        protocol = state.port.protocol.value
        if resets_gone(state.port, balancing):
            groups.resetting.add(state.port.name.key)
        for endpoint in state.endpoints:
            if endpoint.address in own:
                group = groups.own
            else:
                group = groups.local if endpoint.local else groups.remote
            group.add(endpoint, protocol)
    return groups
