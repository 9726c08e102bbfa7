"""The pieces of rules: each is written once, with both its nft spelling and its netlink encoding.

A rule is a sequence of clauses, so text and kernel encoding cannot drift apart.
"""

from __future__ import annotations

from typing import NamedTuple

from pointsman.backends.nftables.fields import FamilyTraits, Field, FieldTraits, compute_key_length
from pointsman.kernel import nf_tables as nf
from pointsman.kernel import nft_wire as w
from pointsman.kernel.attributes import pack_nested, pack_text, pack_u8, pack_u32be, pack_u64be
from pointsman.model.addresses import Cidr, address_text
from pointsman.model.service import Protocol

_CT_STATE_NEW = 8
_CT_STATUS_DNAT = 0x20
_RTN_LOCAL = 2
_NAT_RANGE = 3
_NAT_RANDOM_FULLY = 0x10
_INTERFACE_LENGTH = 16

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


def build_rule(*clauses: Clause, comment: str = "") -> Rule:
    return Rule(
        " ".join(clause.text for clause in clauses if clause.text),
        b"".join(clause.encoding for clause in clauses),
        comment,
        tuple(clause.target for clause in clauses if clause.target),
    )


# --- keys ---------------------------------------------------------------------------------------------------


class Draw(NamedTuple):
    """How a connection draws one of `size` slots: at random, or by a hash of what `hashed` names."""

    size: int
    hashed: tuple[Field, ...] = ()
    seed: int = 0

    def format(self, traits: FamilyTraits) -> str:
        if not self.hashed:
            return f"numgen random mod {self.size}"
        return f"jhash {format_key_fields(self.hashed, traits)} mod {self.size} seed {self.seed:#x}"

    def encode(self, register: int, traits: FamilyTraits) -> bytes:
        if not self.hashed:
            return w.draw_number(register, self.size)
        length = compute_key_length(self.hashed, traits)
        loaded = _load_key(self.hashed, traits, register=register)
        return loaded + w.hash_registers(register, length, self.size, self.seed)


_ANY_DRAW = Draw(2)
"""The placeholder for the slot where a type is described."""


def format_key_fields(key: tuple[Field, ...], traits: FamilyTraits, draw: Draw = _ANY_DRAW) -> str:
    texts = (draw.format(traits) if field is Field.SLOT else traits.fields[field].text for field in key)
    return " . ".join(texts)


def _load_key(
    key: tuple[Field, ...], traits: FamilyTraits, draw: Draw = _ANY_DRAW, register: int = w.FIRST_REGISTER
) -> bytes:
    parts = []
    for field in key:
        of = traits.fields[field]
        if field is Field.SLOT:
            parts.append(draw.encode(register, traits))
        elif of.base:
            parts.append(w.load_payload(register, of.base, of.offset, of.length))
        else:
            parts.append(w.load_meta(nf.NFT_META_L4PROTO, register))
        register += of.registers
    return b"".join(parts)


def match_set(key: tuple[Field, ...], name: str, traits: FamilyTraits, *, inverted: bool = False) -> Clause:
    lookup = w.look_up(name, pack_u32be(nf.NFTA_LOOKUP_FLAGS, nf.NFT_LOOKUP_F_INV if inverted else 0))
    sign = "!= " if inverted else ""
    return Clause(f"{format_key_fields(key, traits)} {sign}@{name}", _load_key(key, traits) + lookup)


def follow_verdict(key: tuple[Field, ...], name: str, traits: FamilyTraits) -> Clause:
    """Look the key up in a verdict map and follow the verdict."""
    lookup = w.look_up(name, pack_u32be(nf.NFTA_LOOKUP_DREG, nf.NFT_REG_VERDICT))
    return Clause(f"{format_key_fields(key, traits)} vmap @{name}", _load_key(key, traits) + lookup)


