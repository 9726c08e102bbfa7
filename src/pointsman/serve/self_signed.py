"""A self-signed certificate for a port whose clients do not check who serves it (encryption, no proof of identity).

Written out here because Python's library cannot make certificates and the image has no program for it: a key on the curve
P-256, one ECDSA signature (FIPS 186-5) and one X.509 structure (RFC 5280) in DER.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import time
from typing import Final

_P: Final = 0xFFFFFFFF00000001000000000000000000000000FFFFFFFFFFFFFFFFFFFFFFFF
_N: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_G: Final = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
_SIZE: Final = 32
_VALID_SECONDS: Final = 10 * 365 * 86400
_CLOCK_SKEW_SECONDS: Final = 86400
_MAX_NAME_BYTES: Final = 64
"""Of a common name (RFC 5280, upper bounds)."""

_SEQUENCE, _SET, _INTEGER, _BITS, _OCTETS, _UTF8, _TIME = 0x30, 0x31, 0x02, 0x03, 0x04, 0x0C, 0x17
_EC_PUBLIC_KEY: Final = bytes.fromhex("06072a8648ce3d0201")
_PRIME256V1: Final = bytes.fromhex("06082a8648ce3d030107")
_ECDSA_SHA256: Final = bytes.fromhex("300a06082a8648ce3d040302")
_COMMON_NAME: Final = bytes.fromhex("0603550403")
_SUBJECT_ALT_NAME: Final = bytes.fromhex("0603551d11")

Point = tuple[int, int] | None
"""None is the point at infinity."""


def make_certificate(name: str) -> tuple[bytes, bytes]:
    """Return a new certificate for this host name, and its key, both in PEM."""
    key = secrets.randbelow(_N - 1) + 1
    public = _encode_point(_multiply(key, _G))
    body = _build_body(name, public, time.time())
    signature = _encode_der(_BITS, b"\0", _sign(body, key))
    private = _encode_der(
        _SEQUENCE,
        _encode_integer(1),
        _encode_der(_OCTETS, key.to_bytes(_SIZE, "big")),
        _encode_der(0xA0, _PRIME256V1),
        _encode_der(0xA1, _encode_der(_BITS, b"\0", public)),
    )
    certificate = _encode_der(_SEQUENCE, body, _ECDSA_SHA256, signature)
    return _to_pem("CERTIFICATE", certificate), _to_pem("EC PRIVATE KEY", private)


def _build_body(name: str, public: bytes, now: float) -> bytes:
    common_name = _encode_der(_UTF8, name.encode()[:_MAX_NAME_BYTES])
    subject = _encode_der(_SEQUENCE, _encode_der(_SET, _encode_der(_SEQUENCE, _COMMON_NAME, common_name)))
    names = _encode_der(_SEQUENCE, _encode_der(0x82, name.encode()))
    return _encode_der(
        _SEQUENCE,
        _encode_der(0xA0, _encode_integer(2)),
        _encode_integer(secrets.randbits(127) + 1),
        _ECDSA_SHA256,
        subject,
        _encode_der(_SEQUENCE, _encode_time(now - _CLOCK_SKEW_SECONDS), _encode_time(now + _VALID_SECONDS)),
        subject,
        _encode_der(
            _SEQUENCE, _encode_der(_SEQUENCE, _EC_PUBLIC_KEY, _PRIME256V1), _encode_der(_BITS, b"\0", public)
        ),
        _encode_der(
            0xA3,
            _encode_der(_SEQUENCE, _encode_der(_SEQUENCE, _SUBJECT_ALT_NAME, _encode_der(_OCTETS, names))),
        ),
    )


def _sign(data: bytes, key: int) -> bytes:
    """Return the ECDSA signature over the SHA-256 of `data`."""
    digest = int.from_bytes(hashlib.sha256(data).digest(), "big")
    nonce = secrets.randbelow(_N - 1) + 1
    point = _multiply(nonce, _G)
    assert point is not None
    r = point[0] % _N
    s = pow(nonce, -1, _N) * (digest + r * key) % _N
    return _encode_der(_SEQUENCE, _encode_integer(r), _encode_integer(s))


def _multiply(factor: int, point: Point) -> Point:
    total: Point = None
    while factor:
        if factor & 1:
            total = _add(total, point)
        point = _add(point, point)
        factor >>= 1
    return total


def _add(one: Point, other: Point) -> Point:
    if one is None or other is None:
        return one or other
    (x1, y1), (x2, y2) = one, other
    if x1 == x2 and (y1 + y2) % _P == 0:
        return None
    slope = (
        (3 * x1 * x1 - 3) * pow(2 * y1, -1, _P) if one == other else (y2 - y1) * pow((x2 - x1) % _P, -1, _P)
    ) % _P
    x = (slope * slope - x1 - x2) % _P
    return x, (slope * (x1 - x) - y1) % _P


def _encode_point(point: Point) -> bytes:
    assert point is not None
    return b"\x04" + point[0].to_bytes(_SIZE, "big") + point[1].to_bytes(_SIZE, "big")


def _encode_der(tag: int, *parts: bytes) -> bytes:
    content = b"".join(parts)
    length = len(content)
    if length < 0x80:
        return bytes((tag, length)) + content
    size = length.to_bytes((length.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(size))) + size + content


def _encode_integer(number: int) -> bytes:
    return _encode_der(_INTEGER, number.to_bytes(number.bit_length() // 8 + 1, "big"))


def _encode_time(moment: float) -> bytes:
    return _encode_der(_TIME, time.strftime("%y%m%d%H%M%SZ", time.gmtime(moment)).encode())


def _to_pem(label: str, content: bytes) -> bytes:
    return b"-----BEGIN %s-----\n%s-----END %s-----\n" % (
        label.encode(),
        base64.encodebytes(content),
        label.encode(),
    )
