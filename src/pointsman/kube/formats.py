"""The formats of an API server, and which of them to request.

A response is decoded by its Content-Type, not by what was requested: a server may support only JSON.
"""

from __future__ import annotations

from typing import Generic

import msgspec

from pointsman.kube.codec import (
    Decoder,
    JsonDecoder,
    StatusObject,
    T,
    Unreadable,
    decode_json_status,
    decode_with,
)
from pointsman.kube.protobuf import MAGIC, PROTOBUF, ProtobufDecoder, decode_protobuf_status

JSON = "application/json"
PREFER_PROTOBUF = f"{PROTOBUF},{JSON}"
"""Value of an Accept header; JSON alone is the other choice."""


class Decoders(Generic[T]):
    """Both decoders of one kind."""

    def __init__(self, kind: type[T]) -> None:
        self._json = JsonDecoder(kind)
        self._protobuf = ProtobufDecoder(kind)

    def for_answer(self, content_type: str) -> Decoder[T]:
        """Return the decoder for the Content-Type header of a response."""
        return self._protobuf if content_type.partition(";")[0].strip() == PROTOBUF else self._json


def accept_header(content_type: str, accept_content_types: str = "") -> str:
    """Return the Accept header for the fields of `clientConnection`: as in client-go, the second wins where set."""
    return PREFER_PROTOBUF if PROTOBUF in (accept_content_types or content_type) else JSON


def decode_status(data: bytes | msgspec.Raw) -> StatusObject:
    """Return the Status in the body of an error or in an ERROR event; an empty one when it cannot be decoded."""
    body = bytes(data)
    try:
        if body.startswith(MAGIC):
            return decode_with(decode_protobuf_status, body)
        return decode_with(decode_json_status, body)
    except Unreadable:
        return StatusObject()
