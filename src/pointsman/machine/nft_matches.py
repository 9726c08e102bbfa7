"""Comparisons in nf_tables rules, and options of iptables matches, as `Match`es with their text. Does no I/O."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pointsman.kernel import nf_tables as nf
from pointsman.machine import packet_filter as pf
from pointsman.machine.packet_filter import BIT_NAMES, Match, PacketField
from pointsman.model.addresses import Cidr, Family, address_text
from pointsman.model.service import Protocol

NAME_LENGTH = 16
"""Of an interface, padded with zeros."""

_NAMES = (PacketField.IN_INTERFACE, PacketField.OUT_INTERFACE)
_XT_STATES = {
    1: pf.INVALID,
    2: pf.ESTABLISHED,
    4: pf.RELATED,
    8: pf.NEW,
    64: pf.STATE_SNAT,
    128: pf.STATE_DNAT,
    256: pf.UNTRACKED,
}
"""States as iptables' -m conntrack numbers them."""
_XT_CONNTRACK_STATE = 1
"""The flag for a comparison of the state, alone."""
_ORDERS = {nf.NFT_CMP_LT: "<", nf.NFT_CMP_LTE: "<=", nf.NFT_CMP_GT: ">", nf.NFT_CMP_GTE: ">="}


class Loaded(NamedTuple):
    """What a register holds."""

    field: PacketField | None
    text: str
    length: int = 0
    mask: bytes = b""


def build_comparison(held: Loaded, operation: int, value: bytes, family: Family) -> Match:
    """Return the match of a register that is compared with a value."""
    negated = operation == nf.NFT_CMP_NEQ
    if held.field in BIT_NAMES and len(value) == 4:
        bits = int.from_bytes(held.mask or value, sys.byteorder)
        if held.mask and any(value):
            return Match(f"{held.text} of some kind")
        # `state & mask != 0` takes the states of the mask; without a mask the state itself is compared.
        return _build_bits_match(held.field, bits, negated=negated != bool(held.mask))
    if operation in (nf.NFT_CMP_EQ, nf.NFT_CMP_NEQ):
        return build_range_match(held, ((value, value),), family, negated=negated)
    if held.mask or held.field in _NAMES:
        return Match(f"{_format_masked(held)} {_ORDERS[operation]} {_format_hex(value)}")
    least, most = bytes(len(value)), b"\xff" * len(value)
    number = int.from_bytes(value, "big")
    ranges = {
        nf.NFT_CMP_LT: (least, max(number - 1, 0).to_bytes(len(value), "big")),
        nf.NFT_CMP_LTE: (least, value),
        nf.NFT_CMP_GT: (min(number + 1, int.from_bytes(most, "big")).to_bytes(len(value), "big"), most),
        nf.NFT_CMP_GTE: (value, most),
    }
    return build_range_match(held, (ranges[operation],), family)


def _build_bits_match(field: PacketField, bits: int, *, negated: bool = False) -> Match:
    values = ",".join(name for bit, name in BIT_NAMES[field].items() if bits & bit) or f"0x{bits:x}"
    return Match(f"{field.value} {'!= ' if negated else ''}{values}", field, bits=bits, negated=negated)


def build_range_match(
    held: Loaded, ranges: Sequence[tuple[bytes, bytes]], family: Family, *, negated: bool = False
) -> Match:
    """Return the match of a value in one of the ranges; a short bound covers every value that begins with it."""
    field = held.field
    if field is None:
        return Match(f"{_format_masked(held)} {'!= ' if negated else ''}{_format_hex(ranges[0][0])}")
    if field in BIT_NAMES:
        bits = 0
        for low, _ in ranges:
            bits |= int.from_bytes(low, sys.byteorder)
        return _build_bits_match(field, bits, negated=negated)
    full = find_value_length(field, family)
    prefix = _find_prefix(held.mask) if held.mask else full * 8
    if prefix is None:
        return Match(f"{held.text} masked", None, negated=negated)
    if field in _NAMES:
        ranges = [(low, high.ljust(full, b"\0") if b"\0" in high else high) for low, high in ranges]
    widened = tuple((low.ljust(full, b"\0"), _compute_last(high, prefix, full)) for low, high in ranges)
    values = ", ".join(_format_range(field, low, high) for low, high in widened)
    text = f"{held.text} {'!= ' if negated else ''}{values if len(widened) == 1 else '{ ' + values + ' }'}"
    # The names of the other fields show the family, so its text is left out.
    return Match("" if field is PacketField.FAMILY else text, field, widened, negated=negated)


