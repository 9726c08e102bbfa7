r"""Lists and watches in protobuf: the API server's envelope around messages, and its frames.

Every object comes as the bytes `k8s\0` and a message that names its type and holds the object; a watch is a row of
frames, each with its length in front.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from pointsman.kube.codec import (
    MAX_OBJECT_BYTES,
    Bookmark,
    BookmarkMeta,
    Data,
    Decoder,
    Identity,
    ListMeta,
    RawPage,
    StatusObject,
    T,
    Unreadable,
    WatchEvent,
)
from pointsman.kube.messages import READERS
from pointsman.kube.wire import (
    BoundedCache,
    Malformed,
    Reader,
    integer,
    iter_parts,
    mapping,
    message,
    name,
    one,
    text,
)

PROTOBUF = "application/vnd.kubernetes.protobuf"
MAGIC = b"k8s\0"
_LENGTH_BYTES = 4
_ENVELOPE_TYPE, _ENVELOPE_CONTENTS = 1, 2
_LIST_METADATA, _LIST_ITEMS = 1, 2


class _TypeMeta(msgspec.Struct, frozen=True, gc=False):
    """runtime TypeMeta"""

    kind: str = ""


class _RawExtension(msgspec.Struct, frozen=True, gc=False):
    """runtime RawExtension"""

    raw: bytes = b""


class _Event(msgspec.Struct, frozen=True, gc=False):
    """meta/v1 WatchEvent"""

    type: str = ""
    object: _RawExtension = _RawExtension()


class _WithMeta(msgspec.Struct, frozen=True, gc=False):
    """Any object, reduced to the resourceVersion and the annotations of a bookmark"""

    metadata: BookmarkMeta = BookmarkMeta()


class _Identified(msgspec.Struct, frozen=True, gc=False):
    """Any object, reduced to its identity"""

    metadata: Identity = Identity()


_read_type_meta = BoundedCache(message(_TypeMeta, kind=name(2))).__getitem__
_read_watch_event = message(_Event, type=text(1), object=one(2, message(_RawExtension, raw=one(1, bytes))))
_read_list_meta = message(ListMeta, resource_version=text(2), continue_token=text(3))
_read_status = message(StatusObject, message=text(3), reason=text(4), code=integer(6))
_read_with_meta = message(
    _WithMeta, metadata=one(1, message(BookmarkMeta, resource_version=text(6), annotations=mapping(12)))
)
_read_identified = message(
    _Identified, metadata=one(1, message(Identity, name=text(1), namespace=text(3), resource_version=text(6)))
)


def open_envelope(data: Data) -> bytes:
    """Return what the envelope holds. Raises Malformed."""
    return bytes(_find_contents(bytes(data)))


def _find_contents(data: bytes) -> memoryview:
    if not data.startswith(MAGIC):
        raise Malformed("it does not begin with the mark of a Kubernetes object")
    for number, part in iter_parts(memoryview(data)[len(MAGIC) :]):
        if number == _ENVELOPE_CONTENTS:
            return part
    return memoryview(b"")


def decode_protobuf_status(data: bytes) -> StatusObject:
    """Return the Status in an envelope."""
    return _read_status(open_envelope(data))


class ProtobufDecoder(Decoder[T]):
    """Protobuf: a list is one message, a watch has a frame per event."""

    def __init__(self, kind: type[T]) -> None:
        super().__init__(kind)
        self._read_message: Reader[T] = READERS[kind]

    def make_splitter(self) -> FrameSplitter:
        return FrameSplitter()

    def decode_event(self, frame: bytes) -> WatchEvent:
        event = super().decode_event(frame)
        data = bytes(event.object)
        if event.type != "ERROR" and not data.startswith(self._usual_start) and self.find_kind(data):
            name = self._kind.encode()
            self._usual_start = data[: data.index(name) + len(name)]
        return event

    def _read_page(self, body: bytes) -> RawPage:
        contents = _find_contents(body)
        metadata = next(
            (
                _read_list_meta(bytes(part))
                for number, part in iter_parts(contents)
                if number == _LIST_METADATA
            ),
            None,
        )
        items = (bytes(part) for number, part in iter_parts(contents) if number == _LIST_ITEMS)
        return RawPage(self.find_kind(body), metadata or ListMeta(), items)

    def _read_event(self, frame: bytes) -> WatchEvent:
        event = _read_watch_event(frame)
        if not event.type:
            raise Malformed("an event has no type")
        return WatchEvent(event.type, msgspec.Raw(event.object.raw))

    def _open(self, data: Data) -> Data:
        return open_envelope(data)

    def _read_kind(self, data: Data) -> str:
        for number, part in iter_parts(memoryview(bytes(data))[len(MAGIC) :]):
            if number == _ENVELOPE_TYPE:
                return _read_type_meta(bytes(part)).kind
        return ""

    def _read(self, contents: Data) -> T:
        return self._read_message(contents)

    def _read_identity(self, contents: Data) -> Identity:
        return _read_identified(bytes(contents)).metadata

    def _read_bookmark(self, contents: Data) -> Bookmark:
        return Bookmark(_read_with_meta(bytes(contents)).metadata)


class FrameSplitter:
    """Cuts chunks into frames, in time proportional to the bytes. Raises Unreadable for one that is too long."""

    def __init__(self, max_bytes: int = MAX_OBJECT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []
        self._held = 0
        self._wanted = _LENGTH_BYTES
        """Bytes that must have arrived before the next frame can be complete."""

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the frames completed by this chunk; what follows the last one is kept for the next."""
        self._parts.append(chunk)
        self._held += len(chunk)
        if self._held < self._wanted:
            return
        data = b"".join(self._parts)
        start, end = 0, len(data)
        while True:
            body = start + _LENGTH_BYTES
            if body > end:
                self._wanted = _LENGTH_BYTES
                break
            length = int.from_bytes(data[start:body], "big")
            if length > self._max_bytes:
                raise Unreadable(f"a frame of the watch is longer than {self._max_bytes >> 20} MiB")
            if body + length > end:
                self._wanted = _LENGTH_BYTES + length
                break
            yield data[body : body + length]
            start = body + length
        self._parts = [data[start:]]
        self._held = end - start
