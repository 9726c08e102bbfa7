"""Expressions of rules as the kernel takes them: the few that rules are made of, one function each.

Registers of 32 bits are numbered from 8 (NFT_REG32_00), which is where the 16-byte register 1 starts.
"""

from __future__ import annotations

import struct

from pointsman.kernel import nf_tables as nf
from pointsman.kernel.attributes import pack_attribute, pack_nested, pack_text, pack_u32be

FIRST_REGISTER = nf.NFT_REG32_00


def pack_expression(name: str, *attributes: bytes) -> bytes:
    return pack_nested(
        nf.NFTA_LIST_ELEM, pack_text(nf.NFTA_EXPR_NAME, name), pack_nested(nf.NFTA_EXPR_DATA, *attributes)
    )


def pack_value(data: bytes) -> bytes:
    return pack_attribute(nf.NFTA_DATA_VALUE, data)


def load_value(register: int, data: bytes) -> bytes:
    return pack_expression(
        "immediate", pack_u32be(nf.NFTA_IMMEDIATE_DREG, register), pack_nested(nf.NFTA_IMMEDIATE_DATA, data)
    )


def look_up(name: str, result: bytes) -> bytes:
    return pack_expression(
        "lookup", pack_text(nf.NFTA_LOOKUP_SET, name), pack_u32be(nf.NFTA_LOOKUP_SREG, FIRST_REGISTER), result
    )


def load_payload(register: int, base: int, offset: int, length: int) -> bytes:
    return pack_expression(
        "payload",
        pack_u32be(nf.NFTA_PAYLOAD_DREG, register),
        pack_u32be(nf.NFTA_PAYLOAD_BASE, base),
        pack_u32be(nf.NFTA_PAYLOAD_OFFSET, offset),
        pack_u32be(nf.NFTA_PAYLOAD_LEN, length),
    )


def load_meta(key: int, register: int) -> bytes:
    return pack_expression("meta", pack_u32be(nf.NFTA_META_KEY, key), pack_u32be(nf.NFTA_META_DREG, register))


def compare(operation: int, value: bytes, register: int = FIRST_REGISTER) -> bytes:
    return pack_expression(
        "cmp",
        pack_u32be(nf.NFTA_CMP_SREG, register),
        pack_u32be(nf.NFTA_CMP_OP, operation),
        pack_nested(nf.NFTA_CMP_DATA, pack_value(value)),
    )


def apply_mask(mask: bytes, xor: bytes) -> bytes:
    return pack_expression(
        "bitwise",
        pack_u32be(nf.NFTA_BITWISE_SREG, FIRST_REGISTER),
        pack_u32be(nf.NFTA_BITWISE_DREG, FIRST_REGISTER),
        pack_u32be(nf.NFTA_BITWISE_LEN, len(mask)),
        pack_nested(nf.NFTA_BITWISE_MASK, pack_value(mask)),
        pack_nested(nf.NFTA_BITWISE_XOR, pack_value(xor)),
    )


def pack_host_order(value: int) -> bytes:
    return struct.pack("=I", value)


def draw_number(register: int, modulus: int) -> bytes:
    """Load a random number below `modulus`, in the byte order of the machine."""
    return pack_expression(
        "numgen",
        pack_u32be(nf.NFTA_NG_DREG, register),
        pack_u32be(nf.NFTA_NG_MODULUS, modulus),
        pack_u32be(nf.NFTA_NG_TYPE, nf.NFT_NG_RANDOM),
        pack_u32be(nf.NFTA_NG_OFFSET, 0),
    )


def hash_registers(register: int, length: int, modulus: int, seed: int) -> bytes:
    """Replace `length` bytes, from `register` on, by a number below `modulus` that is made of them."""
    return pack_expression(
        "hash",
        pack_u32be(nf.NFTA_HASH_SREG, register),
        pack_u32be(nf.NFTA_HASH_DREG, register),
        pack_u32be(nf.NFTA_HASH_LEN, length),
        pack_u32be(nf.NFTA_HASH_MODULUS, modulus),
        pack_u32be(nf.NFTA_HASH_SEED, seed),
        pack_u32be(nf.NFTA_HASH_OFFSET, 0),
        pack_u32be(nf.NFTA_HASH_TYPE, nf.NFT_HASH_JENKINS),
    )


def convert_to_network_order(register: int) -> bytes:
    return pack_expression(
        "byteorder",
        pack_u32be(nf.NFTA_BYTEORDER_SREG, register),
        pack_u32be(nf.NFTA_BYTEORDER_DREG, register),
        pack_u32be(nf.NFTA_BYTEORDER_OP, nf.NFT_BYTEORDER_HTON),
        pack_u32be(nf.NFTA_BYTEORDER_LEN, 4),
        pack_u32be(nf.NFTA_BYTEORDER_SIZE, 4),
    )
