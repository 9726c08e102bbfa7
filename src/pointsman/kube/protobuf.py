r"""Lists and watches in protobuf: the API server's envelope around messages, and its frames.

Every object comes as the bytes `k8s\0` and a message that names its type and holds the object; a watch is a row of
frames, each with its length in front.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic

import msgspec

from pointsman.kube.decode import (
    MOST_OBJECTS,
    BadObject,
    BadObjects,
    Bookmark,
    BookmarkMeta,
    Identity,
    ListMeta,
    Page,
    StatusObject,
    T,
    Unreadable,
    WatchEvent,
    bad_object,
    refuse_other_kind,
)
from pointsman.kube.messages import READERS
from pointsman.kube.wire import (
    Malformed,
    Reader,
    Remembered,
    integer,
    mapping,
    message,
    name,
    one,
    parts,
    text,
)
from pointsman.model.objects import KubeObject

PROTOBUF = "application/vnd.kubernetes.protobuf"
MAGIC = b"k8s\0"
LONGEST_FRAME = 8 * 1024 * 1024
"""Several times what an API server stores of one object."""
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
    """Any object, reduced to the part that says where to resume"""

    metadata: BookmarkMeta = BookmarkMeta()


class _Identified(msgspec.Struct, frozen=True, gc=False):
    """Any object, reduced to its identity"""

    metadata: Identity = Identity()


_type_meta = Remembered(message(_TypeMeta, kind=name(2))).__getitem__
_event = message(_Event, type=text(1), object=one(2, message(_RawExtension, raw=one(1, bytes))))
_list_meta = message(ListMeta, resource_version=text(2), continue_token=text(3))
_status = message(StatusObject, message=text(3), reason=text(4), code=integer(6))
_with_meta = message(
    _WithMeta, metadata=one(1, message(BookmarkMeta, resource_version=text(6), annotations=mapping(12)))
)
_identified = message(
    _Identified, metadata=one(1, message(Identity, name=text(1), namespace=text(3), resource_version=text(6)))
)


def _decoded(read: Reader[Any], data: bytes) -> Any:
    """The one place where bytes of the server become values; raises Unreadable."""
    try:
        return read(data)
    except (Malformed, UnicodeDecodeError) as error:
        raise Unreadable(str(error)) from error
    except IndexError as error:
        raise Unreadable("it ends in the middle of a number") from error


def _contents(data: bytes) -> memoryview:
    """What the envelope holds; raises Malformed."""
    if not data.startswith(MAGIC):
        raise Malformed("it does not begin with the mark of a Kubernetes object")
    for number, part in parts(memoryview(data)[len(MAGIC) :]):
        if number == _ENVELOPE_CONTENTS:
            return part
    return memoryview(b"")


def _kind_of(data: bytes) -> str:
    """The kind that the envelope names, if it does."""
    try:
        found: _TypeMeta = _decoded(_type_of, data)
    except Unreadable:
        return ""
    return found.kind


def _type_of(data: bytes) -> _TypeMeta:
    for number, part in parts(memoryview(data)[len(MAGIC) :]):
        if number == _ENVELOPE_TYPE:
            return _type_meta(bytes(part))
    return _TypeMeta()


def decode_status(data: bytes) -> StatusObject:
    """The Status in an envelope; an empty one when it cannot be read."""
    try:
        found: StatusObject = _decoded(lambda body: _status(bytes(_contents(body))), data)
    except Unreadable:
        return StatusObject()
    return found


class ProtobufDecoder(Generic[T]):
    """Decodes one kind of object, alone, in pages or in a watch. Implements `pointsman.kube.formats.Decoder`."""

    def __init__(self, kind: type[T]) -> None:
        self._read = READERS[kind]
        self._kind = kind.__name__
        self._usual = b"none yet"
        """How envelopes of this kind begin: it spares looking into each."""

    def page(self, body: bytes) -> Page:
        """Raises Unreadable when the body is no list of this kind."""
        refuse_other_kind(_kind_of(body), f"{self._kind}List")
        page: Page = _decoded(self._page, body)
        return page

    def _page(self, body: bytes) -> Page:
        metadata = ListMeta()
        objects: list[KubeObject] = []
        bad = BadObjects()
        for number, part in parts(_contents(body)):
            if number == _LIST_METADATA:
                metadata = _list_meta(bytes(part))
            elif number == _LIST_ITEMS:
                result = self._object(bytes(part))
                if isinstance(result, BadObject):
                    bad.add(result)
                elif len(objects) < MOST_OBJECTS:
                    objects.append(result)
                else:
                    raise Unreadable(f"it holds more than {MOST_OBJECTS} objects")
        return Page(metadata, objects, bad.found)

    def splitter(self) -> FrameSplitter:
        return FrameSplitter()

    def event(self, frame: bytes) -> WatchEvent:
        """Raises Unreadable for anything that is no watch event of this kind."""
        event: _Event = _decoded(_event, frame)
        if not event.type:
            raise Unreadable("an event has no type")
        envelope = event.object.raw
        if event.type != "ERROR" and not envelope.startswith(self._usual):
            named = _kind_of(envelope)
            refuse_other_kind(named, self._kind)
            if named:
                self._usual = envelope[: envelope.index(named.encode()) + len(named)]
        return WatchEvent(event.type, envelope)

    def bookmark(self, data: bytes | msgspec.Raw) -> Bookmark:
        """Raises Unreadable."""
        found: _WithMeta = _decoded(lambda body: _with_meta(bytes(_contents(body))), bytes(data))
        return Bookmark(found.metadata)

    def object(self, data: bytes | msgspec.Raw) -> T | BadObject:
        try:
            contents = _decoded(lambda body: bytes(_contents(body)), bytes(data))
        except Unreadable as error:
            return bad_object(Identity(), str(error))
        return self._object(contents)

    def _object(self, contents: bytes) -> T | BadObject:
        try:
            result: T = _decoded(self._read, contents)
        except Unreadable as error:
            return bad_object(_identity(contents), str(error))
        if not result.metadata.name:
            return bad_object(_identity(contents), "metadata.name is missing")
        return result


def _identity(contents: bytes) -> Identity:
    try:
        found: _Identified = _decoded(_identified, contents)
    except Unreadable:
        return Identity()
    return found.metadata


class FrameSplitter:
    """Cuts chunks into frames, in time proportional to the bytes; one that is too long raises Unreadable."""

    def __init__(self, longest: int = LONGEST_FRAME) -> None:
        self._longest = longest
        self._parts: list[bytes] = []
        self._held = 0
        self._wanted = _LENGTH_BYTES
        """Bytes to hold before it is worth looking at them."""

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The frames completed by this chunk; what follows the last one is kept for the next."""
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
            if length > self._longest:
                raise Unreadable(f"a frame of the watch is longer than {self._longest >> 20} MiB")
            if body + length > end:
                self._wanted = _LENGTH_BYTES + length
                break
            yield data[body : body + length]
            start = body + length
        self._parts = [data[start:]]
        self._held = end - start
