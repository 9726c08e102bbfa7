"""Netlink attributes: packing and unpacking, without any I/O so that pure code may use it."""

from __future__ import annotations

import struct
from collections.abc import Iterator

NLA_F_NESTED = 0x8000
NLA_TYPE_MASK = 0x3FFF

_ATTRIBUTE = struct.Struct("=HH")
_U32 = struct.Struct("=I")


def pack_attribute(kind: int, data: bytes) -> bytes:
    """Return one attribute, padded to four bytes."""
    length = len(data) + 4
    return _ATTRIBUTE.pack(length, kind) + data + b"\0" * (-length & 3)


def pack_nested(kind: int, *children: bytes) -> bytes:
    """Return an attribute made of attributes."""
    return pack_attribute(kind | NLA_F_NESTED, b"".join(children))


def pack_u8(kind: int, value: int) -> bytes:
    return pack_attribute(kind, bytes((value,)))


def pack_u16(kind: int, value: int) -> bytes:
    """Return a number in host byte order."""
    return pack_attribute(kind, struct.pack("=H", value))


def pack_u32(kind: int, value: int) -> bytes:
    """Return a number in host byte order."""
    return pack_attribute(kind, _U32.pack(value))


def pack_u16be(kind: int, value: int) -> bytes:
    return pack_attribute(kind, struct.pack(">H", value))


def pack_u32be(kind: int, value: int) -> bytes:
    return pack_attribute(kind, struct.pack(">I", value))


def pack_u64be(kind: int, value: int) -> bytes:
    return pack_attribute(kind, struct.pack(">Q", value))


def pack_text(kind: int, value: str) -> bytes:
    """Return a zero-terminated string."""
    return pack_attribute(kind, value.encode() + b"\0")


def iter_attributes(data: bytes, offset: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield every attribute in order, flags stripped from its type; stops at the first malformed one."""
    end = len(data)
    while offset + 4 <= end:
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if length < 4 or offset + length > end:
            return
        yield kind & NLA_TYPE_MASK, data[offset + 4 : offset + length]
        offset += (length + 3) & ~3


def parse_attributes(data: bytes, offset: int = 0) -> dict[int, bytes]:
    """Return the attributes by type; of a repeated type the last one.

    The same walk as `iter_attributes`, which costs twice as much for the few attributes most answers have.
    """
    found: dict[int, bytes] = {}
    end, unpack = len(data), _ATTRIBUTE.unpack_from
    while offset + 4 <= end:
        length, kind = unpack(data, offset)
        if length < 4 or offset + length > end:
            break
        found[kind & NLA_TYPE_MASK] = data[offset + 4 : offset + length]
        offset += (length + 3) & ~3
    return found


def parse_number(data: bytes | None) -> int:
    """Return a number in network byte order; 0 for an attribute that is missing."""
    return int.from_bytes(data, "big") if data else 0


def parse_text(data: bytes) -> str:
    return data.rstrip(b"\0").decode(errors="replace")
