"""What the kernel holds: the table, its chains, rules, sets and elements, read over netlink."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from pointsman.backends.nftables import encode
from pointsman.backends.nftables.family_traits import FamilyTraits
from pointsman.backends.nftables.schema import TABLE, Data, SetSpec
from pointsman.kernel import attributes as nla
from pointsman.kernel import nf_tables as nf
from pointsman.kernel.nfnl import NftablesSocket

_TABLE_NAME = encode.table_name()


class KernelElement(NamedTuple):
    """One element as the kernel stores it."""

    key_end: bytes
    data: bytes
    """Endpoint maps: address and port."""
    chain: str | None
    """Verdict maps: target chain, empty for drop."""
    packets: int


class KernelSet(NamedTuple):
    """A set or map, without its elements."""

    elements: int | None
    """How many; None where the kernel does not say (before 6.16)."""


class KernelChain(NamedTuple):
    """A chain, without its rules."""

    uses: int
    """Rules inside plus references from rules and verdict maps."""


class KernelTable(msgspec.Struct, frozen=True):
    """The table's inventory."""

    handle: int
    comment: str
    chains: dict[str, KernelChain]
    sets: dict[str, KernelSet]


def _number(data: bytes | None) -> int:
    return int.from_bytes(data, "big") if data else 0


def _comment(data: bytes) -> str:
    return nla.text_of(data[2 : 2 + data[1]]) if len(data) > 2 and data[0] == 0 else ""


class Reader:
    """Reads one family's table."""

    def __init__(self, socket: NftablesSocket, traits: FamilyTraits) -> None:
        self._socket = socket
        self._traits = traits

    def table_handle(self) -> tuple[int, str] | None:
        """Handle and comment of the table, None when there is none."""
        answer = self._socket.get(
            nf.NFT_MSG_GETTABLE, self._traits.nfproto, _TABLE_NAME, f"read table {TABLE}"
        )
        if answer is None:
            return None
        found = nla.attributes(answer.payload, 4)
        return _number(found.get(nf.NFTA_TABLE_HANDLE)), _comment(found.get(nf.NFTA_TABLE_USERDATA, b""))

    def table(self) -> KernelTable | None:
        """The inventory, or None when there is no such table."""
        head = self.table_handle()
        if head is None:
            return None
        return KernelTable(head[0], head[1], self._chains(), self._sets())

    def _dump(self, kind: int, body: bytes, what: str) -> list[dict[int, bytes]]:
        answers = self._socket.dump(kind, self._traits.nfproto, body, what)
        found = (nla.attributes(answer.payload, 4) for answer in answers)
        return [entry for entry in found if nla.text_of(entry.get(nf.NFTA_TABLE_NAME, b"")) == TABLE]

    def _chains(self) -> dict[str, KernelChain]:
        return {
            nla.text_of(found[nf.NFTA_CHAIN_NAME]): KernelChain(_number(found.get(nf.NFTA_CHAIN_USE)))
            for found in self._dump(nf.NFT_MSG_GETCHAIN, _TABLE_NAME, "list chains")
        }

    def _sets(self) -> dict[str, KernelSet]:
        return {
            nla.text_of(found[nf.NFTA_SET_NAME]): KernelSet(
                _number(found[nf.NFTA_SET_COUNT]) if nf.NFTA_SET_COUNT in found else None
            )
            for found in self._dump(nf.NFT_MSG_GETSET, _TABLE_NAME, "list sets")
        }

    def rules(self) -> dict[str, list[bytes]]:
        """The encoded expressions of every rule, per chain, in order."""
        rules: dict[str, list[bytes]] = {}
        for found in self._dump(nf.NFT_MSG_GETRULE, _TABLE_NAME, "list rules"):
            name = nla.text_of(found[nf.NFTA_RULE_CHAIN])
            rules.setdefault(name, []).append(found.get(nf.NFTA_RULE_EXPRESSIONS, b""))
        return rules

    def elements(self, spec: SetSpec) -> dict[bytes, KernelElement]:
        """Every element by key."""
        body = encode.element_list(spec.name)
        elements: dict[bytes, KernelElement] = {}
        for found in self._dump(nf.NFT_MSG_GETSETELEM, body, f"list elements of {spec.name}"):
            for _, item in nla.iter_attributes(found.get(nf.NFTA_SET_ELEM_LIST_ELEMENTS, b"")):
                parts = nla.attributes(item)
                key = _value(parts[nf.NFTA_SET_ELEM_KEY])
                elements[key] = _element(parts, spec)
        return elements


def _value(data: bytes) -> bytes:
    return nla.attributes(data).get(nf.NFTA_DATA_VALUE, b"")


def _element(parts: dict[int, bytes], spec: SetSpec) -> KernelElement:
    data, chain = b"", None
    held = parts.get(nf.NFTA_SET_ELEM_DATA)
    if held is not None and spec.data is Data.VERDICT:
        verdict = nla.attributes(nla.attributes(held).get(nf.NFTA_DATA_VERDICT, b""))
        chain = nla.text_of(verdict.get(nf.NFTA_VERDICT_CHAIN, b""))
    elif held is not None and spec.data is Data.ENDPOINT:
        data = _value(held)
    end = parts.get(nf.NFTA_SET_ELEM_KEY_END)
    packets = _packets(parts.get(nf.NFTA_SET_ELEM_EXPR))
    return KernelElement(_value(end) if end is not None else b"", data, chain, packets)


def _packets(expression: bytes | None) -> int:
    if expression is None:
        return 0
    counter = nla.attributes(nla.attributes(expression).get(nf.NFTA_EXPR_DATA, b""))
    return _number(counter.get(nf.NFTA_COUNTER_PACKETS))


def counted_packets(expressions: bytes) -> int:
    """What the counter of a rule says, 0 without one."""
    for _, item in nla.iter_attributes(expressions):
        if nla.text_of(nla.attributes(item).get(nf.NFTA_EXPR_NAME, b"")) == "counter":
            return _packets(item)
    return 0


def same_expressions(ours: bytes, kernels: bytes) -> bool:
    """Whether a rule in the kernel says what we sent; the kernel adds defaults and renumbers registers."""
    left = [nla.attributes(item) for _, item in nla.iter_attributes(ours)]
    right = [nla.attributes(item) for _, item in nla.iter_attributes(kernels)]
    return len(left) == len(right) and all(
        a.get(nf.NFTA_EXPR_NAME) == b.get(nf.NFTA_EXPR_NAME)
        and _same_attributes(a.get(nf.NFTA_EXPR_DATA, b""), b.get(nf.NFTA_EXPR_DATA, b""))
        for a, b in zip(left, right, strict=True)
    )


def _same_attributes(ours: bytes, kernels: bytes) -> bool:
    theirs = nla.attributes(kernels)
    return all(_same_value(value, theirs.get(kind)) for kind, value in nla.iter_attributes(ours))


def _same_value(ours: bytes, kernels: bytes | None) -> bool:
    if kernels is None:
        return not any(ours)
    if ours == kernels:
        return True
    if len(ours) == len(kernels) == 4:
        number = int.from_bytes(ours, "big")
        first = nf.NFT_REG32_00
        return number >= first and number % 4 == 0 and number // 4 - 1 == int.from_bytes(kernels, "big")
    # Nested values differ in the flag of their inner headers, which the kernel does not set.
    return len(ours) == len(kernels) and bool(nla.attributes(ours)) and _same_attributes(ours, kernels)