def redirect_to_slot(key: tuple[Field, ...], draw: Draw, name: str, traits: FamilyTraits) -> Clause:
    """Draw a slot and redirect to the endpoint that the map has for it."""
    lookup = w.look_up(name, pack_u32be(nf.NFTA_LOOKUP_DREG, w.FIRST_REGISTER))
    return Clause(
        f"dnat {traits.keyword} to {format_key_fields(key, traits, draw)} map @{name}",
        _load_key(key, traits, draw) + lookup + _encode_nat(traits),
    )


def redirect_to(address: bytes, port: int, traits: FamilyTraits) -> Clause:
    """Redirect to one endpoint."""
    host = address_text(address) if len(address) == 4 else f"[{address_text(address)}]"
    loaded = w.load_value(w.FIRST_REGISTER, w.pack_value(address))
    loaded += w.load_value(_find_port_register(traits), w.pack_value(port.to_bytes(2, "big")))
    return Clause(f"dnat to {host}:{port}", loaded + _encode_nat(traits))


def _find_port_register(traits: FamilyTraits) -> int:
    return w.FIRST_REGISTER + traits.fields[Field.DESTINATION].registers


def _encode_nat(traits: FamilyTraits) -> bytes:
    return w.pack_expression(
        "nat",
        pack_u32be(nf.NFTA_NAT_TYPE, nf.NFT_NAT_DNAT),
        pack_u32be(nf.NFTA_NAT_FAMILY, traits.nfproto),
        pack_u32be(nf.NFTA_NAT_REG_ADDR_MIN, w.FIRST_REGISTER),
        pack_u32be(nf.NFTA_NAT_REG_PROTO_MIN, _find_port_register(traits)),
        pack_u32be(nf.NFTA_NAT_FLAGS, _NAT_RANGE),
    )


ALWAYS = Clause("", b"")


# --- matches ------------------------------------------------------------------------------------------------


def _match(subject: str, load: bytes, wanted: str, value: bytes, *, inverted: bool = False) -> Clause:
    operation = nf.NFT_CMP_NEQ if inverted else nf.NFT_CMP_EQ
    sign = "!= " if inverted else ""
    return Clause(f"{subject} {sign}{wanted}", load + w.compare(operation, value))


def _match_address(field: FieldTraits, cidr: Cidr, *, inverted: bool) -> Clause:
    whole, rest = divmod(cidr.prefix, 8)
    if not rest:
        wanted = address_text(cidr.network) if whole == field.length else str(cidr)
        load = w.load_payload(w.FIRST_REGISTER, field.base, field.offset, whole)
        return _match(field.text, load, wanted, cidr.network[:whole], inverted=inverted)
    bits = field.length * 8
    mask = (((1 << cidr.prefix) - 1) << (bits - cidr.prefix)).to_bytes(field.length, "big")
    load = w.load_payload(w.FIRST_REGISTER, field.base, field.offset, field.length)
    load += w.apply_mask(mask, bytes(field.length))
    return _match(field.text, load, str(cidr), cidr.network, inverted=inverted)


def match_source(cidr: Cidr, traits: FamilyTraits, *, inverted: bool = False) -> Clause:
    return _match_address(traits.fields[Field.SOURCE], cidr, inverted=inverted)


def match_destination(cidr: Cidr, traits: FamilyTraits, *, inverted: bool = False) -> Clause:
    return _match_address(traits.fields[Field.DESTINATION], cidr, inverted=inverted)


def match_interface(name: str, *, prefix: bool, inverted: bool = False) -> Clause:
    value = name.encode()
    if not prefix:
        value = value.ljust(_INTERFACE_LENGTH, b"\0")[:_INTERFACE_LENGTH]
    load = w.load_meta(nf.NFT_META_IIFNAME, w.FIRST_REGISTER)
    return _match("iifname", load, f'"{name}{"*" if prefix else ""}"', value, inverted=inverted)


