"""The bytes of an accepted connection, plain; `tls` has the encrypted ones."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final, Protocol

from pointsman.serve.messages import ClientCertificate


class Stream(Protocol):
    """Reads and writes one connection; the socket is closed by its owner."""

    @property
    def needs_handshake(self) -> bool:
        """Whether keys must be agreed on before anything else."""

    @property
    def is_stale(self) -> bool:
        """Whether new connections would be accepted under other certificates."""

    async def handshake(self) -> ClientCertificate | None:
        """Agree on keys; return the verified certificate of the client, if it has one.

        Raises ConnectionError when the client has gone, and another OSError when it did not follow the protocol.
        """

    async def receive(self, size: int) -> bytes:
        """Return what arrived, at most `size` bytes; nothing at the end."""

    async def send(self, data: bytes | memoryview) -> None:
        """Send all of it."""


class PlainStream:
    """A stream without encryption."""

    needs_handshake: Final = False
    is_stale: Final = False

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self._loop = sock, asyncio.get_running_loop()

    async def handshake(self) -> ClientCertificate | None:
        return None

    async def receive(self, size: int) -> bytes:
        return await self._loop.sock_recv(self._sock, size)

    async def send(self, data: bytes | memoryview) -> None:
        await self._loop.sock_sendall(self._sock, data)


OpenStream = Callable[[socket.socket], Stream]
