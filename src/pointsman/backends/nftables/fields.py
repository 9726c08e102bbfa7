"""What keys of sets and maps are made of, their packed form, and what differs between IPv4 and IPv6: keywords and numbers."""

from __future__ import annotations

import enum
import functools
import struct
from collections.abc import Sequence

import msgspec

from pointsman.kernel import nf_tables
from pointsman.model.addresses import Family


class FamilyTraits(msgspec.Struct, frozen=True, gc=False):
    """How one IP family is spelled in nft syntax and numbered in netlink."""

    family: Family
    nfproto: int
    keyword: str
    address_type: str
    address_length: int
    source_offset: int
    destination_offset: int
    network_id: int
    """nft's number of the header description, for typeof."""
    destination_id: int
    """nft's number of the destination address field, for typeof."""
    address_datatype: int
    reject_default: int
    """ICMP code of a plain `reject`: port unreachable."""
    loopback: str

    @property
    def address_registers(self) -> int:
        """How many 32-bit registers an address takes."""
        return self.address_length // 4


_IPV4 = FamilyTraits(
    Family.IPV4,
    nfproto=nf_tables.NFPROTO_IPV4,
    keyword="ip",
    address_type="ipv4_addr",
    address_length=4,
    source_offset=12,
    destination_offset=16,
    network_id=12,
    destination_id=12,
    address_datatype=7,
    reject_default=3,
    loopback="127.0.0.0/8",
)
_IPV6 = FamilyTraits(
    Family.IPV6,
    nfproto=nf_tables.NFPROTO_IPV6,
    keyword="ip6",
    address_type="ipv6_addr",
    address_length=16,
    source_offset=8,
    destination_offset=24,
    network_id=13,
    destination_id=9,
    address_datatype=8,
    reject_default=4,
    loopback="::1/128",
)


def find_traits(family: Family) -> FamilyTraits:
    return _IPV4 if family is Family.IPV4 else _IPV6


# --- keys ---------------------------------------------------------------------------------------------------

SLOT_LENGTH = 4


class Field(enum.Enum):
    """A part of a key; in the kernel each is padded to a multiple of four bytes."""

    SOURCE = "source address"
    DESTINATION = "destination address"
    PROTOCOL = "protocol"
    PORT = "destination port"
    SOURCE_PORT = "source port"
    SLOT = "slot"


def find_field_length(field: Field, traits: FamilyTraits) -> int:
    """Significant bytes of a field."""
    if field in (Field.SOURCE, Field.DESTINATION):
        return traits.address_length
    return {Field.PROTOCOL: 1, Field.PORT: 2, Field.SOURCE_PORT: 2, Field.SLOT: SLOT_LENGTH}[field]


def key_length(fields: tuple[Field, ...], traits: FamilyTraits) -> int:
    """Bytes of a whole key as the kernel counts it: single fields unpadded, concatenations padded."""
    if len(fields) == 1:
        return find_field_length(fields[0], traits)
    return sum((find_field_length(field, traits) + 3) & ~3 for field in fields)


def pack_port(port: int) -> bytes:
    return port.to_bytes(2, "big") + b"\0\0"


def pack_protocol(protocol: int) -> bytes:
    return bytes((protocol, 0, 0, 0))


def pack_slot_numbers(count: int) -> Sequence[bytes]:
    """The numbers of at least `count` slots, shared by the worker threads of both families: never changed."""
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
