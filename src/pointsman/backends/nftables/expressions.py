"""Rules as the kernel lists them: compared with those we sent, fingerprinted, their counters read."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pointsman.kernel import attributes as nla
from pointsman.kernel import nf_tables as nf

_COUNTER = re.compile(rb"counter\0.{28}", re.DOTALL)
"""The name of a counter expression and the attributes with its two numbers."""


def fingerprint(rules: Sequence[bytes]) -> int:
    """Changes when a rule does; packets that pass counters do not change it."""
    return hash(tuple([_COUNTER.sub(b"", rule) if b"counter" in rule else rule for rule in rules]))


def packets_of(expression: bytes | None) -> int:
    if expression is None:
        return 0
    counter = nla.attributes(nla.attributes(expression).get(nf.NFTA_EXPR_DATA, b""))
    return int.from_bytes(counter.get(nf.NFTA_COUNTER_PACKETS, b""), "big")


def counted_packets(expressions: bytes) -> int:
    """What the counter of a rule says, 0 without one."""
    for _, item in nla.iter_attributes(expressions):
        if nla.text_of(nla.attributes(item).get(nf.NFTA_EXPR_NAME, b"")) == "counter":
            return packets_of(item)
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
