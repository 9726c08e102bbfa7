"""What a source finds out about an object, or a file, before anybody can use it."""

from __future__ import annotations

import msgspec

FILE = "File"
DOCUMENT = "Document"


class _AboutAnObject(msgspec.Struct, frozen=True, gc=False):
    """What a source found out about one object, or about a whole file."""

    kind: str
    """Service, EndpointSlice, Node or ServiceCIDR; `File` or `Document` when no object can be named."""
    key: str
    """`namespace/name`; the path of a file; empty when unknown."""
    reason: str
    """Short CamelCase word for metrics and events."""
    message: str
    """What is wrong, starting with the field's path where there is one."""
    place: str = ""
    """The file, and the part of it, that holds the object; empty for what an API server sent."""

    def __str__(self) -> str:
        subject = f"{self.kind} {self.key or '(unnamed)'}" if self.kind not in (FILE, DOCUMENT) else ""
        return ": ".join(part for part in (self.place, subject, self.message) if part)


class Rejection(_AboutAnObject, frozen=True, gc=False):
    """A source cannot use this; the last good version, if there was one, stays in use."""


class Remark(_AboutAnObject, frozen=True, gc=False):
    """Its author should know this about an object that is used nevertheless."""


Finding = Rejection | Remark
