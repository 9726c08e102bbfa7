"""HTTP/2 in front of a server that speaks HTTP/1.1: each stream becomes a connection to it.

What such a server does to a connection happens to a stream: one that breaks is reset, and an answer that is not HTTP
resets it as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl

import h11
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import H2Error
from h2.settings import SettingCodes, Settings

_READ_BYTES = 256 * 1024
_DROPPED_HEADERS = {b"connection", b"transfer-encoding", b"keep-alive", b"upgrade"}


class Http2Front:
    """Listens with TLS and ALPN."""

    def __init__(self, tls: ssl.SSLContext, host: str) -> None:
        tls.set_alpn_protocols(["h2"])
        self._tls, self._host = tls, host
        self.port = 0
        self.max_streams = 100
        self.accepted = 0
        """Connections so far."""
        self.connections: set[FrontConnection] = set()
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def start(self, backend_port: int) -> None:
        """Listen; after a `stop` on the same port as before."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.accepted += 1
            task = asyncio.current_task()
            assert task is not None
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)
            connection = FrontConnection(reader, writer, (self._host, backend_port), self.max_streams)
            self.connections.add(connection)
            try:
                await connection.run()
            finally:
                self.connections.discard(connection)

        self._server = await asyncio.start_server(
            serve, self._host, self.port, ssl=self._tls, reuse_address=True
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            await stop_accepting(*(sock.fileno() for sock in self._server.sockets))
            self._server.close()
            self._server = None
        for connection in tuple(self.connections):
            connection.abort()
        await asyncio.gather(*self._serving, return_exceptions=True)


async def stop_accepting(*listening: int) -> None:
    """Let connections that were just accepted reach their server: asyncio leaves them open if that is closed first."""
    for descriptor in listening:
        asyncio.get_running_loop().remove_reader(descriptor)
    await asyncio.sleep(0)


class FrontConnection:
    """One connection of a client."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        backend: tuple[str, int],
        max_streams: int,
    ) -> None:
        self._reader, self.writer, self._backend = reader, writer, backend
        self.http = H2Connection(H2Configuration(client_side=False, header_encoding=None))
        self.http.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: max_streams,
                SettingCodes.MAX_HEADER_LIST_SIZE: 1 << 20,
            },
        )
        self.http.decoder.max_header_list_size = 1 << 20
        self._requests: dict[int, list[tuple[bytes, bytes]]] = {}
        self._bodies: dict[int, bytearray] = {}
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self._window = asyncio.Condition()
        self.is_discarding = False
        """Ignore what the client sends."""

    async def run(self) -> None:
        self.http.initiate_connection()
        self.flush()
        try:
            while data := await self._reader.read(_READ_BYTES):
                if self.is_discarding:
                    continue
                for event in self.http.receive_data(data):
                    if isinstance(event, ConnectionTerminated):
                        return
                    await self._handle(event)
                self.flush()
        except (OSError, H2Error):
            pass
        finally:
            for task in self.tasks.values():
                task.cancel()
            await asyncio.gather(*self.tasks.values(), return_exceptions=True)
            self.abort()
            with contextlib.suppress(OSError):
                await self.writer.wait_closed()

    def abort(self) -> None:
        self.writer.transport.abort()

    def flush(self) -> None:
        if not self.writer.transport.is_closing():
            self.writer.write(self.http.data_to_send())

    def send_goaway(self, last_stream: int | None = None) -> None:
        """Accept no more streams, as a server does to rebalance its clients; those up to `last_stream` continue."""
        last = self.http.highest_inbound_stream_id if last_stream is None else last_stream
        frame = b"\x00\x00\x08\x07\x00\x00\x00\x00\x00" + last.to_bytes(4, "big") + bytes(4)
        self.writer.write(frame)

    async def _handle(self, event: object) -> None:
        match event:
            case RequestReceived(stream_id=number, headers=headers):
                assert number is not None
                self._requests[number], self._bodies[number] = list(headers or ()), bytearray()
            case DataReceived(stream_id=number, data=data, flow_controlled_length=size):
                assert number is not None
                self._bodies[number] += data or b""
                self.http.acknowledge_received_data(size or 0, number)
            case StreamEnded(stream_id=number):
                assert number is not None
                self.tasks[number] = asyncio.create_task(self._relay(number))
            case StreamReset(stream_id=number):
                assert number is not None
                if (task := self.tasks.pop(number, None)) is not None:
                    task.cancel()
                await self._notify()
            case WindowUpdated():
                await self._notify()

    async def _notify(self) -> None:
        async with self._window:
            self._window.notify_all()

    async def _relay(self, number: int) -> None:
        """Send the request to the server behind, and its answer to the client."""
        writer: asyncio.StreamWriter | None = None
        try:
            reader, writer = await asyncio.open_connection(*self._backend, limit=_READ_BYTES)
            http = h11.Connection(h11.CLIENT, max_incomplete_event_size=64 * 1024)
            pseudo = {name: value for name, value in self._requests[number] if name.startswith(b":")}
            headers = [pair for pair in self._requests.pop(number) if not pair[0].startswith(b":")]
            request = h11.Request(
                method=pseudo[b":method"],
                target=pseudo[b":path"],
                headers=[(b"Host", pseudo[b":authority"]), *headers],
            )
            writer.write(http.send(request) or b"")
            if body := self._bodies.pop(number):
                writer.write(http.send(h11.Data(data=bytes(body))) or b"")
            writer.write(http.send(h11.EndOfMessage()) or b"")
            await self._relay_answer(number, http, reader)
        except (h11.ProtocolError, OSError, H2Error):
            self._reset(number)
        finally:
            if writer is not None:
                writer.transport.abort()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
            self.tasks.pop(number, None)

    async def _relay_answer(self, number: int, http: h11.Connection, reader: asyncio.StreamReader) -> None:
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                http.receive_data(await reader.read(_READ_BYTES))
            elif isinstance(event, h11.Response):
                head = [(b":status", b"%d" % event.status_code)]
                head += [(name, value) for name, value in event.headers if name not in _DROPPED_HEADERS]
                self.http.send_headers(number, head)
                self.flush()
            elif isinstance(event, h11.Data):
                await self._send(number, bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                self.http.end_stream(number)
                self.flush()
                return
            elif isinstance(event, h11.ConnectionClosed):
                raise ConnectionResetError

    async def _send(self, number: int, data: bytes) -> None:
        while data:
            size = min(self.http.local_flow_control_window(number), self.http.max_outbound_frame_size)
            if size > 0:
                self.http.send_data(number, data[:size])
                data = data[size:]
                self.flush()
                await self.writer.drain()
            else:
                async with self._window:
                    await self._window.wait()

    def _reset(self, number: int) -> None:
        with contextlib.suppress(H2Error):
            self.http.reset_stream(number, ErrorCodes.INTERNAL_ERROR)
        self.flush()