def _match_local(what: str, flag: int) -> Clause:
    load = w.pack_expression(
        "fib",
        pack_u32be(nf.NFTA_FIB_DREG, w.FIRST_REGISTER),
        pack_u32be(nf.NFTA_FIB_RESULT, nf.NFT_FIB_RESULT_ADDRTYPE),
        pack_u32be(nf.NFTA_FIB_FLAGS, flag),
    )
    return _match(f"fib {what} type", load, "local", w.pack_host_order(_RTN_LOCAL))


SOURCE_IS_NODE = _match_local("saddr", nf.NFTA_FIB_F_SADDR)
DESTINATION_IS_NODE = _match_local("daddr", nf.NFTA_FIB_F_DADDR)


def _match_conntrack(formatted: str, key: int, bit: int) -> Clause:
    return Clause(
        formatted,
        w.pack_expression(
            "ct", pack_u32be(nf.NFTA_CT_DREG, w.FIRST_REGISTER), pack_u32be(nf.NFTA_CT_KEY, key)
        )
        + w.apply_mask(w.pack_host_order(bit), bytes(4))
        + w.compare(nf.NFT_CMP_NEQ, bytes(4)),
    )


NEW_CONNECTION = _match_conntrack("ct state new", nf.NFT_CT_STATE, _CT_STATE_NEW)
REDIRECTED = _match_conntrack("ct status dnat", nf.NFT_CT_STATUS, _CT_STATUS_DNAT)


def match_protocol(protocol: Protocol) -> Clause:
    load = w.load_meta(nf.NFT_META_L4PROTO, w.FIRST_REGISTER)
    return _match("meta l4proto", load, protocol.lower, bytes((protocol.value,)))


def match_share(size: int, count: int = 1) -> Clause:
    """Match `count` packets out of `size`, at random."""
    drawn = w.draw_number(w.FIRST_REGISTER, size)
    if count == 1:
        return Clause(f"numgen random mod {size} 0", drawn + w.compare(nf.NFT_CMP_EQ, bytes(4)))
    return Clause(
        f"numgen random mod {size} < {count}",
        drawn
        + w.convert_to_network_order(w.FIRST_REGISTER)
        + w.compare(nf.NFT_CMP_LT, count.to_bytes(4, "big")),
    )


# --- the mark -----------------------------------------------------------------------------------------------

_STORE_MARK = w.pack_expression(
    "meta", pack_u32be(nf.NFTA_META_KEY, nf.NFT_META_MARK), pack_u32be(nf.NFTA_META_SREG, w.FIRST_REGISTER)
)
_LOAD_MARK = w.load_meta(nf.NFT_META_MARK, w.FIRST_REGISTER)


def set_mark_bit(mark: int) -> Clause:
    return Clause(
        f"meta mark set meta mark | {mark:#010x}",
        _LOAD_MARK
        + w.apply_mask(w.pack_host_order(~mark & 0xFFFFFFFF), w.pack_host_order(mark))
        + _STORE_MARK,
    )


def match_mark_bit(mark: int) -> Clause:
    return Clause(
        f"meta mark & {mark:#010x} != 0x00000000",
        _LOAD_MARK + w.apply_mask(w.pack_host_order(mark), bytes(4)) + w.compare(nf.NFT_CMP_NEQ, bytes(4)),
    )


def flip_mark_bit(mark: int) -> Clause:
    return Clause(
        f"meta mark set meta mark ^ {mark:#010x}",
        _LOAD_MARK + w.apply_mask(b"\xff\xff\xff\xff", w.pack_host_order(mark)) + _STORE_MARK,
    )


# --- statements ---------------------------------------------------------------------------------------------


def encode_verdict(verb: str, chain: str) -> bytes:
    """Return the value of a verdict: `goto CHAIN`, `jump CHAIN`, or `drop` for an empty chain."""
    if not chain:
        return pack_nested(nf.NFTA_DATA_VERDICT, pack_u32be(nf.NFTA_VERDICT_CODE, nf.NF_DROP))
    return pack_nested(
        nf.NFTA_DATA_VERDICT,
        pack_u32be(nf.NFTA_VERDICT_CODE, _VERDICT_CODE[verb]),
        pack_text(nf.NFTA_VERDICT_CHAIN, chain),
    )


