"""What lists and watches consist of, and how it is read from JSON; `kube/protobuf.py` reads the same from protobuf.

A page is decoded in one go; only when that fails is it decoded item by item, so that one object that does not
fit its type is left out by name and the others are kept.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import msgspec

from pointsman.errors import KubeError
from pointsman.kube.json_density import is_too_dense
from pointsman.model.objects import EndpointSlice, KubeObject

T = TypeVar("T", bound=KubeObject)

LONGEST_LINE = 8 * 1024 * 1024
"""Several times what an API server stores of one object."""
MOST_OBJECTS = 1_000_000
"""Of one list; more are to be had in pages."""
_MOST_NAMELESS = 1000
_LONGEST_KIND = 100
INITIAL_EVENTS_END = "k8s.io/initial-events-end"


class ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    """metadata of a list"""

    resource_version: str = ""
    continue_token: str = msgspec.field(default="", name="continue")


class BadObject(msgspec.Struct, frozen=True):
    """An object that could not be decoded, and as much of its identity as could."""

    key: str
    resource_version: str
    error: str
    nameless: bool = False


class Page(msgspec.Struct, frozen=True):
    """One page of a list"""

    metadata: ListMeta
    objects: list[KubeObject]
    bad: list[BadObject]


class BadObjects:
    """Those of one page. An API server has no object without a name: many of them are no list at all."""

    def __init__(self) -> None:
        self.found: list[BadObject] = []
        self._nameless = 0

    def add(self, bad: BadObject) -> None:
        """Raises Unreadable."""
        self.found.append(bad)
        self._nameless += bad.nameless
        if self._nameless > _MOST_NAMELESS:
            raise Unreadable(f"more than {_MOST_NAMELESS} objects have no name")


class StatusObject(msgspec.Struct, frozen=True):
    """metav1.Status, the object of an ERROR event"""

    message: str = ""
    reason: str = ""
    code: int = 0


class _RawPage(msgspec.Struct, frozen=True):
    """A page whose items are still bytes"""

    kind: str = ""
    metadata: ListMeta = ListMeta()
    items: list[msgspec.Raw] | None = None


class WatchEvent(msgspec.Struct, frozen=True):
    """One event of a watch, its object still undecoded"""

    type: str
    object: bytes | msgspec.Raw


class _JsonEvent(msgspec.Struct, frozen=True):
    """One line of a watch"""

    type: str
    object: msgspec.Raw


class Identity(msgspec.Struct, frozen=True, rename="camel"):
    """The part of metadata needed to name an object"""

    name: str = ""
    namespace: str = ""
    resource_version: str = ""


class _Identified(msgspec.Struct, frozen=True):
    """Any object, reduced to its identity"""

    metadata: Identity


class _OfSomeKind(msgspec.Struct, frozen=True):
    """Any object, reduced to its kind"""

    kind: str = ""


class BookmarkMeta(msgspec.Struct, frozen=True, rename="camel"):
    """metadata of a bookmark"""

    resource_version: str = ""
    annotations: dict[str, str] | None = None


class Bookmark(msgspec.Struct, frozen=True):
    """The object of a BOOKMARK event: a place to resume from"""

    metadata: BookmarkMeta

    @property
    def ends_initial_events(self) -> bool:
        return (self.metadata.annotations or {}).get(INITIAL_EVENTS_END) == "true"


class Unreadable(KubeError):
    """The server sent something that is not what the protocol says."""


_Decoded = TypeVar("_Decoded")
_decode_event = msgspec.json.Decoder(_JsonEvent).decode
_decode_bookmark = msgspec.json.Decoder(Bookmark).decode
_decode_status = msgspec.json.Decoder(StatusObject).decode
_decode_raw_page = msgspec.json.Decoder(_RawPage).decode
_decode_identity = msgspec.json.Decoder(_Identified).decode
_decode_kind = msgspec.json.Decoder(_OfSomeKind).decode


def _decoded(decode: Callable[[bytes | msgspec.Raw], _Decoded], data: bytes | msgspec.Raw) -> _Decoded:
    """The one place where bytes of the server become values; raises Unreadable."""
    try:
        return decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unreadable(str(error)) from error
    except RecursionError as error:
        raise Unreadable("nested too deeply") from error


def decode_status(data: bytes | msgspec.Raw) -> StatusObject:
    """The Status in an error's body or an ERROR event; an empty one when it cannot be read."""
    try:
        return _decoded(_decode_status, data)
    except Unreadable:
        return StatusObject()


