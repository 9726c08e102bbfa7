"""HTTP/2 with h2: many requests on one connection, each a stream with a flow-control window of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Final

from h2.config import H2Configuration
from h2.connection import ConnectionInputs, H2Connection, H2ConnectionStateMachine
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RemoteSettingsChanged,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import H2Error
from h2.settings import SettingCodes, Settings

from pointsman.http.connector import Connection, Connector
from pointsman.http.messages import (
    MAX_HEAD_BYTES,
    READ_BYTES,
    ConnectionLost,
    Headers,
    HttpError,
    InvalidHttp,
    NotProcessed,
    Request,
    Response,
)

STREAM_WINDOW_BYTES: Final = 512 * 1024
"""Unread data of one response."""
_CONNECTION_WINDOW_BYTES: Final = 1 << 30
"""Large enough that one response that is not read never blocks the others."""
PING_AFTER_SECONDS = 30.0
"""Without any frame from the server, as client-go does."""
PING_TIMEOUT_SECONDS = 15.0


class Http2Connection:
    """A connection shared by all requests of one connector."""

    def __init__(self, connection: Connection, connector: Connector, on_close: Callable[[], None]) -> None:
        self.connector = connector
        self._connection = connection
        self._on_close = on_close
        self._http = _ClientConnection()
        self._streams: dict[int, _Stream] = {}
        self._is_draining = False
        """The server accepts no new streams on this connection."""
        self._window_opened = asyncio.Event()
        self._settings_received = asyncio.Event()
        self._failure: HttpError | None = None
        self._http.start()
        self._flush()
        self._receiving = asyncio.create_task(self._receive_frames(), name="http2")

    @property
    def has_capacity(self) -> bool:
        """Another request may be sent on this connection."""
        return (
            not self._is_draining and len(self._streams) < self._http.remote_settings.max_concurrent_streams
        )

    async def wait_ready(self) -> None:
        """Wait for the settings of the server: they limit the streams. Raises HttpError."""
        await self._settings_received.wait()
        if self._failure is not None:
            raise self._failure

    async def send(self, request: Request) -> Response:
        """Send the request and wait for the headers of the response. Raises HttpError."""
        authority, target, headers = self.connector.route(request)
        if self._is_draining:
            raise NotProcessed("the server is closing the connection")
        number = self._http.get_next_available_stream_id()
        stream = self._streams[number] = _Stream()
        try:
            pseudo = [
                (b":method", request.method.encode()),
                (b":scheme", b"https"),
                (b":authority", authority.encode()),
                (b":path", target.encode()),
            ]
            lower = [(name.lower(), value) for name, value in headers]
            self._http.send_headers(number, pseudo + lower, end_stream=not request.body)
            self._flush()
            if request.body:
                await self._send_body(number, stream, request.body)
            head = Headers(await stream.wait_for_head())
            status = _parse_status(head)
        except BaseException:
            self._close_stream(number)
            raise
        return Response(
            status,
            _find_phrase(status),
            head,
            receive=lambda: self._receive(number, stream),
            close=lambda: self._close_stream(number),
            accepts_gzip=request.accepts_gzip,
        )

    def drain(self) -> None:
        """Accept no further requests; close once the open responses are complete."""
        self._is_draining = True
        if not self._streams:
            self.close()

    def close(self) -> None:
        """Close at once; open responses fail."""
        self._receiving.cancel()
        self._fail(lambda: ConnectionLost("the connection was closed"))

    async def _send_body(self, number: int, stream: _Stream, body: bytes) -> None:
        rest = memoryview(body)
        while rest:
            size = min(
                self._http.local_flow_control_window(number), self._http.max_outbound_frame_size, len(rest)
            )
            if size:
                self._http.send_data(number, bytes(rest[:size]), end_stream=size == len(rest))
                self._flush()
                rest = rest[size:]
            else:
                self._window_opened.clear()
                await self._window_opened.wait()
            if stream.is_over:
                return

    async def _receive(self, number: int, stream: _Stream) -> bytes:
        """Return all data that has arrived, at least a byte; b"" at the end. Raises ConnectionLost."""
        data, size = await stream.take()
        if size and number in self._streams:
            self._acknowledge(number, size)
        return data

    async def _receive_frames(self) -> None:
        reader = self._connection.reader
        try:
            while True:
                data = await self._read(reader)
                if not data:
                    raise ConnectionLost("the server closed the connection before the end of the response")
                for event in self._http.receive_data(data):
                    self._handle(event)
                self._flush()
                async with asyncio.timeout(PING_TIMEOUT_SECONDS):
                    await self._connection.writer.drain()
        except TimeoutError as error:
            message = str(error) if error.errno else f"no answer to a ping within {PING_TIMEOUT_SECONDS:g} s"
            self._fail(lambda: ConnectionLost(message))
        except (OSError, HttpError) as error:
            message = str(error)
            self._fail(lambda: ConnectionLost(message))
        except Exception as error:  # noqa: BLE001  whatever the frames caused, no response may wait for ever
            message = str(error) or type(error).__name__
            self._flush()
            self._fail(lambda: InvalidHttp(message))

    async def _read(self, reader: asyncio.StreamReader) -> bytes:
        """Return received bytes; after a pause, a ping must bring some. Raises TimeoutError when it does not."""
        try:
            async with asyncio.timeout(PING_AFTER_SECONDS):
                return await reader.read(READ_BYTES)
        except TimeoutError as error:
            if error.errno:
                raise
        self._http.ping(b"pointsmn")
        self._flush()
        async with asyncio.timeout(PING_TIMEOUT_SECONDS):
            return await reader.read(READ_BYTES)

    def _handle(self, event: Event) -> None:
        if isinstance(event, DataReceived):
            stream = self._streams.get(event.stream_id)
            if stream is None:
                self._acknowledge(event.stream_id, event.flow_controlled_length)
            else:
                stream.add_data(event.data, event.flow_controlled_length)
        elif isinstance(event, ResponseReceived):
            if (stream := self._streams.get(event.stream_id)) is not None:
                stream.set_head(event.headers)
        elif isinstance(event, StreamEnded):
            if (stream := self._streams.get(event.stream_id)) is not None:
                stream.end()
        elif isinstance(event, StreamReset):
            self._handle_reset(event)
        elif isinstance(event, ConnectionTerminated):
            self._handle_goaway(event)
        elif isinstance(event, WindowUpdated):
            self._window_opened.set()
        elif isinstance(event, RemoteSettingsChanged):
            self._settings_received.set()
            self._window_opened.set()

    def _handle_reset(self, event: StreamReset) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is None:
            return
        message = f"the server reset the stream ({_format_error(event.error_code)})"
        is_refused = event.error_code == ErrorCodes.REFUSED_STREAM
        stream.end((NotProcessed if is_refused else ConnectionLost)(message))
        self._window_opened.set()

    def _handle_goaway(self, event: ConnectionTerminated) -> None:
        """End the streams after the last one that the server names, which were not processed; the others continue."""
        message = f"the server closed the connection (GOAWAY, {_format_error(event.error_code)})"
        last = event.last_stream_id or 0
        for number, stream in self._streams.items():
            if number > last:
                stream.end(NotProcessed(message))
        self._window_opened.set()
        self.drain()

    def _acknowledge(self, number: int, size: int) -> None:
        """Let the server send as much again."""
        if size:
            self._http.acknowledge_received_data(size, number)
            self._flush()

    def _close_stream(self, number: int) -> None:
        """Forget a stream; one that has not ended is cancelled. Unread data is acknowledged for the connection."""
        stream = self._streams.pop(number, None)
        if stream is None or self._connection.writer.transport.is_closing():
            return
        with suppress(H2Error):
            if not stream.is_over:
                self._http.reset_stream(number, ErrorCodes.CANCEL)
            self._acknowledge(number, stream.discard())
        self._flush()
        if self._is_draining:
            self.drain()

    def _fail(self, make_error: Callable[[], HttpError]) -> None:
        self._is_draining = True
        self._failure = make_error()
        for stream in self._streams.values():
            stream.end(make_error())
        self._settings_received.set()
        self._window_opened.set()
        self._connection.close()
        self._on_close()

    def _flush(self) -> None:
        data = self._http.data_to_send()
        if data and not self._connection.writer.transport.is_closing():
            self._connection.writer.write(data)


class _Stream:
    """The response to one request while it arrives."""

    def __init__(self) -> None:
        self.is_over = False
        self._head: list[tuple[bytes, bytes]] | None = None
        self._chunks: list[bytes] = []
        self._unacknowledged = 0
        self._error: HttpError | None = None
        self._changed = asyncio.Event()

    def set_head(self, headers: list[tuple[bytes, bytes]]) -> None:
        self._head = headers
        self._changed.set()

    def add_data(self, data: bytes, size: int) -> None:
        """`size` is what flow control counts: the data and its padding."""
        self._unacknowledged += size
        if data:
            self._chunks.append(data)
            self._changed.set()

    def end(self, error: HttpError | None = None) -> None:
        if not self.is_over:
            self.is_over = True
            self._error = error
        self._changed.set()

    async def wait_for_head(self) -> list[tuple[bytes, bytes]]:
        while self._head is None:
            if self.is_over:
                raise self._error or InvalidHttp("a stream ended without headers")
            self._changed.clear()
            await self._changed.wait()
        return self._head

    async def take(self) -> tuple[bytes, int]:
        """Return what arrived since the last call, and its size for flow control; b"" at the end."""
        while not self._chunks:
            if self.is_over:
                if self._error is not None:
                    raise self._error
                return b"", 0
            self._changed.clear()
            await self._changed.wait()
        data = b"".join(self._chunks)
        self._chunks.clear()
        return data, self.discard()

    def discard(self) -> int:
        """Return the size of what has arrived and was not acknowledged."""
        size, self._unacknowledged = self._unacknowledged, 0
        return size


class _StateMachine(H2ConnectionStateMachine):
    """Lets streams continue after a GOAWAY from the server, as the protocol requires and h2 does not do."""

    def process_input(self, input_: ConnectionInputs) -> list[Event]:
        return [] if input_ is ConnectionInputs.RECV_GOAWAY else super().process_input(input_)


class _ClientConnection(H2Connection):
    """h2 with our settings."""

    def __init__(self) -> None:
        super().__init__(H2Configuration(client_side=True, header_encoding=None))
        self.state_machine = _StateMachine()
        self.local_settings = Settings(
            client=True,
            initial_values={
                SettingCodes.ENABLE_PUSH: 0,
                SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW_BYTES,
                SettingCodes.MAX_HEADER_LIST_SIZE: MAX_HEAD_BYTES,
            },
        )

    def start(self) -> None:
        self.initiate_connection()
        self.increment_flow_control_window(_CONNECTION_WINDOW_BYTES - self.inbound_flow_control_window)

    def clear_outbound_data_buffer(self) -> None:
        """Keep what is to be sent: h2 calls this at a GOAWAY, after which streams continue."""


def _parse_status(headers: Headers) -> int:
    text = headers.get(":status", "")
    if not (len(text) == 3 and text.isascii() and text.isdigit()):
        raise InvalidHttp("the response has no valid status")
    return int(text)


def _find_phrase(status: int) -> str:
    """Return the usual phrase of a status, since HTTP/2 sends none; empty for an unknown status."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def _format_error(code: ErrorCodes | int | None) -> str:
    return code.name if isinstance(code, ErrorCodes) else f"error {code}"
