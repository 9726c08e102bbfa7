"""The endpoint of bench.packets: TCP that repeats or swallows what comes, and UDP that repeats, on one address and port.

The first byte of a connection chooses: `e` repeats every piece, `s` swallows a known number of bytes and then says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import cast

SWALLOWED = 16 * 1024 * 1024


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        if await reader.read(1) == b"s":
            left = SWALLOWED
            while left > 0 and (data := await reader.read(1 << 20)):
                left -= len(data)
            writer.write(b".")
            await writer.drain()
        else:
            while data := await reader.read(4096):
                writer.write(data)
    writer.close()


class _Datagrams(asyncio.DatagramProtocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._transport.sendto(data, addr)


async def main(address: str, port: int) -> None:
    server = await asyncio.start_server(_serve, address, port, backlog=1024, limit=1 << 22)
    await asyncio.get_running_loop().create_datagram_endpoint(_Datagrams, local_addr=(address, port))
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