def _format_masked(held: Loaded) -> str:
    return f"{held.text} & {_format_hex(held.mask)}" if held.mask else held.text


def _format_hex(value: bytes) -> str:
    return hex(int.from_bytes(value, sys.byteorder))


def find_value_length(field: PacketField, family: Family) -> int:
    """Return the bytes of a whole value of the field."""
    if field in (PacketField.SOURCE, PacketField.DESTINATION):
        return family.address_length
    if field in _NAMES:
        return NAME_LENGTH
    return 2 if field in (PacketField.SOURCE_PORT, PacketField.DESTINATION_PORT) else 1


def _find_prefix(mask: bytes) -> int | None:
    number, bits = int.from_bytes(mask, "big"), len(mask) * 8
    ones = number.bit_count()
    return ones if number == ((1 << ones) - 1) << (bits - ones) else None


def _compute_last(high: bytes, prefix: int, full: int) -> bytes:
    padded = high.ljust(full, b"\xff")
    host = full * 8 - prefix
    return (int.from_bytes(padded, "big") | ((1 << host) - 1)).to_bytes(full, "big") if host > 0 else padded


def _format_range(field: PacketField, low: bytes, high: bytes) -> str:
    if field in (PacketField.SOURCE, PacketField.DESTINATION):
        span = int.from_bytes(low, "big") ^ int.from_bytes(high, "big")
        if low == high:
            return address_text(low)
        if span & (span + 1) == 0:
            return str(Cidr(low, len(low) * 8 - span.bit_length()))
        return f"{address_text(low)}-{address_text(high)}"
    if field in _NAMES:
        name = low.rstrip(b"\0").decode(errors="replace")
        return name if low == high else f"{name}*"
    first, last = int.from_bytes(low, "big"), int.from_bytes(high, "big")
    if field is PacketField.PROTOCOL:
        names = {protocol.value: protocol.name.lower() for protocol in Protocol}
        return names.get(first, str(first))
    return str(first) if first == last else f"{first}-{last}"


def parse_port_match(name: str, info: bytes) -> Iterator[Match]:
    """Yield the matches of iptables -m tcp or -m udp: ranges of source and destination ports, in host byte order."""
    if len(info) < 9:
        yield Match(f"-m {name}")
        return
    from_source, to_source, first, last = struct.unpack_from("=4H", info)
    inverted = info[11] if name == "tcp" and len(info) > 11 else info[8]
    has_flags = name == "tcp" and (info[8] or info[9])
    for field, low, high, bit in (
        (PacketField.SOURCE_PORT, from_source, to_source, 1),
        (PacketField.DESTINATION_PORT, first, last, 2),
    ):
        if (low, high) != (0, 65535):
            held = Loaded(field, f"{name} {field.value}", 2)
            ports = (struct.pack(">H", low), struct.pack(">H", high))
            yield build_range_match(held, (ports,), Family.IPV4, negated=bool(inverted & bit))
    if has_flags:
        yield Match("-m tcp flags")


def parse_conntrack_match(info: bytes) -> Match | None:
    """Return the match of iptables -m conntrack; None unless it compares the state only."""
    if len(info) < 154:
        return None
    compared, inverted, states = struct.unpack_from("=3H", info, 146)
    if compared != _XT_CONNTRACK_STATE:
        return None
    bits = sum(bit for number, bit in _XT_STATES.items() if states & number)
    return _build_bits_match(PacketField.CT_STATE, bits, negated=bool(inverted & 1))
