"""What is asked and what is answered: HTTP requests and answers as plain values, each complete before it is passed on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from urllib.parse import parse_qsl, unquote

import msgspec


class Query(Mapping[str, str]):
    """Query parameters; of one that is given more than once, the first value counts."""

    def __init__(self, text: str) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in parse_qsl(text, keep_blank_values=True):
            self._values.setdefault(name, []).append(value)

    def getall(self, name: str) -> list[str]:
        """Every value of this parameter, in order; none when it is not given."""
        return self._values.get(name, [])

    def __getitem__(self, name: str) -> str:
        return self._values[name][0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class Request(msgspec.Struct, frozen=True):
    """A complete request, its body included."""

    method: str
    path: str
    """Percent-decoded."""
    query: Query
    host: str
    """The Host header; empty where an HTTP/1.0 client sent none."""
    body: bytes
    transport: asyncio.BaseTransport
    """The connection it came over, which knows who is at the other end."""


class Response(msgspec.Struct, frozen=True):
    """A complete answer; whoever sends it adds what HTTP demands: length, date, and whether the connection goes on."""

    status: int
    body: bytes
    headers: Mapping[str, str]


Handler = Callable[[Request], Awaitable[Response]]


def text_response(body: str, status: int = 200) -> Response:
    return reply(body.encode(), "text/plain; charset=utf-8", status)


def reply(
    body: bytes, content_type: str, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A complete answer that no browser will take for something else."""
    own = {"Content-Type": content_type, "X-Content-Type-Options": "nosniff"}
    return Response(status, body, {**(headers or {}), **own})


def path_and_query(target: str) -> tuple[str, Query]:
    """Both parts of a request target; scheme and host of one that is meant for a forwarding proxy are left out."""
    scheme, found, rest = target.partition("://")
    if found and scheme.isalpha():
        target = "/" + rest.partition("/")[2]
    path, _, query = target.partition("?")
    return unquote(path), Query(query)
