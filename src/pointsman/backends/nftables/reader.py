"""What the kernel holds: the table, its chains, rules, sets and elements, read over netlink."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from pointsman.backends.nftables import encode
from pointsman.backends.nftables.schema import Data, SetSpec
from pointsman.backends.nftables.terms import TABLE, Terms
from pointsman.kernel import attributes as nla
from pointsman.kernel.nfnl import NftablesSocket

_TABLE_ATTRIBUTE = nla.text(1, TABLE)


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

    handle: int
    elements: int | None
    """How many; None where the kernel does not say (before 6.16)."""


class KernelChain(NamedTuple):
    """A chain, without its rules."""

    handle: int
    uses: int
    """Rules inside plus references from rules and verdict maps."""
    hooked: bool


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

    def __init__(self, socket: NftablesSocket, terms: Terms) -> None:
        self._socket = socket
        self._terms = terms

    def table_handle(self) -> tuple[int, str] | None:
        """Handle and comment of the table, None when there is none."""
        answer = self._socket.get(
            encode.GET_TABLE, self._terms.nfproto, _TABLE_ATTRIBUTE, f"read table {TABLE}"
        )
        if answer is None:
            return None
        found = nla.attributes(answer.payload, 4)
        return _number(found.get(4)), _comment(found.get(6, b""))

    def table(self) -> KernelTable | None:
        """The inventory, or None when there is no such table."""
        head = self.table_handle()
        if head is None:
            return None
        return KernelTable(head[0], head[1], self._chains(), self._sets())

    def _dump(self, kind: int, body: bytes, what: str) -> list[dict[int, bytes]]:
        answers = self._socket.dump(kind, self._terms.nfproto, body, what)
        found = (nla.attributes(answer.payload, 4) for answer in answers)
        return [entry for entry in found if nla.text_of(entry.get(1, b"")) == TABLE]

    def _chains(self) -> dict[str, KernelChain]:
        return {
            nla.text_of(found[3]): KernelChain(_number(found.get(2)), _number(found.get(6)), 4 in found)
            for found in self._dump(encode.GET_CHAIN, _TABLE_ATTRIBUTE, "list chains")
        }

    def _sets(self) -> dict[str, KernelSet]:
        return {
            nla.text_of(found[2]): KernelSet(
                _number(found.get(16)), _number(found[20]) if 20 in found else None
            )
            for found in self._dump(encode.GET_SET, _TABLE_ATTRIBUTE, "list sets")
        }

    def rules(self) -> dict[str, list[bytes]]:
        """The encoded expressions of every rule, per chain, in order."""
        rules: dict[str, list[bytes]] = {}
        for found in self._dump(encode.GET_RULE, _TABLE_ATTRIBUTE, "list rules"):
            rules.setdefault(nla.text_of(found[2]), []).append(found.get(4, b""))
        return rules

    def elements(self, spec: SetSpec) -> dict[bytes, KernelElement]:
        """Every element by key."""
        body = _TABLE_ATTRIBUTE + nla.text(2, spec.name)
        elements: dict[bytes, KernelElement] = {}
        for found in self._dump(encode.GET_ELEMENT, body, f"list elements of {spec.name}"):
            for _, item in nla.iter_attributes(found.get(3, b"")):
                parts = nla.attributes(item)
                key = _value(parts[1])
                elements[key] = _element(parts, spec)
        return elements


def _value(data: bytes) -> bytes:
    return nla.attributes(data).get(1, b"")


def _element(parts: dict[int, bytes], spec: SetSpec) -> KernelElement:
    data, chain = b"", None
    if spec.data is Data.VERDICT and 2 in parts:
        verdict = nla.attributes(nla.attributes(parts[2]).get(2, b""))
        chain = nla.text_of(verdict.get(2, b""))
    elif spec.data is Data.ENDPOINT and 2 in parts:
        data = _value(parts[2])
    return KernelElement(_value(parts[10]) if 10 in parts else b"", data, chain, _packets(parts.get(7)))


def _packets(expression: bytes | None) -> int:
    if expression is None:
        return 0
    counter = nla.attributes(nla.attributes(expression).get(2, b""))
    return _number(counter.get(2))


def counted_packets(expressions: bytes) -> int:
    """What the counter of a rule says, 0 without one."""
    for _, item in nla.iter_attributes(expressions):
        if nla.text_of(nla.attributes(item).get(1, b"")) == "counter":
            return _packets(item)
    return 0


def same_expressions(ours: bytes, kernels: bytes) -> bool:
    """Whether a rule in the kernel says what we sent; the kernel adds defaults and renumbers registers."""
    left = [nla.attributes(item) for _, item in nla.iter_attributes(ours)]
    right = [nla.attributes(item) for _, item in nla.iter_attributes(kernels)]
    return len(left) == len(right) and all(
        a.get(1) == b.get(1) and _same_attributes(a.get(2, b""), b.get(2, b""))
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
        return number >= 8 and number % 4 == 0 and number // 4 - 1 == int.from_bytes(kernels, "big")
    # Nested values differ in the flag of their inner headers, which the kernel does not set.
    return len(ours) == len(kernels) and bool(nla.attributes(ours)) and _same_attributes(ours, kernels)
