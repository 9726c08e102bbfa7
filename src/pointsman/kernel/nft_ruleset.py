"""Properties of iptables tables that only nf_tables shows: the generation of the rule set, and the flag `dormant`.

A dormant table is listed like any other, but no packet passes through its rules.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from pointsman.errors import KernelError
from pointsman.kernel import nf_tables as nf
from pointsman.kernel.attributes import pack_text, pack_u32be, parse_text
from pointsman.kernel.nfnl import (
    FAMILY_KEYWORDS,
    NFPROTO,
    NftablesSocket,
    build_nftables_message,
    parse_answer,
)
from pointsman.model.addresses import Family


class NftRuleset:
    """The iptables tables of one family in nf_tables, in the network namespace of each call."""

    def __init__(self, family: Family) -> None:
        self._family = family

    def read_generation(self) -> int | None:
        """Return the number that every change of any program increments; None when it cannot be read."""
        with contextlib.suppress(KernelError), NftablesSocket() as socket:
            return socket.read_generation()
        return None

    def find_dormant(self, tables: Sequence[str]) -> list[str]:
        """Return which of these tables are dormant; raises KernelError."""
        with NftablesSocket() as socket:
            return [table for table in tables if self._read_flags(socket, table) & nf.NFT_TABLE_F_DORMANT]

    def activate(self, tables: Sequence[str]) -> None:
        """Clear the flag `dormant`; raises KernelError."""
        proto, no_flags = NFPROTO[self._family], pack_u32be(nf.NFTA_TABLE_FLAGS, 0)
        if tables:
            with NftablesSocket() as socket:
                socket.commit(
                    [
                        build_nftables_message(
                            nf.NFT_MSG_NEWTABLE, proto, 0, pack_text(nf.NFTA_TABLE_NAME, table) + no_flags
                        )
                        for table in tables
                    ]
                )

    def describe(self, table: str) -> str:
        return f"table {FAMILY_KEYWORDS[NFPROTO[self._family]]} {table}"

    def _read_flags(self, socket: NftablesSocket, table: str) -> int:
        name = pack_text(nf.NFTA_TABLE_NAME, table)
        answer = socket.get(nf.NFT_MSG_GETTABLE, NFPROTO[self._family], name, f"read table {table}")
        found = {} if answer is None else parse_answer(answer)
        return int.from_bytes(found.get(nf.NFTA_TABLE_FLAGS, b""), "big")


def list_chain_names(family: Family, table: str) -> list[str]:
    """Return the names of the chains of one table."""
    with NftablesSocket() as socket:
        found = map(parse_answer, socket.dump(nf.NFT_MSG_GETCHAIN, NFPROTO[family], b"", "list chains"))
        return [
            parse_text(chain[nf.NFTA_CHAIN_NAME])
            for chain in found
            if parse_text(chain.get(nf.NFTA_CHAIN_TABLE, b"")) == table
        ]
