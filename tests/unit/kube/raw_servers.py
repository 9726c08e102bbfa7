"""Servers that say byte by byte what a test makes them say, and a client of theirs."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from pointsman.errors import KubeError
from pointsman.kube.access import Access
from pointsman.kube.client import ApiClient

Answering = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(answering: Answering, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """The port of a server on loopback that does this with every connection, and closes it then."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answering(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def head_of(reader: asyncio.StreamReader) -> bytes:
    return await reader.readuntil(b"\r\n\r\n")


@asynccontextmanager
async def client_to(access: Access) -> AsyncIterator[ApiClient]:
    client = ApiClient(access, environ={}, qps=0)
    try:
        yield client
    finally:
        await client.close()


async def exchange(client: ApiClient, path: str, *, stream: bool) -> KubeError | None:
    """Make one request and read all of its response; return the KubeError. Any other exception escapes."""
    try:
        if stream:
            async with client.stream(path, headers_timeout=5) as opened:
                while await opened.read():
                    pass
        else:
            await client.request("GET", path, timeout=5)
    except KubeError as error:
        assert "\n" not in str(error)  # noqa: PT017  only what is raised matters here
        return error
    return None