def _set_verdict(verb: str, chain: str) -> bytes:
    return w.load_value(nf.NFT_REG_VERDICT, encode_verdict(verb, chain))


def goto(chain: str) -> Clause:
    return Clause(f"goto {chain}", _set_verdict("goto", chain), chain)


def jump(chain: str) -> Clause:
    return Clause(f"jump {chain}", _set_verdict("jump", chain), chain)


DROP_PACKET = Clause("drop", _set_verdict("", ""))
RETURN = Clause(
    "return",
    w.load_value(
        nf.NFT_REG_VERDICT,
        pack_nested(nf.NFTA_DATA_VERDICT, pack_u32be(nf.NFTA_VERDICT_CODE, nf.NFT_RETURN & 0xFFFFFFFF)),
    ),
)
MASQUERADE = Clause(
    "masquerade fully-random", w.pack_expression("masq", pack_u32be(nf.NFTA_MASQ_FLAGS, _NAT_RANDOM_FULLY))
)
COUNTER = Clause("counter", w.pack_expression("counter"))


def set_flow_timeout(name: str) -> Clause:
    """Give the flow of a first packet the policy of this object."""
    return Clause(
        f'ct timeout set "{name}"',
        w.pack_expression(
            "objref",
            pack_u32be(nf.NFTA_OBJREF_IMM_TYPE, nf.NFT_OBJECT_CT_TIMEOUT),
            pack_text(nf.NFTA_OBJREF_IMM_NAME, name),
        ),
    )


def reject(traits: FamilyTraits) -> Clause:
    return Clause(
        "reject",
        w.pack_expression(
            "reject",
            pack_u32be(nf.NFTA_REJECT_TYPE, nf.NFT_REJECT_ICMP_UNREACH),
            pack_u8(nf.NFTA_REJECT_ICMP_CODE, traits.reject_default),
        ),
    )


_TCP_FLAGS_OFFSET = 13
_FIN, _SYN, _RST, _ACK = 0x01, 0x02, 0x04, 0x10
_RESET = w.pack_expression(
    "reject", pack_u32be(nf.NFTA_REJECT_TYPE, nf.NFT_REJECT_TCP_RST), pack_u8(nf.NFTA_REJECT_ICMP_CODE, 0)
)
_IS_TCP = match_protocol(Protocol.TCP).encoding

RESET = Clause("reject with tcp reset", _IS_TCP + _RESET)
RESET_UNLESS_FIRST = Clause(
    "tcp flags != syn / fin,syn,rst,ack reject with tcp reset",
    _IS_TCP
    + w.load_payload(w.FIRST_REGISTER, nf.NFT_PAYLOAD_TRANSPORT_HEADER, _TCP_FLAGS_OFFSET, 1)
    + w.apply_mask(bytes((_FIN | _SYN | _RST | _ACK,)), bytes(1))
    + w.compare(nf.NFT_CMP_NEQ, bytes((_SYN,)))
    + _RESET,
)
"""Refuses what belongs to a connection that this node does not know; the first packet of a new one passes."""


def remember_source(name: str, seconds: int, traits: FamilyTraits) -> Clause:
    """Put the client into a dynamic set, or prolong its stay there."""
    return Clause(
        f"update @{name} {{ {traits.keyword} saddr timeout {seconds}s }}",
        _load_key((Field.SOURCE,), traits)
        + w.pack_expression(
            "dynset",
            pack_text(nf.NFTA_DYNSET_SET_NAME, name),
            pack_u32be(nf.NFTA_DYNSET_OP, nf.NFT_DYNSET_OP_UPDATE),
            pack_u32be(nf.NFTA_DYNSET_SREG_KEY, w.FIRST_REGISTER),
            pack_u64be(nf.NFTA_DYNSET_TIMEOUT, seconds * 1000),
        ),
    )
