"""The fields that keys of sets and maps are made of, and their packed form in the kernel."""

from __future__ import annotations

import enum
import functools
import struct
from collections.abc import Sequence

from pointsman.backends.nftables.family_traits import FamilyTraits

SLOT_LENGTH = 4


class Field(enum.Enum):
    """A part of a key; in the kernel each is padded to a multiple of four bytes."""

    SOURCE = "source address"
    DESTINATION = "destination address"
    PROTOCOL = "protocol"
    PORT = "destination port"
    SOURCE_PORT = "source port"
    SLOT = "slot"


def field_length(field: Field, traits: FamilyTraits) -> int:
    """Significant bytes of a field."""
    if field in (Field.SOURCE, Field.DESTINATION):
        return traits.address_length
    return {Field.PROTOCOL: 1, Field.PORT: 2, Field.SOURCE_PORT: 2, Field.SLOT: SLOT_LENGTH}[field]


def key_length(fields: tuple[Field, ...], traits: FamilyTraits) -> int:
    """Bytes of a whole key as the kernel counts it: single fields unpadded, concatenations padded."""
    if len(fields) == 1:
        return field_length(fields[0], traits)
    return sum((field_length(field, traits) + 3) & ~3 for field in fields)


def pack_port(port: int) -> bytes:
    return port.to_bytes(2, "big") + b"\0\0"


def pack_protocol(protocol: int) -> bytes:
    return bytes((protocol, 0, 0, 0))


def pack_slot_numbers(count: int) -> Sequence[bytes]:
    """The numbers of at least `count` slots, shared by the worker threads of both families: never changed."""
    return _packed_slots(1 << count.bit_length())


@functools.lru_cache
def _packed_slots(count: int) -> tuple[bytes, ...]:
    return tuple(struct.pack("=I", number) for number in range(count))


def unpack_slot_number(packed: bytes) -> int:
    number: int = struct.unpack("=I", packed)[0]
    return number
