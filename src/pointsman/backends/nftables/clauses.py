"""The pieces of rules: each is written once and knows both its nft spelling and its netlink encoding.

A rule is a sequence of clauses, so text and kernel encoding cannot drift apart. Registers are numbered in 32-bit
words from 8 (NFT_REG32_00), which is where the 16-byte register 1 starts.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from pointsman.backends.nftables.terms import Field, Terms, field_length
from pointsman.kernel.attributes import attribute, nested, text, u8, u32be, u64be
from pointsman.model.addresses import Cidr, address_text
from pointsman.model.service import Protocol

_FIRST_REGISTER = 8
_VERDICT_REGISTER = 0
_NETWORK_HEADER = 1
_TRANSPORT_HEADER = 2
_META_MARK = 3
_META_IIFNAME = 6
_META_L4PROTO = 16
_CT_STATE = 0
_CT_STATUS = 2
_CT_STATE_NEW = 8
_CT_STATUS_DNAT = 0x20
_FIB_ADDRTYPE = 3
_FIB_SADDR = 1
_FIB_DADDR = 2
_RTN_LOCAL = 2
_EQUAL = 0
_NOT_EQUAL = 1
_NAT_DNAT = 1
_NAT_RANGE = 3
_NAT_RANDOM_FULLY = 0x10
_DYNSET_UPDATE = 1
_INTERFACE_LENGTH = 16

DROP = 0
_JUMP = 0xFFFFFFFD
_GOTO = 0xFFFFFFFC
_VERDICT_CODE = {"jump": _JUMP, "goto": _GOTO}


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
    return nested(1, text(1, name), nested(2, *attributes))


def _payload(register: int, base: int, offset: int, length: int) -> bytes:
    return _expression("payload", u32be(1, register), u32be(2, base), u32be(3, offset), u32be(4, length))


def _meta(key: int, register: int) -> bytes:
    return _expression("meta", u32be(2, key), u32be(1, register))


def _compare(operation: int, value: bytes, register: int = _FIRST_REGISTER) -> bytes:
    return _expression("cmp", u32be(1, register), u32be(2, operation), nested(3, attribute(1, value)))


def _bitwise(mask: bytes, xor: bytes) -> bytes:
    return _expression(
        "bitwise",
        u32be(1, _FIRST_REGISTER),
        u32be(2, _FIRST_REGISTER),
        u32be(3, len(mask)),
        nested(4, attribute(1, mask)),
        nested(5, attribute(1, xor)),
    )


def _numgen(register: int, modulus: int) -> bytes:
    return _expression("numgen", u32be(1, register), u32be(2, modulus), u32be(3, 1), u32be(4, 0))


def _host(value: int) -> bytes:
    return struct.pack("=I", value)


# --- keys ---------------------------------------------------------------------------------------------------


def key_text(fields: tuple[Field, ...], terms: Terms, size: int = 2) -> str:
    words = {
        Field.SOURCE: f"{terms.keyword} saddr",
        Field.DESTINATION: f"{terms.keyword} daddr",
        Field.PROTOCOL: "meta l4proto",
        Field.PORT: "th dport",
        Field.SLOT: f"numgen random mod {size}",
    }
    return " . ".join(words[field] for field in fields)


def _load_key(fields: tuple[Field, ...], terms: Terms, size: int = 0) -> bytes:
    register = _FIRST_REGISTER
    parts = []
    for field in fields:
        if field is Field.SOURCE:
            parts.append(_payload(register, _NETWORK_HEADER, terms.source_offset, terms.address_length))
        elif field is Field.DESTINATION:
            parts.append(_payload(register, _NETWORK_HEADER, terms.destination_offset, terms.address_length))
        elif field is Field.PROTOCOL:
            parts.append(_meta(_META_L4PROTO, register))
        elif field is Field.PORT:
            parts.append(_payload(register, _TRANSPORT_HEADER, 2, 2))
        else:
            parts.append(_numgen(register, size))
        register += (field_length(field, terms) + 3) // 4
    return b"".join(parts)


def in_set(fields: tuple[Field, ...], name: str, terms: Terms, *, inverted: bool = False) -> Clause:
    lookup = _expression("lookup", text(1, name), u32be(2, _FIRST_REGISTER), u32be(5, int(inverted)))
    sign = "!= " if inverted else ""
    return Clause(f"{key_text(fields, terms)} {sign}@{name}", _load_key(fields, terms) + lookup)


def verdict_from(fields: tuple[Field, ...], name: str, terms: Terms) -> Clause:
    lookup = _expression("lookup", text(1, name), u32be(2, _FIRST_REGISTER), u32be(3, _VERDICT_REGISTER))
    return Clause(f"{key_text(fields, terms)} vmap @{name}", _load_key(fields, terms) + lookup)


def dnat_from(fields: tuple[Field, ...], size: int, name: str, terms: Terms) -> Clause:
    """Pick one of `size` slots at random and go where the map says."""
    lookup = _expression("lookup", text(1, name), u32be(2, _FIRST_REGISTER), u32be(3, _FIRST_REGISTER))
    port_register = _FIRST_REGISTER + terms.address_words
    return Clause(
        f"dnat {terms.keyword} to {key_text(fields, terms, size)} map @{name}",
        _load_key(fields, terms, size) + lookup + _nat(port_register, terms),
    )


def _nat(port_register: int, terms: Terms) -> bytes:
    return _expression(
        "nat",
        u32be(1, _NAT_DNAT),
        u32be(2, terms.nfproto),
        u32be(3, _FIRST_REGISTER),
        u32be(5, port_register),
        u32be(7, _NAT_RANGE),
    )


ALWAYS = Clause("", b"")


# --- matches ------------------------------------------------------------------------------------------------


def _address(cidr: Cidr, offset: int, operation: int) -> bytes:
    whole, rest = divmod(cidr.prefix, 8)
    if not rest:
        load = _payload(_FIRST_REGISTER, _NETWORK_HEADER, offset, whole)
        return load + _compare(operation, cidr.network[:whole])
    bits = len(cidr.network) * 8
    mask = (((1 << cidr.prefix) - 1) << (bits - cidr.prefix)).to_bytes(len(cidr.network), "big")
    load = _payload(_FIRST_REGISTER, _NETWORK_HEADER, offset, len(cidr.network))
    return load + _bitwise(mask, bytes(len(mask))) + _compare(operation, cidr.network)


def _cidr_text(cidr: Cidr) -> str:
    return address_text(cidr.network) if cidr.prefix == len(cidr.network) * 8 else str(cidr)


def source_in(cidr: Cidr, terms: Terms, *, inverted: bool = False) -> Clause:
    sign = "!= " if inverted else ""
    return Clause(
        f"{terms.keyword} saddr {sign}{_cidr_text(cidr)}",
        _address(cidr, terms.source_offset, _NOT_EQUAL if inverted else _EQUAL),
    )


def destination_in(cidr: Cidr, terms: Terms, *, inverted: bool = False) -> Clause:
    sign = "!= " if inverted else ""
    return Clause(
        f"{terms.keyword} daddr {sign}{_cidr_text(cidr)}",
        _address(cidr, terms.destination_offset, _NOT_EQUAL if inverted else _EQUAL),
    )


def arrived_on(interface: str, *, prefix: bool, inverted: bool = False) -> Clause:
    name = interface.encode()
    value = name if prefix else name.ljust(_INTERFACE_LENGTH, b"\0")[:_INTERFACE_LENGTH]
    sign = "!= " if inverted else ""
    return Clause(
        f'iifname {sign}"{interface}{"*" if prefix else ""}"',
        _meta(_META_IIFNAME, _FIRST_REGISTER) + _compare(_NOT_EQUAL if inverted else _EQUAL, value),
    )


def _fib(what: str, flag: int) -> Clause:
    return Clause(
        f"fib {what} type local",
        _expression("fib", u32be(1, _FIRST_REGISTER), u32be(2, _FIB_ADDRTYPE), u32be(3, flag))
        + _compare(_EQUAL, _host(_RTN_LOCAL)),
    )


SOURCE_IS_NODE = _fib("saddr", _FIB_SADDR)
DESTINATION_IS_NODE = _fib("daddr", _FIB_DADDR)


def _conntrack_bit(spelling: str, key: int, bit: int) -> Clause:
    return Clause(
        spelling,
        _expression("ct", u32be(1, _FIRST_REGISTER), u32be(2, key))
        + _bitwise(_host(bit), bytes(4))
        + _compare(_NOT_EQUAL, bytes(4)),
    )


NEW_CONNECTION = _conntrack_bit("ct state new", _CT_STATE, _CT_STATE_NEW)
REDIRECTED = _conntrack_bit("ct status dnat", _CT_STATUS, _CT_STATUS_DNAT)


def protocol_is(protocol: Protocol) -> Clause:
    return Clause(
        f"meta l4proto {protocol.lower}",
        _meta(_META_L4PROTO, _FIRST_REGISTER) + _compare(_EQUAL, bytes((protocol.value,))),
    )


def one_in(size: int) -> Clause:
    """True for one packet out of `size`, at random."""
    return Clause(f"numgen random mod {size} 0", _numgen(_FIRST_REGISTER, size) + _compare(_EQUAL, bytes(4)))


# --- the mark -----------------------------------------------------------------------------------------------

_STORE_MARK = _expression("meta", u32be(2, _META_MARK), u32be(3, _FIRST_REGISTER))
_LOAD_MARK = _meta(_META_MARK, _FIRST_REGISTER)


def set_mark_bit(mark: int) -> Clause:
    return Clause(
        f"meta mark set meta mark | {mark:#010x}",
        _LOAD_MARK + _bitwise(_host(~mark & 0xFFFFFFFF), _host(mark)) + _STORE_MARK,
    )


def mark_bit_is_set(mark: int) -> Clause:
    return Clause(
        f"meta mark & {mark:#010x} != 0x00000000",
        _LOAD_MARK + _bitwise(_host(mark), bytes(4)) + _compare(_NOT_EQUAL, bytes(4)),
    )


def flip_mark_bit(mark: int) -> Clause:
    return Clause(
        f"meta mark set meta mark ^ {mark:#010x}",
        _LOAD_MARK + _bitwise(b"\xff\xff\xff\xff", _host(mark)) + _STORE_MARK,
    )


# --- statements ---------------------------------------------------------------------------------------------


def verdict_data(verb: str, chain: str) -> bytes:
    """The value of a verdict: `goto CHAIN`, `jump CHAIN`, or DROP for an empty chain."""
    if not chain:
        return nested(2, u32be(1, DROP))
    return nested(2, u32be(1, _VERDICT_CODE[verb]), text(2, chain))


def _immediate_verdict(verb: str, chain: str) -> bytes:
    return _expression("immediate", u32be(1, _VERDICT_REGISTER), nested(2, verdict_data(verb, chain)))


def goto(chain: str) -> Clause:
    return Clause(f"goto {chain}", _immediate_verdict("goto", chain), chain)


def jump(chain: str) -> Clause:
    return Clause(f"jump {chain}", _immediate_verdict("jump", chain), chain)


DROP_PACKET = Clause("drop", _immediate_verdict("", ""))
MASQUERADE = Clause("masquerade fully-random", _expression("masq", u32be(1, _NAT_RANDOM_FULLY)))
COUNTER = Clause("counter", _expression("counter"))


def reject(terms: Terms) -> Clause:
    return Clause("reject", _expression("reject", u32be(1, 0), u8(2, terms.reject_default)))


def dnat_to(address: bytes, port: int, terms: Terms) -> Clause:
    spelled = address_text(address) if len(address) == 4 else f"[{address_text(address)}]"
    port_register = _FIRST_REGISTER + terms.address_words
    return Clause(
        f"dnat to {spelled}:{port}",
        _expression("immediate", u32be(1, _FIRST_REGISTER), nested(2, attribute(1, address)))
        + _expression("immediate", u32be(1, port_register), nested(2, attribute(1, port.to_bytes(2, "big"))))
        + _nat(port_register, terms),
    )


def remember_source(name: str, seconds: int, terms: Terms) -> Clause:
    """Put the client into a dynamic set, or prolong its stay there."""
    return Clause(
        f"update @{name} {{ {terms.keyword} saddr timeout {seconds}s }}",
        _load_key((Field.SOURCE,), terms)
        + _expression(
            "dynset",
            text(1, name),
            u32be(3, _DYNSET_UPDATE),
            u32be(4, _FIRST_REGISTER),
            u64be(6, seconds * 1000),
        ),
    )
