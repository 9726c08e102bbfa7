"""Handlers around handlers: routing, deadlines, and restrictions on clients.

The served ports have no authentication. Pages that hold more than metrics are restricted in two ways: some to clients on
loopback, and all to requests that name this host by an address. A web page can lead a browser on the node to loopback
(DNS rebinding): the connection is local then, but the Host header holds the attacker's name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from pointsman.model.addresses import address_from_text, split_host_port
from pointsman.serve.messages import Handler, Request, Response, text_response

REQUEST_TIMEOUT_SECONDS: Final = 10.0


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
                "shown to loopback connections only: ask on the node itself or through kubectl port-forward\n",
                403,
            )
        return await handler(request)

    return require_address(guarded)
