"""One handler behind any number of listening sockets; every connection is one of `Connections`.

Accepting is done here and not by asyncio, which logs a traceback for every attempt that lacks a descriptor.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Sequence
from typing import Any, Final

from pointsman.model.addresses import address_from_text
from pointsman.serve.connection import Connection
from pointsman.serve.connections import Connections, HttpError
from pointsman.serve.messages import Client, Handler

_CLOSE_TIMEOUT_SECONDS: Final = 1.0
_ACCEPT_RETRY_SECONDS: Final = 0.5
_ACCEPT_BATCH: Final = 16
"""Connections accepted before other work has its turn."""
_CREDENTIALS: Final = struct.Struct("3i")


class HttpServer:
    """Serves until closed; all its connections end with it."""

    def __init__(self, handler: Handler, connections: Connections) -> None:
        self._handler, self._connections = handler, connections
        self._loop = asyncio.get_running_loop()
        self._listening: list[socket.socket] = []
        self._open: set[Connection] = set()
        self._all_ended = asyncio.Event()

    def serve(self, sockets: Sequence[socket.socket]) -> None:
        """Accept connections on these listening sockets, which are closed with the server."""
        for sock in sockets:
            self._listening.append(sock)
            self._loop.add_reader(sock, self._accept, sock)

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """Where it listens, with the port that the system chose for port 0."""
        names = [sock.getsockname() for sock in self._listening]
        return tuple((name[0], name[1]) for name in names)

    async def close(self) -> None:
        """Stop listening; requests that are being answered have a second to end, and nothing else is waited for."""
        for sock in self._listening:
            self._loop.remove_reader(sock)
            sock.close()
        self._listening.clear()
        for end in (Connection.finish, Connection.abort):
            for connection in list(self._open):
                end(connection)
            try:
                async with asyncio.timeout(_CLOSE_TIMEOUT_SECONDS):
                    while self._open:
                        self._all_ended.clear()
                        await self._all_ended.wait()
            except TimeoutError:
                continue

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPT_BATCH):
            try:
                sock, peer = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._connections.errors.report(HttpError.ACCEPT_FAILED, error)
                self._connections.evict_remote()
                self._loop.remove_reader(listening)
                self._loop.call_later(_ACCEPT_RETRY_SECONDS, self._resume, listening)
                return
            sock.setblocking(False)
            self._open_connection(sock, _identify(sock, peer))

    def _resume(self, listening: socket.socket) -> None:
        if listening in self._listening:
            self._loop.add_reader(listening, self._accept, listening)

    def _open_connection(self, sock: socket.socket, client: Client) -> None:
        connection = Connection(sock, client, self._handler, self._connections, self._on_end)
        self._open.add(connection)
        if not self._connections.admit(connection, is_local=client.is_local, client=client.text):
            connection.abort()

    def _on_end(self, connection: Connection) -> None:
        self._open.discard(connection)
        if not self._open:
            self._all_ended.set()


def _identify(sock: socket.socket, peer: Any) -> Client:
    """A client is local at the control socket, on loopback, and with the node's own address at both ends."""
    if sock.family == socket.AF_UNIX:
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return Client(user=_CREDENTIALS.unpack(credentials)[1], is_local=True)
    text = str(peer[0])
    client = Client(text, address_from_text(text.partition("%")[0]))
    return Client(text, client.address, is_local=client.is_loopback or text == sock.getsockname()[0])
