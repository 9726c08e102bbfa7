"""The two formats in which an API server sends objects, and which of them to ask for.

An answer is read by its Content-Type, not by what was asked for: a server may know only JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

import msgspec

from pointsman.kube import decode, protobuf
from pointsman.kube.decode import BadObject, Bookmark, JsonDecoder, Page, StatusObject, T, WatchEvent
from pointsman.kube.protobuf import PROTOBUF, ProtobufDecoder

JSON = "application/json"
PREFER_PROTOBUF = f"{PROTOBUF},{JSON}"
"""What an Accept header says; JSON alone is the other choice."""

T_co = TypeVar("T_co", covariant=True)


class Splitter(Protocol):
    """Cuts the chunks of a watch into what its events are encoded in."""

    def feed(self, chunk: bytes) -> Iterator[bytes]: ...


class Decoder(Protocol[T_co]):
    """Reads lists and watches of one kind in one format; raises Unreadable for what breaks the protocol."""

    def page(self, body: bytes) -> Page: ...
    def splitter(self) -> Splitter: ...
    def event(self, frame: bytes) -> WatchEvent: ...
    def bookmark(self, data: bytes | msgspec.Raw) -> Bookmark: ...
    def object(self, data: bytes | msgspec.Raw) -> T_co | BadObject: ...


class Decoders(Generic[T]):
    """Both decoders of one kind."""

    def __init__(self, kind: type[T]) -> None:
        self._json = JsonDecoder(kind)
        self._protobuf = ProtobufDecoder(kind)

    def for_answer(self, content_type: str) -> Decoder[T]:
        """By the Content-Type header of an answer."""
        return self._protobuf if content_type.partition(";")[0].strip() == PROTOBUF else self._json


def accept_header(content_type: str, accept_content_types: str = "") -> str:
    """What to ask for by the fields of `clientConnection`: as in client-go, the second decides where it is given."""
    return PREFER_PROTOBUF if PROTOBUF in (accept_content_types or content_type) else JSON


def decode_status(data: bytes | msgspec.Raw) -> StatusObject:
    """The Status in an error's body or an ERROR event; an empty one when it cannot be read."""
    body = bytes(data)
    return protobuf.decode_status(body) if body.startswith(protobuf.MAGIC) else decode.decode_status(body)
