"""Expressions of rules as the kernel takes them: the few that rules are made of, one function each.

Registers of 32 bits are numbered from 8 (NFT_REG32_00), which is where the 16-byte register 1 starts.
"""

from __future__ import annotations

import struct

from pointsman.kernel import nf_tables as nf
from pointsman.kernel.attributes import attribute, nested, text, u32be

FIRST_REGISTER = nf.NFT_REG32_00


def expression(name: str, *attributes: bytes) -> bytes:
    return nested(nf.NFTA_LIST_ELEM, text(nf.NFTA_EXPR_NAME, name), nested(nf.NFTA_EXPR_DATA, *attributes))


def plain(data: bytes) -> bytes:
    return attribute(nf.NFTA_DATA_VALUE, data)


def immediate(register: int, data: bytes) -> bytes:
    return expression(
        "immediate", u32be(nf.NFTA_IMMEDIATE_DREG, register), nested(nf.NFTA_IMMEDIATE_DATA, data)
    )


def lookup(name: str, result: bytes) -> bytes:
    return expression(
        "lookup", text(nf.NFTA_LOOKUP_SET, name), u32be(nf.NFTA_LOOKUP_SREG, FIRST_REGISTER), result
    )


def payload(register: int, base: int, offset: int, length: int) -> bytes:
    return expression(
        "payload",
        u32be(nf.NFTA_PAYLOAD_DREG, register),
        u32be(nf.NFTA_PAYLOAD_BASE, base),
        u32be(nf.NFTA_PAYLOAD_OFFSET, offset),
        u32be(nf.NFTA_PAYLOAD_LEN, length),
    )


def meta(key: int, register: int) -> bytes:
    return expression("meta", u32be(nf.NFTA_META_KEY, key), u32be(nf.NFTA_META_DREG, register))


def compare(operation: int, value: bytes, register: int = FIRST_REGISTER) -> bytes:
    return expression(
        "cmp",
        u32be(nf.NFTA_CMP_SREG, register),
        u32be(nf.NFTA_CMP_OP, operation),
        nested(nf.NFTA_CMP_DATA, plain(value)),
    )


def bitwise(mask: bytes, xor: bytes) -> bytes:
    return expression(
        "bitwise",
        u32be(nf.NFTA_BITWISE_SREG, FIRST_REGISTER),
        u32be(nf.NFTA_BITWISE_DREG, FIRST_REGISTER),
        u32be(nf.NFTA_BITWISE_LEN, len(mask)),
        nested(nf.NFTA_BITWISE_MASK, plain(mask)),
        nested(nf.NFTA_BITWISE_XOR, plain(xor)),
    )


def host(value: int) -> bytes:
    return struct.pack("=I", value)


def numgen(register: int, modulus: int) -> bytes:
    """A random number below `modulus`, in the byte order of the machine."""
    return expression(
        "numgen",
        u32be(nf.NFTA_NG_DREG, register),
        u32be(nf.NFTA_NG_MODULUS, modulus),
        u32be(nf.NFTA_NG_TYPE, nf.NFT_NG_RANDOM),
        u32be(nf.NFTA_NG_OFFSET, 0),
    )


def source_hash(register: int, length: int, modulus: int, seed: int) -> bytes:
    """A number below `modulus` made of the `length` bytes in the registers from `register` on, which it replaces."""
    return expression(
        "hash",
        u32be(nf.NFTA_HASH_SREG, register),
        u32be(nf.NFTA_HASH_DREG, register),
        u32be(nf.NFTA_HASH_LEN, length),
        u32be(nf.NFTA_HASH_MODULUS, modulus),
        u32be(nf.NFTA_HASH_SEED, seed),
        u32be(nf.NFTA_HASH_OFFSET, 0),
        u32be(nf.NFTA_HASH_TYPE, nf.NFT_HASH_JENKINS),
    )


def to_network_order(register: int) -> bytes:
    return expression(
        "byteorder",
        u32be(nf.NFTA_BYTEORDER_SREG, register),
        u32be(nf.NFTA_BYTEORDER_DREG, register),
        u32be(nf.NFTA_BYTEORDER_OP, nf.NFT_BYTEORDER_HTON),
        u32be(nf.NFTA_BYTEORDER_LEN, 4),
        u32be(nf.NFTA_BYTEORDER_SIZE, 4),
    )
