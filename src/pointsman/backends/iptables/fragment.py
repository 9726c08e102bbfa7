"""The rules of one service port as text, ready to be joined."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from pointsman.backends.netfilter import names
from pointsman.backends.netfilter.names import FILTER, NAT


class SharedChain(NamedTuple):
    """A chain that many service ports write lines into."""

    table: str
    chain: str


NAT_SERVICES = SharedChain(NAT, names.SERVICES)
NAT_NODE_PORTS = SharedChain(NAT, names.NODE_PORTS)
FILTER_SERVICES = SharedChain(FILTER, names.SERVICES)
FILTER_EXTERNAL = SharedChain(FILTER, names.EXTERNAL_SERVICES)
FILTER_FIREWALL = SharedChain(FILTER, names.PROXY_FIREWALL)
FILTER_NODE_PORTS = SharedChain(FILTER, names.NODE_PORTS)

SHARED_CHAINS = (
    NAT_SERVICES,
    NAT_NODE_PORTS,
    FILTER_SERVICES,
    FILTER_EXTERNAL,
    FILTER_FIREWALL,
    FILTER_NODE_PORTS,
)
"""All of them, in the order in which a batch writes those of one table."""

_PLACE = {chain: place for place, chain in enumerate(SHARED_CHAINS)}


class Fragment(msgspec.Struct, frozen=True, gc=False):
    """The rules of one service port. Text is kept as bytes: a large cluster has hundreds of thousands of lines."""

    declarations: bytes = b""
    """`:CHAIN - [0:0]` lines of its own chains, all in table nat."""
    rules: bytes = b""
    """The rules in them, chain after chain in the same order."""
    shared: tuple[bytes, ...] = (b"",) * len(SHARED_CHAINS)
    """Its lines in each of `SHARED_CHAINS`."""
    nat_count: int = 0
    """Rules in table nat, shared chains included."""
    filter_count: int = 0
    endpoints: int = 0

    @property
    def chains(self) -> list[str]:
        return [line[1:].partition(" ")[0] for line in self.declarations.decode().splitlines()]

    def lines_in(self, chain: SharedChain) -> bytes:
        return self.shared[_PLACE[chain]]

    def rules_in(self, table: str) -> bytes:
        """Everything it writes into a table, declarations aside."""
        shared = b"".join(
            [text for text, chain in zip(self.shared, SHARED_CHAINS, strict=True) if chain.table == table]
        )
        return shared + self.rules if table == NAT else shared


def shared_chains(table: str) -> list[SharedChain]:
    return [chain for chain in SHARED_CHAINS if chain.table == table]
