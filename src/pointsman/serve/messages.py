"""HTTP requests and responses as plain values, and handlers around handlers: routing, deadlines, restrictions on clients.

The served ports have no authentication unless --secure-metrics is set (`authorization`). Pages that hold more than metrics are
restricted in two ways: some to clients on loopback, and all to requests that name this host by an address. A web page can lead a browser on the node to loopback
(DNS rebinding): the connection is local then, but the Host header holds the attacker's name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final
from urllib.parse import parse_qsl, unquote

import msgspec

from pointsman.model.addresses import address_from_text, is_loopback, split_host_port

REQUEST_TIMEOUT_SECONDS: Final = 10.0


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


class ClientCertificate(msgspec.Struct, frozen=True):
    """User, groups and expiry of a verified client certificate."""

    user: str
    groups: tuple[str, ...]
    expires: float
    """Unix time."""


class Client(msgspec.Struct, frozen=True):
    """The other end of a connection."""

    text: str = ""
    """Its address as the system writes it; empty at a Unix socket."""
    address: bytes | None = None
    user: int | None = None
    """Its user ID, known at a Unix socket only."""
    is_local: bool = False
    """On this node."""
    certificate: ClientCertificate | None = None

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
    authorization: str = ""
    """The Authorization header."""


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


def route(routes: Mapping[str, Handler]) -> Handler:
    """Dispatch by exact path; any other is 404, in Go's wording."""

    async def dispatch(request: Request) -> Response:
        handler = routes.get(request.path)
        if handler is None:
            return text_response("404 page not found\n", 404)
        return await handler(request)

    return dispatch


def with_deadline(handler: Handler, seconds: float = REQUEST_TIMEOUT_SECONDS) -> Handler:
    """Answer 503 when the handler takes longer."""

    async def bounded(request: Request) -> Response:
        try:
            async with asyncio.timeout(seconds):
                return await handler(request)
        except TimeoutError:
            return text_response("timeout: the request took too long\n", 503)

    return bounded


def require_address(handler: Handler) -> Handler:
    """Answer only requests whose Host header is an IP address or `localhost`."""

    async def guarded(request: Request) -> Response:
        host, _ = split_host_port(request.host) or (request.host.removeprefix("[").removesuffix("]"), "")
        if host != "localhost" and address_from_text(host) is None:
            return text_response("open this page by IP address or as localhost\n", 403)
        return await handler(request)

    return guarded


def require_loopback(handler: Handler) -> Handler:
    """Answer only clients on loopback: a shell on the node, or `kubectl port-forward`."""

    async def guarded(request: Request) -> Response:
        if not request.client.is_loopback:
            return text_response(
                "shown to loopback connections only: connect on the node itself or through kubectl port-forward\n",
                403,
            )
        return await handler(request)

    return require_address(guarded)
