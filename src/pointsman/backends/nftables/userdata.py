"""What nft stores beside kernel objects so that a listing reads like the input: comments and key expressions.

The kernel keeps these bytes without looking at them. Maps whose key holds a random slot can be listed only with
the `typeof` description, because the slot has no type name of its own.
"""

from __future__ import annotations

import struct

from pointsman.backends.nftables.fields import FamilyTraits, Field
from pointsman.backends.nftables.schema import ENDPOINT_FIELDS, Data, SetSpec

_SET_KEY_BYTEORDER = 0
_SET_DATA_BYTEORDER = 1
_SET_KEY_TYPEOF = 3
_SET_DATA_TYPEOF = 4
_SET_COMMENT = 7
_COMMENT = 0
_BIG_ENDIAN = 2

_CONCATENATION = 13

MAX_COMMENT = 120


def make_printable(text: str) -> str:
    """Return a comment that can neither end its quotes nor exceed what nft accepts, whatever an object is called."""
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


def encode_comment(text: str) -> bytes:
    """Return the user data of a table, chain, rule or element: just a comment."""
    return _encode_tlv(_COMMENT, text.encode() + b"\0")


def encode_set_description(spec: SetSpec, traits: FamilyTraits) -> bytes:
    """Return the user data of a set or map, byte for byte what nft writes for the same definition."""
    parts = [_encode_number(_SET_KEY_BYTEORDER, _BIG_ENDIAN if len(spec.key) == 1 else 0)]
    if spec.data is not Data.NOTHING:
        parts.append(_encode_number(_SET_DATA_BYTEORDER, 0))
    if len(spec.key) > 1:
        described = _encode_concatenation(spec.key if spec.typeof else (), traits)
        parts.append(_encode_tlv(_SET_KEY_TYPEOF, described))
    if spec.data is Data.ENDPOINT:
        parts.append(_encode_tlv(_SET_DATA_TYPEOF, _encode_concatenation(ENDPOINT_FIELDS, traits)))
    if spec.comment:
        parts.append(_encode_tlv(_SET_COMMENT, spec.comment.encode() + b"\0"))
    return b"".join(parts)


def _encode_concatenation(fields: tuple[Field, ...], traits: FamilyTraits) -> bytes:
    expressions = [traits.fields[field].expression for field in fields]
    members = b"".join(_encode_tlv(index, _encode_expression(*one)) for index, one in enumerate(expressions))
    return _encode_number(0, _CONCATENATION) + _encode_tlv(1, members)


def _encode_expression(kind: int, *values: int) -> bytes:
    encoded = b"".join(_encode_number(index, value) for index, value in enumerate(values))
    return _encode_number(0, kind) + _encode_tlv(1, encoded)
