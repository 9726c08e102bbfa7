"""HTTP requests and responses as plain values, each complete before it is passed on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from urllib.parse import parse_qsl, unquote

import msgspec

from pointsman.model.addresses import is_loopback


class Query(Mapping[str, str]):
    """Query parameters; the first value of a repeated one counts."""

    def __init__(self, text: str) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in parse_qsl(text, keep_blank_values=True):
            self._values.setdefault(name, []).append(value)

    def getall(self, name: str) -> list[str]:
        """Return every value of this parameter, in order."""
        return self._values.get(name, [])

    def __getitem__(self, name: str) -> str:
        return self._values[name][0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class Client(msgspec.Struct, frozen=True):
    """The other end of a connection."""

    text: str = ""
    """Its address as the system writes it; empty at a Unix socket."""
    address: bytes | None = None
    user: int | None = None
    """Its user ID, known at a Unix socket only."""
    is_local: bool = False
    """On this node."""

    @property
    def is_loopback(self) -> bool:
        return self.address is not None and is_loopback(self.address)


class Request(msgspec.Struct, frozen=True):
    """A complete request, its body included."""

    method: str
    path: str
    """Percent-decoded."""
    query: Query
    host: str
    """The Host header; empty where an HTTP/1.0 client sent none."""
    body: bytes
    client: Client


class Response(msgspec.Struct, frozen=True):
    """A complete response; length, date and what becomes of the connection are added when it is sent."""

    status: int
    body: bytes
    headers: Mapping[str, str]


Handler = Callable[[Request], Awaitable[Response]]


def text_response(body: str, status: int = 200) -> Response:
    return reply(body.encode(), "text/plain; charset=utf-8", status)


def reply(
    body: bytes, content_type: str, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Build a response that no browser takes for another type of content."""
    own = {"Content-Type": content_type, "X-Content-Type-Options": "nosniff"}
    return Response(status, body, {**(headers or {}), **own})


def split_target(target: str) -> tuple[str, Query]:
    """Return path and query of a request target, without scheme and host where it has them."""
    scheme, found, rest = target.partition("://")
    if found and scheme.isalpha():
        target = "/" + rest.partition("/")[2]
    path, _, query = target.partition("?")
    return unquote(path), Query(query)
