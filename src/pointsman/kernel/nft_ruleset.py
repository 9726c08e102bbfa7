"""What the iptables programs do not tell of the tables that they keep in nf_tables: whether anything changed, whether they sleep.

A table with the flag `dormant` is listed like any other, and no packet meets its rules.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Protocol

from pointsman.errors import KernelError
from pointsman.kernel import nf_tables as nf
from pointsman.kernel.attributes import text, text_of, u32be
from pointsman.kernel.nfnl import FAMILY_KEYWORDS, NFPROTO, NftablesSocket, attributes_of, nftables_message
from pointsman.model.addresses import Family


class Ruleset(Protocol):
    """The part of nf_tables in which iptables tables of one family may be."""

    def generation(self) -> int | None:
        """Moves with every change of anybody; None when it is not known."""

    def dormant(self, tables: Sequence[str]) -> list[str]:
        """Which of these tables sleep; raises KernelError."""

    def wake(self, tables: Sequence[str]) -> None:
        """Let packets meet their rules again; raises KernelError."""

    def words(self, table: str) -> str:
        """A table's name for people."""


class LegacyRuleset:
    """Of legacy iptables, whose tables cannot sleep and whose changes are not counted."""

    def generation(self) -> None:
        return None

    def dormant(self, _tables: Sequence[str]) -> list[str]:
        return []

    def wake(self, _tables: Sequence[str]) -> None:
        """There is nothing to wake."""

    def words(self, table: str) -> str:
        return f"table {table}"


class NftRuleset:
    """Of iptables over nf_tables, in the network namespace of each call."""

    def __init__(self, family: Family) -> None:
        self._family = family

    def generation(self) -> int | None:
        with contextlib.suppress(KernelError), contextlib.closing(NftablesSocket()) as socket:
            return socket.generation()
        return None

    def dormant(self, tables: Sequence[str]) -> list[str]:
        with contextlib.closing(NftablesSocket()) as socket:
            return [table for table in tables if self._flags(socket, table) & nf.NFT_TABLE_F_DORMANT]

    def wake(self, tables: Sequence[str]) -> None:
        proto, awake = NFPROTO[self._family], u32be(nf.NFTA_TABLE_FLAGS, 0)
        if tables:
            with contextlib.closing(NftablesSocket()) as socket:
                socket.commit(
                    [
                        nftables_message(
                            nf.NFT_MSG_NEWTABLE, proto, 0, text(nf.NFTA_TABLE_NAME, table) + awake
                        )
                        for table in tables
                    ]
                )

    def words(self, table: str) -> str:
        return f"table {FAMILY_KEYWORDS[NFPROTO[self._family]]} {table}"

    def _flags(self, socket: NftablesSocket, table: str) -> int:
        name = text(nf.NFTA_TABLE_NAME, table)
        answer = socket.get(nf.NFT_MSG_GETTABLE, NFPROTO[self._family], name, f"read table {table}")
        found = {} if answer is None else attributes_of(answer)
        return int.from_bytes(found.get(nf.NFTA_TABLE_FLAGS, b""), "big")


LEGACY = LegacyRuleset()


def list_chain_names(family: Family, table: str) -> list[str]:
    """Return the names of the chains of one table."""
    with contextlib.closing(NftablesSocket()) as socket:
        found = map(attributes_of, socket.dump(nf.NFT_MSG_GETCHAIN, NFPROTO[family], b"", "list chains"))
        return [
            text_of(chain[nf.NFTA_CHAIN_NAME])
            for chain in found
            if text_of(chain.get(nf.NFTA_CHAIN_TABLE, b"")) == table
        ]
