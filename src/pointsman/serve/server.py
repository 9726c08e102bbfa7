"""One handler behind any number of listening sockets; every connection is one of `Connections`.

Accepting is done here and not by asyncio, whose way with a lack of descriptors is a traceback per attempt, and which
asks nobody before it takes a connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final

from pointsman.model.addresses import address_from_text, is_loopback
from pointsman.serve.connections import Connections
from pointsman.serve.messages import Handler
from pointsman.serve.protocol import HttpConnection
from pointsman.serve.troubles import Trouble

_CLOSE_SECONDS: Final = 1.0
_PAUSE_SECONDS: Final = 0.5
"""Before the next attempt to accept after one that failed."""
_AT_ONCE: Final = 32
"""Connections accepted before other work has its turn."""


class HttpServer:
    """Serves until closed; all its connections end with it."""

    def __init__(self, handler: Handler, connections: Connections) -> None:
        self._handler, self._connections = handler, connections
        self._acceptors: list[_Acceptor] = []
        self._arriving: set[asyncio.Task[None]] = set()
        self._open: set[HttpConnection] = set()
        self._all_ended = asyncio.Event()

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
        """Answers that are being made have a moment to be sent; nothing else is waited for."""
        for acceptor in self._acceptors:
            acceptor.close()
        self._acceptors.clear()
        await asyncio.gather(*self._arriving, return_exceptions=True)
        for end in (HttpConnection.retire, HttpConnection.drop):
            for connection in list(self._open):
                end(connection)
            if self._open:
                self._all_ended.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._all_ended.wait(), _CLOSE_SECONDS)

    def _accepted(self, sock: socket.socket, peer: Any) -> None:
        connection = HttpConnection(self._handler, self._connections, self._ended)
        client = str(peer[0]) if sock.family != socket.AF_UNIX else ""
        if not self._connections.admit(connection, resident=_is_resident(sock, client), client=client):
            sock.close()
            return
        self._open.add(connection)
        arriving = asyncio.get_running_loop().create_task(self._connect(connection, sock))
        self._arriving.add(arriving)
        arriving.add_done_callback(self._arriving.discard)

    async def _connect(self, connection: HttpConnection, sock: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, sock)
        except OSError:
            self._connections.left(connection)
            self._ended(connection)
            sock.close()

    def _ended(self, connection: HttpConnection) -> None:
        self._open.discard(connection)
        if not self._open:
            self._all_ended.set()


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
                self._loop.remove_reader(self.sock)
                self._connections.when_less_crowded(self._go_on)
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

    def _go_on(self) -> None:
        if self.sock.fileno() >= 0:
            self._loop.add_reader(self.sock, self._ready)
            self._ready()

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
