"""One handler behind any number of listening sockets; every connection is one of `Connections`.

Accepting is done here and not by asyncio, whose way with a lack of descriptors is a traceback per attempt, and which
asks nobody before it takes a connection.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from pointsman.model.addresses import address_from_text, is_loopback
from pointsman.serve.connections import Connections
from pointsman.serve.troubles import Trouble

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

_CLOSE_SECONDS: Final = 1.0
_PAUSE_SECONDS: Final = 0.5
"""Before the next attempt to accept after one that failed."""
_AT_ONCE: Final = 32
"""Connections accepted before other work has its turn."""


class _Connection(web.RequestHandler):
    """A connection that can be dropped, and that reports instead of logging."""

    __slots__ = ("_connections", "_dropped")

    def __init__(self, server: web.Server, connections: Connections) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]
            keepalive_timeout=connections.idle_seconds,
            max_line_size=4096,
            max_field_size=8190,
        )
        self._connections = connections
        self._dropped = False

    def drop(self) -> None:
        self._dropped = True
        if self.transport is not None:
            self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._dropped:
            self.drop()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._connections.left(self)
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if isinstance(exc, HttpProcessingError):
            self._connections.troubles.report(Trouble.MALFORMED, client=request.remote)
        return super().handle_error(request, status, exc, message)

    def log_exception(self, *_args: Any, exc_info: BaseException | None = None, **_kw: Any) -> None:
        if not isinstance(exc_info, HttpProcessingError):
            self._connections.troubles.report(Trouble.HANDLER_FAILED, exc_info)


class HttpServer:
    """Serves until closed; all its connections end with it."""

    def __init__(self, handler: Handler, connections: Connections) -> None:
        async def tracked(request: web.BaseRequest) -> web.StreamResponse:
            connection = request.protocol
            assert isinstance(connection, _Connection)
            connections.began(connection)
            try:
                return await handler(request)
            finally:
                connections.ended(connection)

        self._connections = connections
        self._server = web.Server(tracked)
        self._acceptors: list[_Acceptor] = []
        self._arriving: set[asyncio.Task[None]] = set()

    def serve(self, sockets: Sequence[socket.socket]) -> None:
        """Accept connections on these listening sockets, which are closed with the server."""
        for sock in sockets:
            self._acceptors.append(_Acceptor(sock, self._connections, self._accepted))

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """Where it listens, with the port the system chose for port 0."""
        names = [acceptor.sock.getsockname() for acceptor in self._acceptors]
        return tuple((name[0], name[1]) for name in names)

    async def close(self) -> None:
        for acceptor in self._acceptors:
            acceptor.close()
        self._acceptors.clear()
        await asyncio.gather(*self._arriving, return_exceptions=True)
        await self._server.shutdown(_CLOSE_SECONDS)

    def _accepted(self, sock: socket.socket, peer: Any) -> None:
        connection = _Connection(self._server, self._connections)
        client = str(peer[0]) if sock.family != socket.AF_UNIX else ""
        if not self._connections.admit(connection, resident=_is_resident(sock, client), client=client):
            sock.close()
            return
        arriving = asyncio.get_running_loop().create_task(self._connect(connection, sock))
        self._arriving.add(arriving)
        arriving.add_done_callback(self._arriving.discard)

    async def _connect(self, connection: _Connection, sock: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, sock)
        except OSError:
            self._connections.left(connection)
            sock.close()


class _Acceptor:
    """Takes connections from one listening socket."""

    def __init__(
        self,
        sock: socket.socket,
        connections: Connections,
        accepted: Callable[[socket.socket, Any], None],
    ) -> None:
        self.sock = sock
        self._connections, self._accepted = connections, accepted
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._loop.add_reader(sock, self._ready)

    def close(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self.sock)
        self.sock.close()

    def _ready(self) -> None:
        for _ in range(_AT_ONCE):
            if self._connections.crowded:
                return
            try:
                connection, peer = self.sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._failed(error)
                return
            connection.setblocking(False)
            self._accepted(connection, peer)

    def _failed(self, error: OSError) -> None:
        """Make room, as the usual reason is a lack of descriptors, and try again a little later."""
        self._connections.troubles.report(Trouble.ACCEPT_FAILED, error)
        self._connections.make_room()
        self._loop.remove_reader(self.sock)
        self._pause = self._loop.call_later(_PAUSE_SECONDS, self._loop.add_reader, self.sock, self._ready)


def _is_resident(sock: socket.socket, client: str) -> bool:
    """Whether the client is on this node: the control socket, loopback, or the node's own address at both ends."""
    if sock.family == socket.AF_UNIX or client == sock.getsockname()[0]:
        return True
    address = address_from_text(client.partition("%")[0])
    return address is not None and is_loopback(address)
