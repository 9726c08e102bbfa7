"""Decoding of lists and watches: what every format has in common, and JSON. `kube/protobuf.py` is the other format.

A page is decoded as a whole; only when that fails is it decoded item by item, so that one object that does not fit its
type is left out by name and the others are kept.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from pointsman.errors import KubeError
from pointsman.model.objects import EndpointSlice, KubeObject

T = TypeVar("T", bound=KubeObject)
Data = bytes | msgspec.Raw

MAX_EVENT_BYTES = 8 * 1024 * 1024
"""Several times what an API server stores of one object."""
INITIAL_EVENTS_END = "k8s.io/initial-events-end"
_MAX_KIND_CHARACTERS = 100


class Unreadable(KubeError):
    """The server sent something that does not follow the protocol."""


class ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    """metadata of a list"""

    resource_version: str = ""
    continue_token: str = msgspec.field(default="", name="continue")


class BadObject(msgspec.Struct, frozen=True):
    """An object that cannot be decoded, and as much of its identity as can."""

    key: str
    resource_version: str
    error: str


class Page(msgspec.Struct, frozen=True):
    """One page of a list"""

    metadata: ListMeta
    objects: list[KubeObject]
    bad: list[BadObject]


class RawPage(msgspec.Struct, frozen=True):
    """A page whose items are not decoded yet"""

    kind: str = ""
    metadata: ListMeta = ListMeta()
    items: Iterable[Data] = ()


class StatusObject(msgspec.Struct, frozen=True):
    """metav1.Status, the object of an ERROR event"""

    message: str = ""
    reason: str = ""
    code: int = 0


class WatchEvent(msgspec.Struct, frozen=True):
    """One event of a watch, its object still undecoded"""

    type: str
    object: Data


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
        """How objects of this kind usually begin: it spares reading the kind of each."""

    def page(self, body: bytes) -> Page:
        """Raises Unreadable when the body is not a list of this kind."""
        return decode_with(self._page_by_item, body)

    def event(self, frame: bytes) -> WatchEvent:
        """Raises Unreadable for anything but a watch event of this kind."""
        event = decode_with(self._read_event, frame)
        start = memoryview(event.object)[: len(self._usual_start)]
        if event.type != "ERROR" and start != self._usual_start:
            check_kind(self.kind_of(event.object), self._kind)
        return event

    def bookmark(self, data: Data) -> Bookmark:
        """Raises Unreadable."""
        return decode_with(lambda inner: self._read_bookmark(self._open(inner)), data)

    def object(self, data: Data) -> T | BadObject:
        """Return the object of an event."""
        try:
            contents = decode_with(self._open, data)
        except Unreadable as error:
            return _bad_object(Identity(), str(error))
        return self._item(contents)

    def kind_of(self, data: Data) -> str:
        """Return the kind that the object of an event names; empty where it names none."""
        try:
            return decode_with(self._read_kind, data)
        except Unreadable:
            return ""

    def _page_by_item(self, body: bytes) -> Page:
        raw = self._read_page(body)
        check_kind(raw.kind, f"{self._kind}List")
        objects: list[KubeObject] = []
        bad: list[BadObject] = []
        for item in raw.items or ():
            result = self._item(item)
            if isinstance(result, BadObject):
                bad.append(result)
            else:
                objects.append(result)
        return Page(raw.metadata, objects, bad)

    def _item(self, contents: Data) -> T | BadObject:
        try:
            result = decode_with(self._read, contents)
        except Unreadable as error:
            return self._bad_item(contents, str(error))
        return result if result.metadata.name else self._bad_item(contents, "metadata.name is missing")

    def _bad_item(self, contents: Data, error: str) -> BadObject:
        try:
            identity = decode_with(self._read_identity, contents)
        except Unreadable:
            identity = Identity()
        return _bad_object(identity, error)

    @abstractmethod
    def splitter(self) -> Splitter: ...
    @abstractmethod
    def _read_page(self, body: bytes) -> RawPage: ...
    @abstractmethod
    def _read_event(self, frame: bytes) -> WatchEvent: ...
    @abstractmethod
    def _open(self, data: Data) -> Data:
        """Return what the envelope of an event's object holds."""

    @abstractmethod
    def _read_kind(self, data: Data) -> str: ...
    @abstractmethod
    def _read(self, contents: Data) -> T: ...
    @abstractmethod
    def _read_identity(self, contents: Data) -> Identity: ...
    @abstractmethod
    def _read_bookmark(self, contents: Data) -> Bookmark: ...


def check_kind(found: str, wanted: str) -> None:
    """Raise Unreadable for another kind: its objects may fit our structs, and would replace all of ours.

    The kind may be missing: only the answer to another request is recognised by it.
    """
    if found and found != wanted:
        raise Unreadable(f"its kind is {found[:_MAX_KIND_CHARACTERS]!r}, not {wanted}")


def _bad_object(identity: Identity, error: str) -> BadObject:
    key = f"{identity.namespace}/{identity.name}" if identity.namespace else identity.name
    return BadObject(key or "(unnamed)", identity.resource_version, error)


class _JsonPage(msgspec.Struct, frozen=True):
    """A list"""

    kind: str = ""
    metadata: ListMeta = ListMeta()
    items: list[msgspec.Raw] | None = None


class _JsonEvent(msgspec.Struct, frozen=True):
    """One line of a watch"""

    type: str
    object: msgspec.Raw


class _Identified(msgspec.Struct, frozen=True):
    """Any object, reduced to its identity"""

    metadata: Identity


class _OfSomeKind(msgspec.Struct, frozen=True):
    """Any object, reduced to its kind"""

    kind: str = ""


_decode_event = msgspec.json.Decoder(_JsonEvent).decode
_decode_bookmark = msgspec.json.Decoder(Bookmark).decode
_decode_raw_page = msgspec.json.Decoder(_JsonPage).decode
_decode_identity = msgspec.json.Decoder(_Identified).decode
_decode_kind = msgspec.json.Decoder(_OfSomeKind).decode
decode_json_status = msgspec.json.Decoder(StatusObject).decode


class JsonDecoder(Decoder[T]):
    """JSON: a list is one document, a watch has an event per line."""

    def __init__(self, kind: type[T]) -> None:
        super().__init__(kind)
        page: Any = msgspec.defstruct(
            f"{kind.__name__}Page",
            [
                ("kind", str, ""),
                ("metadata", ListMeta, ListMeta()),
                ("items", list[kind] | None, None),  # type: ignore[valid-type]
            ],
            frozen=True,
        )
        self._decode_page = msgspec.json.Decoder(page).decode
        self._decode = msgspec.json.Decoder(kind).decode
        self._usual_start = f'{{"kind":"{self._kind}",'.encode()

    def page(self, body: bytes) -> Page:
        """Raises Unreadable when the body is not a list of this kind."""
        try:
            whole: Any = decode_with(self._decode_page, body)
        except Unreadable:
            return super().page(body)
        check_kind(whole.kind, f"{self._kind}List")
        objects = whole.items or []
        if not all(item.metadata.name for item in objects):
            return super().page(body)
        for item in objects:
            share_names(item)
        return Page(whole.metadata, objects, [])

    def splitter(self) -> LineSplitter:
        return LineSplitter()

    def _read_page(self, body: bytes) -> RawPage:
        page = _decode_raw_page(body)
        return RawPage(page.kind, page.metadata, page.items or ())

    def _read_event(self, frame: bytes) -> WatchEvent:
        event = _decode_event(frame)
        return WatchEvent(event.type, event.object)

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

    def __init__(self, max_bytes: int = MAX_EVENT_BYTES) -> None:
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
