"""The other end of a `Connection`: a client that sends and reads exactly what a test wants."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator
from typing import Any

from pointsman.serve.connections import Connections
from pointsman.serve.messages import Client as Peer
from pointsman.serve.messages import Handler, Request, Response, text_response
from pointsman.serve.server import Connection


async def echo(request: Request) -> Response:
    """Tells what it was asked."""
    return text_response(f"{request.method} {request.path} {dict(request.query)} {request.body!r}")


def asking(path: str, *headers: str, method: str = "GET", body: bytes = b"", version: str = "1.1") -> bytes:
    """The bytes of a request."""
    lines = [f"{method} {path} HTTP/{version}", "Host: localhost", *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def statuses(received: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb"HTTP/1\.[01] (\d+) ", received)]


def undated(received: bytes) -> bytes:
    return re.sub(rb"Date: [^\r]*\r\n", b"", received)


class Client:
    """One connection."""

    def __init__(self, sock: socket.socket, connection: Connection, ended: asyncio.Event) -> None:
        self.sock, self.connection, self.ended = sock, connection, ended
        self._loop = asyncio.get_running_loop()

    async def send(self, data: bytes) -> None:
        """All of it, unless the other end has closed."""
        with contextlib.suppress(ConnectionError):
            await self._loop.sock_sendall(self.sock, data)

    async def read(self, size: int = 1 << 16) -> bytes:
        """What comes next; empty at the end."""
        try:
            return await self._loop.sock_recv(self.sock, size)
        except ConnectionError:
            return b""

    async def read_until(self, mark: bytes) -> bytes:
        received = b""
        while mark not in received and (part := await self.read()):
            received += part
        return received

    async def read_all(self) -> bytes:
        received = b""
        while part := await self.read():
            received += part
        return received


@contextlib.asynccontextmanager
async def connected(
    handler: Handler, connections: Connections, *, is_local: bool = True
) -> AsyncIterator[Client]:
    """A client of this handler; in the end the connection is closed."""
    ended = asyncio.Event()
    ours, theirs = socket.socketpair()
    for sock in (ours, theirs):
        sock.setblocking(False)
    with ours:
        connection = Connection(theirs, Peer(), handler, connections, lambda _connection: ended.set())
        assert connections.admit(connection, is_local=is_local)
        async with asyncio.timeout(30):
            yield Client(ours, connection, ended)
            ours.close()
            await ended.wait()


@contextlib.asynccontextmanager
async def talking(handler: Handler = echo, connections: Connections | None = None) -> AsyncIterator[Client]:
    """The only client; afterwards nothing may be left of its connection, and nothing have gone wrong."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, details: complaints.append(details))
    tasks = asyncio.all_tasks()
    async with connected(handler, Connections() if connections is None else connections) as client:
        yield client
    assert asyncio.all_tasks() == tasks
    assert complaints == []
