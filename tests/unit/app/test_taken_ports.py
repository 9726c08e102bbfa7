"""Whether another proxy holds a port, by what it answers."""

from __future__ import annotations

import asyncio

import pytest

from pointsman.app.servers import find_proxy_mode


@pytest.mark.parametrize(("body", "mode"), [(b"iptables", "iptables"), (b"hello", "")])
async def test_a_proxy_is_recognised_though_its_answer_comes_in_pieces(body: bytes, mode: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.01)
        writer.write(body)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        assert await find_proxy_mode(f"127.0.0.1:{port}") == mode
    assert await find_proxy_mode(f"127.0.0.1:{port}") == ""
