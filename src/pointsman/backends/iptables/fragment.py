"""The rules of one service port as text, ready to be joined."""

from __future__ import annotations

import msgspec


class Fragment(msgspec.Struct, frozen=True, gc=False):
    """The rules of one service port. Text is kept as bytes: a large cluster has hundreds of thousands of lines."""

    declarations: bytes = b""
    """`:CHAIN - [0:0]` lines of its own chains, all in table nat."""
    rules: bytes = b""
    """The rules in them, chain after chain in the same order."""
    nat_services: bytes = b""
    nat_node_ports: bytes = b""
    filter_services: bytes = b""
    filter_external: bytes = b""
    filter_firewall: bytes = b""
    filter_node_ports: bytes = b""
    nat_count: int = 0
    """Rules in table nat, shared chains included."""
    filter_count: int = 0
    endpoints: int = 0

    @property
    def chains(self) -> list[str]:
        return [line[1:].partition(" ")[0] for line in self.declarations.decode().splitlines()]
