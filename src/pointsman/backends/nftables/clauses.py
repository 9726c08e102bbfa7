"""The pieces of rules: each is written once and knows both its nft spelling and its netlink encoding.

A rule is a sequence of clauses, so text and kernel encoding cannot drift apart. Registers are numbered in 32-bit
words from 8 (NFT_REG32_00), which is where the 16-byte register 1 starts.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from pointsman.backends.nftables.family_traits import FamilyTraits
from pointsman.backends.nftables.key_fields import Field, field_length
from pointsman.kernel import nf_tables as nf
from pointsman.kernel.attributes import attribute, nested, text, u8, u32be, u64be
from pointsman.model.addresses import Cidr, address_text
from pointsman.model.service import Protocol

_CT_STATE_NEW = 8
_CT_STATUS_DNAT = 0x20
_RTN_LOCAL = 2
_NAT_RANGE = 3
_NAT_RANDOM_FULLY = 0x10
_INTERFACE_LENGTH = 16

_FIRST_REGISTER = nf.NFT_REG32_00
_VERDICT_CODE = {"jump": nf.NFT_JUMP & 0xFFFFFFFF, "goto": nf.NFT_GOTO & 0xFFFFFFFF}


class Clause(NamedTuple):
    """One statement or match of a rule."""

    text: str
    encoding: bytes
    target: str = ""
    """The chain it jumps to, if any."""


class Rule(NamedTuple):
    """A rule ready for both outputs."""

    text: str
    expressions: bytes
    comment: str = ""
    targets: tuple[str, ...] = ()


def rule(*clauses: Clause, comment: str = "") -> Rule:
    return Rule(
        " ".join(clause.text for clause in clauses if clause.text),
        b"".join(clause.encoding for clause in clauses),
        comment,
        tuple(clause.target for clause in clauses if clause.target),
    )


def _expression(name: str, *attributes: bytes) -> bytes:
    return nested(nf.NFTA_LIST_ELEM, text(nf.NFTA_EXPR_NAME, name), nested(nf.NFTA_EXPR_DATA, *attributes))


def _value(data: bytes) -> bytes:
    return attribute(nf.NFTA_DATA_VALUE, data)


def _immediate(register: int, data: bytes) -> bytes:
    return _expression(
        "immediate", u32be(nf.NFTA_IMMEDIATE_DREG, register), nested(nf.NFTA_IMMEDIATE_DATA, data)
    )


def _lookup(name: str, result: bytes) -> bytes:
    return _expression(
        "lookup", text(nf.NFTA_LOOKUP_SET, name), u32be(nf.NFTA_LOOKUP_SREG, _FIRST_REGISTER), result
    )


def _payload(register: int, base: int, offset: int, length: int) -> bytes:
    return _expression(
        "payload",
        u32be(nf.NFTA_PAYLOAD_DREG, register),
        u32be(nf.NFTA_PAYLOAD_BASE, base),
        u32be(nf.NFTA_PAYLOAD_OFFSET, offset),
        u32be(nf.NFTA_PAYLOAD_LEN, length),
    )


def _meta(key: int, register: int) -> bytes:
    return _expression("meta", u32be(nf.NFTA_META_KEY, key), u32be(nf.NFTA_META_DREG, register))


def _compare(operation: int, value: bytes, register: int = _FIRST_REGISTER) -> bytes:
    return _expression(
        "cmp",
        u32be(nf.NFTA_CMP_SREG, register),
        u32be(nf.NFTA_CMP_OP, operation),
        nested(nf.NFTA_CMP_DATA, _value(value)),
    )


def _bitwise(mask: bytes, xor: bytes) -> bytes:
    return _expression(
        "bitwise",
        u32be(nf.NFTA_BITWISE_SREG, _FIRST_REGISTER),
        u32be(nf.NFTA_BITWISE_DREG, _FIRST_REGISTER),
        u32be(nf.NFTA_BITWISE_LEN, len(mask)),
        nested(nf.NFTA_BITWISE_MASK, _value(mask)),
        nested(nf.NFTA_BITWISE_XOR, _value(xor)),
    )


def _numgen(register: int, modulus: int) -> bytes:
    return _expression(
        "numgen",
        u32be(nf.NFTA_NG_DREG, register),
        u32be(nf.NFTA_NG_MODULUS, modulus),
        u32be(nf.NFTA_NG_TYPE, nf.NFT_NG_RANDOM),
        u32be(nf.NFTA_NG_OFFSET, 0),
    )


def _host(value: int) -> bytes:
    return struct.pack("=I", value)


# --- keys ---------------------------------------------------------------------------------------------------


def key_text(fields: tuple[Field, ...], traits: FamilyTraits, size: int = 2) -> str:
    words = {
        Field.SOURCE: f"{traits.keyword} saddr",
        Field.DESTINATION: f"{traits.keyword} daddr",
        Field.PROTOCOL: "meta l4proto",
        Field.PORT: "th dport",
        Field.SLOT: f"numgen random mod {size}",
    }
    return " . ".join(words[field] for field in fields)


def _load_key(fields: tuple[Field, ...], traits: FamilyTraits, size: int = 0) -> bytes:
    register = _FIRST_REGISTER
    parts = []
    for field in fields:
        if field is Field.SOURCE:
            parts.append(
                _payload(register, nf.NFT_PAYLOAD_NETWORK_HEADER, traits.source_offset, traits.address_length)
            )
        elif field is Field.DESTINATION:
            parts.append(
                _payload(
                    register, nf.NFT_PAYLOAD_NETWORK_HEADER, traits.destination_offset, traits.address_length
                )
            )
        elif field is Field.PROTOCOL:
            parts.append(_meta(nf.NFT_META_L4PROTO, register))
        elif field is Field.PORT:
            parts.append(_payload(register, nf.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2))
        else:
            parts.append(_numgen(register, size))
        register += (field_length(field, traits) + 3) // 4
    return b"".join(parts)


def in_set(fields: tuple[Field, ...], name: str, traits: FamilyTraits, *, inverted: bool = False) -> Clause:
    lookup = _lookup(name, u32be(nf.NFTA_LOOKUP_FLAGS, nf.NFT_LOOKUP_F_INV if inverted else 0))
    sign = "!= " if inverted else ""
    return Clause(f"{key_text(fields, traits)} {sign}@{name}", _load_key(fields, traits) + lookup)


def verdict_from(fields: tuple[Field, ...], name: str, traits: FamilyTraits) -> Clause:
    lookup = _lookup(name, u32be(nf.NFTA_LOOKUP_DREG, nf.NFT_REG_VERDICT))
    return Clause(f"{key_text(fields, traits)} vmap @{name}", _load_key(fields, traits) + lookup)


def dnat_from(fields: tuple[Field, ...], size: int, name: str, traits: FamilyTraits) -> Clause:
    """Pick one of `size` slots at random and go where the map says."""
    lookup = _lookup(name, u32be(nf.NFTA_LOOKUP_DREG, _FIRST_REGISTER))
    port_register = _FIRST_REGISTER + traits.address_registers
    return Clause(
        f"dnat {traits.keyword} to {key_text(fields, traits, size)} map @{name}",
        _load_key(fields, traits, size) + lookup + _nat(port_register, traits),
    )


def _nat(port_register: int, traits: FamilyTraits) -> bytes:
    return _expression(
        "nat",
        u32be(nf.NFTA_NAT_TYPE, nf.NFT_NAT_DNAT),
        u32be(nf.NFTA_NAT_FAMILY, traits.nfproto),
        u32be(nf.NFTA_NAT_REG_ADDR_MIN, _FIRST_REGISTER),
        u32be(nf.NFTA_NAT_REG_PROTO_MIN, port_register),
        u32be(nf.NFTA_NAT_FLAGS, _NAT_RANGE),
    )


ALWAYS = Clause("", b"")


# --- matches ------------------------------------------------------------------------------------------------


def _address(cidr: Cidr, offset: int, operation: int) -> bytes:
    whole, rest = divmod(cidr.prefix, 8)
    if not rest:
        load = _payload(_FIRST_REGISTER, nf.NFT_PAYLOAD_NETWORK_HEADER, offset, whole)
        return load + _compare(operation, cidr.network[:whole])
    bits = len(cidr.network) * 8
    mask = (((1 << cidr.prefix) - 1) << (bits - cidr.prefix)).to_bytes(len(cidr.network), "big")
    load = _payload(_FIRST_REGISTER, nf.NFT_PAYLOAD_NETWORK_HEADER, offset, len(cidr.network))
    return load + _bitwise(mask, bytes(len(mask))) + _compare(operation, cidr.network)


def _cidr_text(cidr: Cidr) -> str:
    return address_text(cidr.network) if cidr.prefix == len(cidr.network) * 8 else str(cidr)


def source_in(cidr: Cidr, traits: FamilyTraits, *, inverted: bool = False) -> Clause:
    sign = "!= " if inverted else ""
    return Clause(
        f"{traits.keyword} saddr {sign}{_cidr_text(cidr)}",
        _address(cidr, traits.source_offset, nf.NFT_CMP_NEQ if inverted else nf.NFT_CMP_EQ),
    )


def destination_in(cidr: Cidr, traits: FamilyTraits, *, inverted: bool = False) -> Clause:
    sign = "!= " if inverted else ""
    return Clause(
        f"{traits.keyword} daddr {sign}{_cidr_text(cidr)}",
        _address(cidr, traits.destination_offset, nf.NFT_CMP_NEQ if inverted else nf.NFT_CMP_EQ),
    )


def arrived_on(interface: str, *, prefix: bool, inverted: bool = False) -> Clause:
    name = interface.encode()
    value = name if prefix else name.ljust(_INTERFACE_LENGTH, b"\0")[:_INTERFACE_LENGTH]
    sign = "!= " if inverted else ""
    return Clause(
        f'iifname {sign}"{interface}{"*" if prefix else ""}"',
        _meta(nf.NFT_META_IIFNAME, _FIRST_REGISTER)
        + _compare(nf.NFT_CMP_NEQ if inverted else nf.NFT_CMP_EQ, value),
    )


def _fib(what: str, flag: int) -> Clause:
    return Clause(
        f"fib {what} type local",
        _expression(
            "fib",
            u32be(nf.NFTA_FIB_DREG, _FIRST_REGISTER),
            u32be(nf.NFTA_FIB_RESULT, nf.NFT_FIB_RESULT_ADDRTYPE),
            u32be(nf.NFTA_FIB_FLAGS, flag),
        )
        + _compare(nf.NFT_CMP_EQ, _host(_RTN_LOCAL)),
    )


SOURCE_IS_NODE = _fib("saddr", nf.NFTA_FIB_F_SADDR)
DESTINATION_IS_NODE = _fib("daddr", nf.NFTA_FIB_F_DADDR)


def _conntrack_bit(spelling: str, key: int, bit: int) -> Clause:
    return Clause(
        spelling,
        _expression("ct", u32be(nf.NFTA_CT_DREG, _FIRST_REGISTER), u32be(nf.NFTA_CT_KEY, key))
        + _bitwise(_host(bit), bytes(4))
        + _compare(nf.NFT_CMP_NEQ, bytes(4)),
    )


NEW_CONNECTION = _conntrack_bit("ct state new", nf.NFT_CT_STATE, _CT_STATE_NEW)
REDIRECTED = _conntrack_bit("ct status dnat", nf.NFT_CT_STATUS, _CT_STATUS_DNAT)


def protocol_is(protocol: Protocol) -> Clause:
    return Clause(
        f"meta l4proto {protocol.lower}",
        _meta(nf.NFT_META_L4PROTO, _FIRST_REGISTER) + _compare(nf.NFT_CMP_EQ, bytes((protocol.value,))),
    )


def one_in(size: int) -> Clause:
    """True for one packet out of `size`, at random."""
    return Clause(
        f"numgen random mod {size} 0", _numgen(_FIRST_REGISTER, size) + _compare(nf.NFT_CMP_EQ, bytes(4))
    )


# --- the mark -----------------------------------------------------------------------------------------------

_STORE_MARK = _expression(
    "meta", u32be(nf.NFTA_META_KEY, nf.NFT_META_MARK), u32be(nf.NFTA_META_SREG, _FIRST_REGISTER)
)
_LOAD_MARK = _meta(nf.NFT_META_MARK, _FIRST_REGISTER)


def set_mark_bit(mark: int) -> Clause:
    return Clause(
        f"meta mark set meta mark | {mark:#010x}",
        _LOAD_MARK + _bitwise(_host(~mark & 0xFFFFFFFF), _host(mark)) + _STORE_MARK,
    )


def mark_bit_is_set(mark: int) -> Clause:
    return Clause(
        f"meta mark & {mark:#010x} != 0x00000000",
        _LOAD_MARK + _bitwise(_host(mark), bytes(4)) + _compare(nf.NFT_CMP_NEQ, bytes(4)),
    )


def flip_mark_bit(mark: int) -> Clause:
    return Clause(
        f"meta mark set meta mark ^ {mark:#010x}",
        _LOAD_MARK + _bitwise(b"\xff\xff\xff\xff", _host(mark)) + _STORE_MARK,
    )


# --- statements ---------------------------------------------------------------------------------------------


def verdict_data(verb: str, chain: str) -> bytes:
    """The value of a verdict: `goto CHAIN`, `jump CHAIN`, or `drop` for an empty chain."""
    if not chain:
        return nested(nf.NFTA_DATA_VERDICT, u32be(nf.NFTA_VERDICT_CODE, nf.NF_DROP))
    return nested(
        nf.NFTA_DATA_VERDICT,
        u32be(nf.NFTA_VERDICT_CODE, _VERDICT_CODE[verb]),
        text(nf.NFTA_VERDICT_CHAIN, chain),
    )


def _immediate_verdict(verb: str, chain: str) -> bytes:
    return _immediate(nf.NFT_REG_VERDICT, verdict_data(verb, chain))


def goto(chain: str) -> Clause:
    return Clause(f"goto {chain}", _immediate_verdict("goto", chain), chain)


def jump(chain: str) -> Clause:
    return Clause(f"jump {chain}", _immediate_verdict("jump", chain), chain)


DROP_PACKET = Clause("drop", _immediate_verdict("", ""))
MASQUERADE = Clause(
    "masquerade fully-random", _expression("masq", u32be(nf.NFTA_MASQ_FLAGS, _NAT_RANDOM_FULLY))
)
COUNTER = Clause("counter", _expression("counter"))


def reject(traits: FamilyTraits) -> Clause:
    return Clause(
        "reject",
        _expression(
            "reject",
            u32be(nf.NFTA_REJECT_TYPE, nf.NFT_REJECT_ICMP_UNREACH),
            u8(nf.NFTA_REJECT_ICMP_CODE, traits.reject_default),
        ),
    )


def dnat_to(address: bytes, port: int, traits: FamilyTraits) -> Clause:
    spelled = address_text(address) if len(address) == 4 else f"[{address_text(address)}]"
    port_register = _FIRST_REGISTER + traits.address_registers
    return Clause(
        f"dnat to {spelled}:{port}",
        _immediate(_FIRST_REGISTER, _value(address))
        + _immediate(port_register, _value(port.to_bytes(2, "big")))
        + _nat(port_register, traits),
    )


def remember_source(name: str, seconds: int, traits: FamilyTraits) -> Clause:
    """Put the client into a dynamic set, or prolong its stay there."""
    return Clause(
        f"update @{name} {{ {traits.keyword} saddr timeout {seconds}s }}",
        _load_key((Field.SOURCE,), traits)
        + _expression(
            "dynset",
            text(nf.NFTA_DYNSET_SET_NAME, name),
            u32be(nf.NFTA_DYNSET_OP, nf.NFT_DYNSET_OP_UPDATE),
            u32be(nf.NFTA_DYNSET_SREG_KEY, _FIRST_REGISTER),
            u64be(nf.NFTA_DYNSET_TIMEOUT, seconds * 1000),
        ),
    )
