"""What nft stores beside kernel objects so that a listing reads like the input: comments and key expressions.

The kernel keeps these bytes without looking at them. Maps whose key holds a random slot can be listed only with
the `typeof` description, because the slot has no type name of its own.
"""

from __future__ import annotations

import struct

from pointsman.backends.nftables.fields import FamilyTraits, Field

_SET_KEY_BYTEORDER = 0
_SET_DATA_BYTEORDER = 1
_SET_KEY_TYPEOF = 3
_SET_DATA_TYPEOF = 4
_SET_COMMENT = 7
_COMMENT = 0
_BIG_ENDIAN = 2

_EXPRESSION_PAYLOAD = 7
_EXPRESSION_META = 9
_EXPRESSION_CONCAT = 13
_EXPRESSION_NUMGEN = 23
_TRANSPORT_ID = 11
_TRANSPORT_DPORT = 2
_META_L4PROTO = 16
_NUMGEN_RANDOM = 1

MAX_COMMENT = 120


def printable(text: str) -> str:
    """A comment that can neither end its quotes nor exceed what nft accepts, whatever an object is called."""
    if (
        len(text) <= MAX_COMMENT
        and text.isascii()
        and text.isprintable()
        and not ('"' in text or "\\" in text)
    ):
        return text
    clean = "".join(c if " " <= c <= "~" and c not in '"\\' else "?" for c in text[: MAX_COMMENT + 1])
    return clean if len(clean) <= MAX_COMMENT else clean[: MAX_COMMENT - 3] + "..."


def _encode_tlv(kind: int, data: bytes) -> bytes:
    return bytes((kind, len(data))) + data


def _encode_number(kind: int, value: int) -> bytes:
    return _encode_tlv(kind, struct.pack("=I", value))


def comment(text: str) -> bytes:
    """User data of a table, chain, rule or element: just a comment."""
    return _encode_tlv(_COMMENT, text.encode() + b"\0")


def encode_set_description(
    key: tuple[Field, ...],
    data: tuple[Field, ...],
    *,
    is_map: bool,
    typeof: bool,
    text: str,
    traits: FamilyTraits,
) -> bytes:
    """User data of a set or map, byte for byte what nft writes for the same definition."""
    order = _BIG_ENDIAN if len(key) == 1 else 0
    parts = [_encode_number(_SET_KEY_BYTEORDER, order)]
    if is_map:
        parts.append(_encode_number(_SET_DATA_BYTEORDER, 0))
    if len(key) > 1:
        parts.append(_encode_tlv(_SET_KEY_TYPEOF, _encode_concatenation(key if typeof else (), traits)))
    if data:
        parts.append(_encode_tlv(_SET_DATA_TYPEOF, _encode_concatenation(data, traits)))
    if text:
        parts.append(_encode_tlv(_SET_COMMENT, text.encode() + b"\0"))
    return b"".join(parts)


def _encode_concatenation(fields: tuple[Field, ...], traits: FamilyTraits) -> bytes:
    members = b"".join(_encode_tlv(index, _encode_field(field, traits)) for index, field in enumerate(fields))
    return _encode_number(0, _EXPRESSION_CONCAT) + _encode_tlv(1, members)


def _encode_field(field: Field, traits: FamilyTraits) -> bytes:
    if field is Field.DESTINATION:
        return _encode_expression(_EXPRESSION_PAYLOAD, traits.network_id, traits.destination_id)
    if field is Field.PROTOCOL:
        return _encode_expression(_EXPRESSION_META, _META_L4PROTO)
    if field is Field.PORT:
        return _encode_expression(_EXPRESSION_PAYLOAD, _TRANSPORT_ID, _TRANSPORT_DPORT)
    return _encode_expression(_EXPRESSION_NUMGEN, _NUMGEN_RANDOM, 2, 0)


def _encode_expression(kind: int, *values: int) -> bytes:
    return _encode_number(0, kind) + _encode_tlv(
        1, b"".join(_encode_number(index, value) for index, value in enumerate(values))
    )
