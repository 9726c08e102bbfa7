"""Rules as the kernel lists them: compared with those that were sent, fingerprinted, their counters read."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pointsman.kernel import attributes as nla
from pointsman.kernel import nf_tables as nf

_COUNTER = re.compile(rb"counter\0.{28}", re.DOTALL)
"""The name of a counter expression and the attributes with its two numbers."""

_REGISTERS = {
    "bitwise": (nf.NFTA_BITWISE_SREG, nf.NFTA_BITWISE_DREG),
    "byteorder": (nf.NFTA_BYTEORDER_SREG, nf.NFTA_BYTEORDER_DREG),
    "cmp": (nf.NFTA_CMP_SREG,),
    "ct": (nf.NFTA_CT_DREG,),
    "dynset": (nf.NFTA_DYNSET_SREG_KEY,),
    "fib": (nf.NFTA_FIB_DREG,),
    "hash": (nf.NFTA_HASH_SREG, nf.NFTA_HASH_DREG),
    "immediate": (nf.NFTA_IMMEDIATE_DREG,),
    "lookup": (nf.NFTA_LOOKUP_SREG, nf.NFTA_LOOKUP_DREG),
    "meta": (nf.NFTA_META_SREG, nf.NFTA_META_DREG),
    "nat": (
        nf.NFTA_NAT_REG_ADDR_MIN,
        nf.NFTA_NAT_REG_ADDR_MAX,
        nf.NFTA_NAT_REG_PROTO_MIN,
        nf.NFTA_NAT_REG_PROTO_MAX,
    ),
    "numgen": (nf.NFTA_NG_DREG,),
    "payload": (nf.NFTA_PAYLOAD_DREG,),
}
"""Attributes that name a register, of the expressions that our rules have."""
_VALUES = {
    "bitwise": (nf.NFTA_BITWISE_MASK, nf.NFTA_BITWISE_XOR),
    "cmp": (nf.NFTA_CMP_DATA,),
    "immediate": (nf.NFTA_IMMEDIATE_DATA,),
}
"""Attributes that hold attributes; the kernel lists them without NLA_F_NESTED."""
_NAT_RANGES = (
    (nf.NFTA_NAT_REG_ADDR_MIN, nf.NFTA_NAT_REG_ADDR_MAX),
    (nf.NFTA_NAT_REG_PROTO_MIN, nf.NFTA_NAT_REG_PROTO_MAX),
)
"""Where only the lower end is given, the kernel lists it as the upper end, too."""


def compute_fingerprint(rules: Sequence[bytes]) -> int:
    """Return a hash of the rules without their counters."""
    return hash(tuple([_COUNTER.sub(b"", rule) if b"counter" in rule else rule for rule in rules]))


def parse_packets(expression: bytes | None) -> int:
    if expression is None:
        return 0
    counter = nla.parse_attributes(nla.parse_attributes(expression).get(nf.NFTA_EXPR_DATA, b""))
    return int.from_bytes(counter.get(nf.NFTA_COUNTER_PACKETS, b""), "big")


def read_rule_counter(expressions: bytes) -> int:
    """Return the packets in the counter of a rule, 0 without one."""
    for _, item in nla.iter_attributes(expressions):
        if nla.parse_text(nla.parse_attributes(item).get(nf.NFTA_EXPR_NAME, b"")) == "counter":
            return parse_packets(item)
    return 0


def is_same_rule(sent: bytes, listed: bytes) -> bool:
    """Return whether a listed rule means the same as the one that was sent; the kernel adds defaults and renumbers registers."""
    left, right = ([_canonicalize(item) for _, item in nla.iter_attributes(rule)] for rule in (sent, listed))
    return left == right


def _canonicalize(expression: bytes) -> tuple[str, dict[int, object]]:
    """Return an expression in a canonical form: zero attributes are left out, as one side or the other does."""
    fields = nla.parse_attributes(expression)
    name = nla.parse_text(fields.get(nf.NFTA_EXPR_NAME, b""))
    if name == "counter":
        return name, {}
    data = nla.parse_attributes(fields.get(nf.NFTA_EXPR_DATA, b""))
    found: dict[int, object] = {kind: value for kind, value in data.items() if any(value)}
    for kind in _REGISTERS.get(name, ()):
        if kind in found:
            found[kind] = _parse_register(data[kind])
    for kind in _VALUES.get(name, ()):
        if kind in found:
            found[kind] = _parse_value(data[kind])
    if name == "nat":
        for lower, upper in _NAT_RANGES:
            if found.get(upper) == found.get(lower):
                found.pop(upper, None)
    return name, found


def _parse_register(register: bytes) -> int:
    """Return the number of a register in units of 32 bits; the kernel lists the first of four by the number of the 128-bit register."""
    number = int.from_bytes(register, "big")
    return number if number >= nf.NFT_REG32_00 else nf.NFT_REG32_00 + 4 * (number - 1)


def _parse_value(data: bytes) -> dict[int, object]:
    inner: dict[int, object] = {**nla.parse_attributes(data)}
    verdict = inner.get(nf.NFTA_DATA_VERDICT)
    if isinstance(verdict, bytes):
        inner[nf.NFTA_DATA_VERDICT] = nla.parse_attributes(verdict)
    return inner
