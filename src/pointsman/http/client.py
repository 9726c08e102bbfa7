"""Requests over connections that are opened as needed."""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING, Protocol

from pointsman.http.connector import Connection, Connector
from pointsman.http.http1 import Http1Exchange
from pointsman.http.messages import ConnectionLost, NotProcessed, Request, Response, raise_http_errors

if TYPE_CHECKING:
    from pointsman.http.http2 import Http2Connection


class _Transport(Protocol):
    """HTTP/1.1 or HTTP/2 on one connection."""

    async def send(self, request: Request) -> Response: ...
    def close(self) -> None: ...


class HttpClient:
    """Sends requests: over one shared connection where the server speaks HTTP/2, else each over its own."""

    def __init__(self) -> None:
        self._open: set[_Transport] = set()
        self._shared: list[Http2Connection] = []
        self._may_share = True
        """The last server with TLS spoke HTTP/2, or there was none yet."""
        self._connecting = asyncio.Lock()

    async def send(self, request: Request, connector: Connector) -> Response:
        """Return the response once its headers are there. Raises HttpError.

        A request that the server did not process is sent once more, on a new connection. So is a GET on a shared
        connection that turns out to be broken.
        """
        shared = self._find_shared(connector)
        if shared is not None:
            try:
                return await self._send(shared, request)
            except NotProcessed:
                pass
            except ConnectionLost:
                if request.method != "GET":
                    raise
        return await self._send(await self._connect(connector), request)

    def close(self) -> None:
        for transport in tuple(self._open):
            transport.close()

    async def _send(self, transport: _Transport, request: Request) -> Response:
        try:
            with raise_http_errors():
                return await transport.send(request)
        except BaseException:
            if transport not in self._shared:
                transport.close()
            raise

    async def _connect(self, connector: Connector) -> _Transport:
        """Return a new transport; or, after waiting for another request to connect, a shared one."""
        if connector.tls is None or not self._may_share:
            return await self._open_transport(connector)
        async with self._connecting:
            return self._find_shared(connector) or await self._open_transport(connector)

    async def _open_transport(self, connector: Connector) -> _Transport:
        with raise_http_errors():
            connection = await connector.connect()
            self._may_share = connection.speaks_http2
            if connection.speaks_http2:
                return await self._share(connection, connector)
        exchange = Http1Exchange(connection, connector, lambda: self._open.discard(exchange))
        self._open.add(exchange)
        return exchange

    async def _share(self, connection: Connection, connector: Connector) -> Http2Connection:
        # Only where it is needed, and on a thread: h2 takes longer to import than a callback of the event loop may.
        http2 = await asyncio.to_thread(importlib.import_module, "pointsman.http.http2")

        def forget() -> None:
            self._open.discard(shared)
            self._shared = [other for other in self._shared if other is not shared]

        shared: Http2Connection = http2.Http2Connection(connection, connector, forget)
        self._open.add(shared)
        try:
            await shared.wait_ready()
        except BaseException:
            shared.close()
            raise
        self._shared.append(shared)
        return shared

    def _find_shared(self, connector: Connector) -> Http2Connection | None:
        """Return a shared connection with room for a request; those with another address or credentials are drained."""
        for shared in tuple(self._shared):
            if shared.connector != connector:
                shared.drain()
        return next((shared for shared in self._shared if shared.has_capacity), None)