def _refuse_excess(data: bytes) -> None:
    if is_too_dense(data):
        raise Unreadable("it holds more values than any API server puts into so few bytes")


def refuse_other_kind(found: str, wanted: str) -> None:
    """Raises Unreadable: objects of another kind may well fit our structs, and would take the place of all of ours.

    The kind may be left out: nothing but an answer to another question is to be told by it.
    """
    if found and found != wanted:
        raise Unreadable(f"its kind is {found[:_LONGEST_KIND]!r}, not {wanted}")


class JsonDecoder(Generic[T]):
    """Decodes one kind of object, alone, in pages or in a watch. Implements `pointsman.kube.formats.Decoder`."""

    def __init__(self, kind: type[T]) -> None:
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
        self._kind = kind.__name__
        self._usual = f'{{"kind":"{self._kind}",'.encode()
        """How objects of this kind begin in the events of an API server: it spares looking into each."""

    def page(self, body: bytes) -> Page:
        """Raises Unreadable when the body is no list of this kind."""
        _refuse_excess(body)
        try:
            fast: Any = _decoded(self._decode_page, body)
        except Unreadable:
            return self._page_item_by_item(body)
        refuse_other_kind(fast.kind, f"{self._kind}List")
        objects = fast.items or []
        if not all(item.metadata.name for item in objects):
            return self._page_item_by_item(body)
        share_names(objects)
        return Page(fast.metadata, objects, [])

    def _page_item_by_item(self, body: bytes) -> Page:
        raw = _decoded(_decode_raw_page, body)
        refuse_other_kind(raw.kind, f"{self._kind}List")
        objects: list[KubeObject] = []
        bad = BadObjects()
        for item in raw.items or ():
            result = self.object(item)
            if isinstance(result, BadObject):
                bad.add(result)
            else:
                objects.append(result)
        return Page(raw.metadata, objects, bad.found)

    def splitter(self) -> LineSplitter:
        return LineSplitter()

    def event(self, frame: bytes) -> WatchEvent:
        """Raises Unreadable for anything that is no watch event of this kind."""
        _refuse_excess(frame)
        event = _decoded(_decode_event, frame)
        if event.type != "ERROR" and memoryview(event.object)[: len(self._usual)] != self._usual:
            refuse_other_kind(_kind_of(event.object), self._kind)
        return WatchEvent(event.type, event.object)

    def bookmark(self, data: bytes | msgspec.Raw) -> Bookmark:
        """Raises Unreadable."""
        return _decoded(_decode_bookmark, data)

    def object(self, data: bytes | msgspec.Raw) -> T | BadObject:
        try:
            result: T = _decoded(self._decode, data)
        except Unreadable as error:
            return bad_object(_identity(data), str(error))
        if not result.metadata.name:
            return bad_object(_identity(data), "metadata.name is missing")
        share_names((result,))
        return result


def _identity(data: bytes | msgspec.Raw) -> Identity:
    try:
        return _decoded(_decode_identity, data).metadata
    except Unreadable:
        return Identity()


def _kind_of(data: msgspec.Raw) -> str:
    try:
        return _decoded(_decode_kind, data).kind
    except Unreadable:
        return ""


def bad_object(identity: Identity, error: str) -> BadObject:
    """By as much of its identity as could be read."""
    key = f"{identity.namespace}/{identity.name}" if identity.namespace else identity.name
    return BadObject(key or "(unnamed)", identity.resource_version, error, nameless=not identity.name)


def share_names(objects: list[KubeObject] | tuple[KubeObject, ...]) -> None:
    """Lets all endpoints on a node share one string for its name and one for its zone.

    A hundred thousand endpoints name a few thousand nodes: without this, each would hold copies of its own.
    """
    intern, assign = sys.intern, msgspec.structs.force_setattr
    for item in objects:
        if not isinstance(item, EndpointSlice):
            continue
        for endpoint in item.endpoints or ():
            if endpoint.node_name is not None:
                assign(endpoint, "node_name", intern(endpoint.node_name))
            if endpoint.zone is not None:
                assign(endpoint, "zone", intern(endpoint.zone))


class LineSplitter:
    """Cuts chunks into lines, in time proportional to the bytes; a line without an end raises Unreadable.

    Lines without anything in them are left out.
    """

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self._longest = longest
        self._parts: list[bytes] = []
        self._length = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The lines completed by this chunk; what follows the last newline is kept for the next one."""
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
        if self._length > self._longest:
            raise Unreadable(f"a line of the watch is longer than {self._longest >> 20} MiB")
