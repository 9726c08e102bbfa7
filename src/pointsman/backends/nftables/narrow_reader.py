"""Reads of the table only what some contents name: chains, rules and sets by name, elements by key, and catch-alls.

Looking at one Service among ten thousand costs no more than among ten.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pointsman.backends.nftables import encode
from pointsman.backends.nftables.contents import Contents
from pointsman.backends.nftables.family_traits import FamilyTraits
from pointsman.backends.nftables.reader import (
    KernelChain,
    KernelElement,
    KernelSet,
    Reader,
    chains_of,
    sets_of,
)
from pointsman.backends.nftables.schema import Data, SetSpec
from pointsman.kernel import nf_tables as nf
from pointsman.kernel.attributes import text
from pointsman.kernel.nfnl import NftablesSocket, attributes_of

_TABLE_NAME = encode.table_name()


class NarrowReader(Reader):
    """A reader to whom the rest of the table does not exist."""

    def __init__(self, socket: NftablesSocket, traits: FamilyTraits, wanted: Contents) -> None:
        super().__init__(socket, traits)
        self._chain_names = [chain.name for chain in wanted.all_chains()]
        self._set_names = [spec.name for spec in wanted.all_sets()]
        self._elements, self._slots = wanted.elements(), wanted.slots()

    def _chains(self) -> dict[str, KernelChain]:
        return chains_of(self._named(nf.NFT_MSG_GETCHAIN, nf.NFTA_CHAIN_NAME, self._chain_names))

    def _sets(self) -> dict[str, KernelSet]:
        return sets_of(self._named(nf.NFT_MSG_GETSET, nf.NFTA_SET_NAME, self._set_names))

    def rules(self) -> dict[str, list[bytes]]:
        return {name: self._rules_of(name) for name in self._chain_names}

    def _rules_of(self, chain: str) -> list[bytes]:
        body = _TABLE_NAME + text(nf.NFTA_RULE_CHAIN, chain)
        listed = self._dump(nf.NFT_MSG_GETRULE, body, f"list rules of {chain}")
        return [found.get(nf.NFTA_RULE_EXPRESSIONS, b"") for found in listed]

    def elements(self, spec: SetSpec) -> dict[bytes, KernelElement]:
        if spec.data is Data.ENDPOINT:
            keys = [key for key, _ in self._slots[spec.name]]
        else:
            keys = [element.key for element, _ in self._elements[spec.name]]
        found = self.look_up([(spec, key) for key in (*keys, b"")])
        return {element.key: element for element in found if element is not None}

    def _named(self, kind: int, attribute: int, names: Iterable[str]) -> Iterator[dict[int, bytes]]:
        bodies = [_TABLE_NAME + text(attribute, name) for name in names]
        for answer in self._socket.get_each(kind, self._traits.nfproto, bodies, "look up chains and sets"):
            if answer is not None:
                yield attributes_of(answer)
