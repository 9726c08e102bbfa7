"""What keys of sets and maps are made of, their packed form, and what differs between IPv4 and IPv6: keywords and numbers."""

from __future__ import annotations

import enum
import functools
import struct
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from pointsman.kernel import nf_tables as nf
from pointsman.model.addresses import Family

SLOT_LENGTH = 4


class Field(enum.Enum):
    """A part of a key; in the kernel each is padded to a multiple of four bytes."""

    SOURCE = "source address"
    DESTINATION = "destination address"
    PROTOCOL = "protocol"
    PORT = "destination port"
    SOURCE_PORT = "source port"
    SLOT = "slot"


class FieldTraits(msgspec.Struct, frozen=True, gc=False):
    """How a field is spelled in nft syntax, and numbered in netlink and in what nft stores beside kernel objects."""

    length: int
    """Significant bytes."""
    text: str = ""
    """In rules; the number of a slot is drawn instead."""
    type_name: str = ""
    type_number: int = 0
    base: int = 0
    """Header of the packet that it is read from, with `offset`; 0 where it is in none."""
    offset: int = 0
    expression: tuple[int, ...] = ()
    """For the `typeof` description: kind of the expression and its values."""

    @property
    def registers(self) -> int:
        """How many 32-bit registers it takes."""
        return (self.length + 3) // 4


class FamilyTraits(msgspec.Struct, frozen=True, gc=False):
    """How one IP family is spelled in nft syntax and numbered in netlink."""

    family: Family
    nfproto: int
    keyword: str
    reject_default: int
    """ICMP code of a plain `reject`: port unreachable."""
    loopback: str
    fields: Mapping[Field, FieldTraits]

    @property
    def address_length(self) -> int:
        return self.fields[Field.SOURCE].length

    def find_fields(self, key: Iterable[Field]) -> list[FieldTraits]:
        return [self.fields[field] for field in key]


_PAYLOAD, _META, _NUMGEN = 7, 9, 23
"""Expressions by nft's numbers."""
_NETWORK, _TRANSPORT = nf.NFT_PAYLOAD_NETWORK_HEADER, nf.NFT_PAYLOAD_TRANSPORT_HEADER


def _build_fields(keyword: str, source: FieldTraits, destination: FieldTraits) -> dict[Field, FieldTraits]:
    replace = msgspec.structs.replace
    return {
        Field.SOURCE: replace(source, text=f"{keyword} saddr"),
        Field.DESTINATION: replace(destination, text=f"{keyword} daddr"),
        Field.PROTOCOL: FieldTraits(1, "meta l4proto", "inet_proto", 12, expression=(_META, 16)),
        Field.PORT: FieldTraits(2, "th dport", "inet_service", 13, _TRANSPORT, 2, (_PAYLOAD, 11, 2)),
        Field.SOURCE_PORT: FieldTraits(2, "th sport", base=_TRANSPORT),
        Field.SLOT: FieldTraits(SLOT_LENGTH, type_number=4, expression=(_NUMGEN, 1, 2, 0)),
    }


_IPV4 = FamilyTraits(
    Family.IPV4,
    nf.NFPROTO_IPV4,
    keyword="ip",
    reject_default=3,
    loopback="127.0.0.0/8",
    fields=_build_fields(
        "ip",
        FieldTraits(4, "", "ipv4_addr", 7, _NETWORK, 12),
        FieldTraits(4, "", "ipv4_addr", 7, _NETWORK, 16, (_PAYLOAD, 12, 12)),
    ),
)
_IPV6 = FamilyTraits(
    Family.IPV6,
    nf.NFPROTO_IPV6,
    keyword="ip6",
    reject_default=4,
    loopback="::1/128",
    fields=_build_fields(
        "ip6",
        FieldTraits(16, "", "ipv6_addr", 8, _NETWORK, 8),
        FieldTraits(16, "", "ipv6_addr", 8, _NETWORK, 24, (_PAYLOAD, 13, 9)),
    ),
)


def find_traits(family: Family) -> FamilyTraits:
    return _IPV4 if family is Family.IPV4 else _IPV6


# --- keys ---------------------------------------------------------------------------------------------------


def compute_key_length(key: tuple[Field, ...], traits: FamilyTraits) -> int:
    """Return the bytes of a key as the kernel counts them: single fields unpadded, concatenations padded."""
    if len(key) == 1:
        return traits.fields[key[0]].length
    return sum(4 * field.registers for field in traits.find_fields(key))


def pack_port(port: int) -> bytes:
    return port.to_bytes(2, "big") + b"\0\0"


def pack_protocol(protocol: int) -> bytes:
    return bytes((protocol, 0, 0, 0))


def pack_slot_numbers(count: int) -> Sequence[bytes]:
    """Return the numbers of at least `count` slots, shared by the worker threads of both families: never changed."""
    size = 1 << count.bit_length()
    return _remember_slot_numbers(size) if size <= _MAX_REMEMBERED else _pack_slot_numbers(size)


def _pack_slot_numbers(count: int) -> tuple[bytes, ...]:
    return tuple([struct.pack("=I", number) for number in range(count)])


_remember_slot_numbers = functools.lru_cache(_pack_slot_numbers)
_MAX_REMEMBERED = 4096
"""More would stay in memory for the sake of a few large hash tables."""


def unpack_slot_number(packed: bytes) -> int:
    number: int = struct.unpack("=I", packed)[0]
    return number
