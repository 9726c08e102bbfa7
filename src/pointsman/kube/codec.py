"""Decoding of lists and watches: what every format has in common, and JSON. `kube/protobuf.py` is the other format.

The items of a page are decoded one at a time, when they are needed: a page takes hardly more memory than its bytes, and one
object that does not fit its type is left out by name.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec

from pointsman.errors import KubeError
from pointsman.model.objects import EndpointSlice, KubeObject

T = TypeVar("T", bound=KubeObject)
Data = bytes | msgspec.Raw

MAX_OBJECT_BYTES = 3 * 1024 * 1024
"""More than an API server takes in one request. Decoded, an object can take sixteen times as much."""
MAX_JSON_VALUES = 1_000_000
"""In one page or event. A short value takes far more memory than its bytes."""
MAX_JSON_DEPTH = 200
"""Of nested values. msgspec decodes them recursively, and the stack of a thread can be small."""
INITIAL_EVENTS_END = "k8s.io/initial-events-end"
_MAX_KIND_CHARACTERS = 100


class Unreadable(KubeError):
    """The server sent something that does not follow the protocol."""


class TooLarge(Unreadable):
    """A response beyond the limit; request less at a time."""


class ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    """metadata of a list"""

    resource_version: str = ""
    continue_token: str = msgspec.field(default="", name="continue")


class BadObject(msgspec.Struct, frozen=True):
    """An object that cannot be decoded, and as much of its identity as can."""

    key: str
    resource_version: str
    error: str


class Page(NamedTuple, Generic[T]):
    """One page of a list; iterating over its items decodes them, and raises Unreadable."""

    metadata: ListMeta
    items: Iterator[T | BadObject]


class RawPage(NamedTuple):
    """A page whose items are not decoded yet"""

    kind: str
    metadata: ListMeta
    items: Iterator[Data]


class StatusObject(msgspec.Struct, frozen=True):
    """metav1.Status, the object of an ERROR event"""

    message: str = ""
    reason: str = ""
    code: int = 0


class WatchEvent(msgspec.Struct, frozen=True):
    """One event of a watch, its object still undecoded"""

    type: str
    object: msgspec.Raw


class Identity(msgspec.Struct, frozen=True, rename="camel"):
    """The part of metadata that names an object"""

    name: str = ""
    namespace: str = ""
    resource_version: str = ""


class BookmarkMeta(msgspec.Struct, frozen=True, rename="camel"):
    """metadata of a bookmark"""

    resource_version: str = ""
    annotations: dict[str, str] | None = None


class Bookmark(msgspec.Struct, frozen=True):
    """The object of a BOOKMARK event: a resourceVersion to resume from"""

    metadata: BookmarkMeta

    @property
    def ends_initial_events(self) -> bool:
        return (self.metadata.annotations or {}).get(INITIAL_EVENTS_END) == "true"


class Splitter(Protocol):
    """Cuts the chunks of a watch into encoded events."""

    def feed(self, chunk: bytes) -> Iterator[bytes]: ...


_In = TypeVar("_In")
_Out = TypeVar("_Out")


def decode_with(read: Callable[[_In], _Out], data: _In) -> _Out:
    """Return what `read` makes of bytes from the server. Raises Unreadable."""
    try:
        return read(data)
    except (msgspec.DecodeError, ValueError) as error:
        raise Unreadable(str(error)) from error
    except IndexError as error:
        raise Unreadable("it ends in the middle of a number") from error
    except RecursionError as error:
        raise Unreadable("nested too deeply") from error


class Decoder(ABC, Generic[T]):
    """Decodes one kind of object, alone, in pages or in a watch. A format defines the abstract methods.

    These may raise what `decode_with` translates.
    """

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind.__name__
        self._usual_start = b"none yet"
        """How objects of this kind usually begin: the kind of one that begins so need not be read."""

    def decode_page(self, body: bytes) -> Page[T]:
        """Decode a list. Raises Unreadable when the body is not a list of this kind, and TooLarge."""
        raw = decode_with(self._read_page, body)
        check_kind(raw.kind, f"{self._kind}List")
        return Page(raw.metadata, self._decode_items(raw.items))

    def decode_event(self, frame: bytes) -> WatchEvent:
        """Decode a watch event, without its object. Raises Unreadable for anything else, and for another kind."""
        event = decode_with(self._read_event, frame)
        start = memoryview(event.object)[: len(self._usual_start)]
        if event.type != "ERROR" and start != self._usual_start:
            check_kind(self.find_kind(event.object), self._kind)
        return event

    def decode_bookmark(self, data: Data) -> Bookmark:
        """Decode the object of a BOOKMARK event. Raises Unreadable."""
        return decode_with(lambda inner: self._read_bookmark(self._open(inner)), data)

    def decode_object(self, data: Data) -> T | BadObject:
        """Return the object of an event."""
        try:
            contents = decode_with(self._open, data)
        except Unreadable as error:
            return _build_bad_object(Identity(), str(error))
        return self._decode_item(contents)

    def find_kind(self, data: Data) -> str:
        """Return the kind that the object of an event names; empty where it names none."""
        try:
            return decode_with(self._read_kind, data)
        except Unreadable:
            return ""

    def _decode_items(self, items: Iterator[Data]) -> Iterator[T | BadObject]:
        while (item := decode_with(lambda rest: next(rest, None), items)) is not None:
            yield self._decode_item(item)

    def _decode_item(self, contents: Data) -> T | BadObject:
        if memoryview(contents).nbytes > MAX_OBJECT_BYTES:
            return self._build_bad_item(contents, f"larger than {MAX_OBJECT_BYTES >> 20} MiB")
        try:
            result = decode_with(self._read, contents)
        except Unreadable as error:
            return self._build_bad_item(contents, str(error))
        return result if result.metadata.name else self._build_bad_item(contents, "metadata.name is missing")

    def _build_bad_item(self, contents: Data, error: str) -> BadObject:
        try:
            identity = decode_with(self._read_identity, contents)
        except Unreadable:
            identity = Identity()
        return _build_bad_object(identity, error)

    @abstractmethod
    def make_splitter(self) -> Splitter: ...
    @abstractmethod
    def _read_page(self, body: bytes) -> RawPage: ...
    @abstractmethod
    def _read_event(self, frame: bytes) -> WatchEvent: ...
    @abstractmethod
    def _open(self, data: Data) -> Data:
        """Return the object of an event without the envelope of the format."""

    @abstractmethod
    def _read_kind(self, data: Data) -> str: ...
    @abstractmethod
    def _read(self, contents: Data) -> T: ...
    @abstractmethod
    def _read_identity(self, contents: Data) -> Identity: ...
    @abstractmethod
    def _read_bookmark(self, contents: Data) -> Bookmark: ...


def check_kind(found: str, wanted: str) -> None:
    """Raise Unreadable for another kind, whose objects may fit the same structs and would replace all that are known.

    A missing kind is accepted: only responses to other requests are to be recognised.
    """
    if found and found != wanted:
        raise Unreadable(f"its kind is {found[:_MAX_KIND_CHARACTERS]!r}, not {wanted}")


def _build_bad_object(identity: Identity, error: str) -> BadObject:
    key = f"{identity.namespace}/{identity.name}" if identity.namespace else identity.name
    return BadObject(key or "(unnamed)", identity.resource_version, error)


class _JsonPage(msgspec.Struct, frozen=True):
    """A list"""

    kind: str = ""
    metadata: ListMeta = ListMeta()
    items: list[msgspec.Raw] | None = None


class _Identified(msgspec.Struct, frozen=True):
    """Any object, reduced to its identity"""

    metadata: Identity


class _OfSomeKind(msgspec.Struct, frozen=True):
    """Any object, reduced to its kind"""

    kind: str = ""


_decode_event = msgspec.json.Decoder(WatchEvent).decode
_decode_bookmark = msgspec.json.Decoder(Bookmark).decode
_decode_raw_page = msgspec.json.Decoder(_JsonPage).decode
_decode_identity = msgspec.json.Decoder(_Identified).decode
_decode_kind = msgspec.json.Decoder(_OfSomeKind).decode
_decode_status = msgspec.json.Decoder(StatusObject).decode
_NOT_STRUCTURE = bytes(set(range(256)) - set(b'"[]{}'))


def check_json(data: bytes) -> None:
    """Raise TooLarge for a text with too many values, Unreadable for one nested too deeply, whether or not it is JSON."""
    if data.count(b",") > MAX_JSON_VALUES:
        raise TooLarge(f"more than {MAX_JSON_VALUES} values")
    if data.count(b"[") + data.count(b"{") > MAX_JSON_DEPTH:
        check_depth(data)


def check_depth(data: bytes) -> None:
    """Raise Unreadable for a JSON text whose brackets are nested too deeply. In a few passes of C, for it may be long.

    Without their other characters strings are pairs of quotes, and most vanish at once. So do, level by level, brackets that
    enclose nothing.
    """
    if b"\\" in data:
        data = data.replace(rb"\\", b"").replace(rb"\"", b"")
    quoted = data.translate(None, _NOT_STRUCTURE).replace(b'""', b"")
    brackets = b"".join(quoted.split(b'"')[::2])
    for _ in range(MAX_JSON_DEPTH):
        rest = brackets.replace(b"{}", b"").replace(b"[]", b"")
        if len(rest) == len(brackets):
            break
        brackets = rest
    if len(brackets) > MAX_JSON_DEPTH:
        raise Unreadable("nested too deeply")


def decode_json_status(data: bytes) -> StatusObject:
    check_json(data)
    return _decode_status(data)


class JsonDecoder(Decoder[T]):
    """JSON: a list is one document, a watch has an event per line."""

    def __init__(self, kind: type[T]) -> None:
        super().__init__(kind)
        self._decode = msgspec.json.Decoder(kind).decode
        self._usual_start = f'{{"kind":"{self._kind}",'.encode()

    def make_splitter(self) -> LineSplitter:
        return LineSplitter()

    def _read_page(self, body: bytes) -> RawPage:
        check_json(body)
        page = _decode_raw_page(body)
        return RawPage(page.kind, page.metadata, iter(page.items or ()))

    def _read_event(self, frame: bytes) -> WatchEvent:
        check_json(frame)
        return _decode_event(frame)

    def _open(self, data: Data) -> Data:
        return data

    def _read_kind(self, data: Data) -> str:
        return _decode_kind(data).kind

    def _read(self, contents: Data) -> T:
        result: T = self._decode(contents)
        share_names(result)
        return result

    def _read_identity(self, contents: Data) -> Identity:
        return _decode_identity(contents).metadata

    def _read_bookmark(self, contents: Data) -> Bookmark:
        return _decode_bookmark(contents)


def share_names(item: KubeObject) -> None:
    """Let all endpoints on a node share one string for its name and one for its zone.

    A hundred thousand endpoints name a few thousand nodes: otherwise each would hold copies of its own.
    """
    if not isinstance(item, EndpointSlice):
        return
    intern, assign = sys.intern, msgspec.structs.force_setattr
    for endpoint in item.endpoints or ():
        if endpoint.node_name is not None:
            assign(endpoint, "node_name", intern(endpoint.node_name))
        if endpoint.zone is not None:
            assign(endpoint, "zone", intern(endpoint.zone))


class LineSplitter:
    """Cuts chunks into lines, in time proportional to the bytes. Raises Unreadable for a line that is too long.

    Blank lines are skipped.
    """

    def __init__(self, max_bytes: int = MAX_OBJECT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []
        self._length = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the lines completed by this chunk; what follows the last newline is kept for the next one."""
        if b"\n" not in chunk:
            self._keep(chunk)
            return
        head, _, rest = chunk.partition(b"\n")
        self._parts.append(head)
        first = b"".join(self._parts)
        self._parts.clear()
        *complete, tail = rest.split(b"\n")
        for line in (first, *complete):
            if line and not line.isspace():
                yield line
        self._length = 0
        if tail:
            self._keep(tail)

    def _keep(self, part: bytes) -> None:
        self._parts.append(part)
        self._length += len(part)
        if self._length > self._max_bytes:
            raise Unreadable(f"a line of the watch is longer than {self._max_bytes >> 20} MiB")
