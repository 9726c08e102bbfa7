"""HTTP/1.1 with h11: one request on a connection of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import h11

from pointsman.http.connector import Connection, Connector
from pointsman.http.messages import (
    MAX_HEAD_BYTES,
    READ_BYTES,
    ConnectionLost,
    Headers,
    InvalidHttp,
    Request,
    Response,
)

NO_RESPONSE: Final = "the connection was closed without a response"
CUT_SHORT: Final = "the connection was closed before the end of the response"


class Http1Exchange:
    """One request and its response."""

    def __init__(self, connection: Connection, connector: Connector, on_close: Callable[[], None]) -> None:
        self._connection, self._connector, self._on_close = connection, connector, on_close
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)

    async def send(self, request: Request) -> Response:
        """Send the request and wait for the headers of the response. Raises HttpError."""
        authority, target, headers = self._connector.route(request)
        head = h11.Request(
            method=request.method,
            target=target,
            headers=[(b"Host", authority.encode()), *headers, (b"Connection", b"close")],
        )
        events: list[h11.Event] = [head]
        if request.body:
            events.append(h11.Data(data=request.body))
        events.append(h11.EndOfMessage())
        writer = self._connection.writer
        writer.write(b"".join([self._http.send(event) or b"" for event in events]))
        await writer.drain()
        answer = await _read_head(self._http, self._connection.reader)
        return Response(
            int(answer.status_code),
            answer.reason.decode("latin-1"),
            Headers(answer.headers),
            receive=self._receive,
            close=self.close,
            accepts_gzip=request.accepts_gzip,
        )

    def close(self) -> None:
        self._connection.close()
        self._on_close()

    async def _receive(self) -> bytes:
        """Return all data that has arrived, at least a byte; b"" at the end. Raises InvalidHttp or ConnectionLost.

        Data that arrived together is returned together, however small the chunks of the peer are.
        """
        found: list[bytes | bytearray] = []
        while self._http.their_state is h11.SEND_BODY:
            event = _take_event(self._http)
            if isinstance(event, h11.Data):
                found.append(event.data)
            elif event is None and found:
                break
            elif event is None:
                self._http.receive_data(await self._connection.reader.read(READ_BYTES))
        return b"".join(found)


async def send_connect(connection: Connection, authority: str, headers: list[tuple[str, str]]) -> int:
    """Send CONNECT, so that a proxy connects to `authority`; return the status of its answer. Raises HttpError."""
    http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
    request = h11.Request(method="CONNECT", target=authority, headers=[("Host", authority), *headers])
    connection.writer.write(http.send(request))
    connection.writer.write(http.send(h11.EndOfMessage()))
    return int((await _read_head(http, connection.reader)).status_code)


async def _read_head(http: h11.Connection, reader: asyncio.StreamReader) -> h11.Response:
    """Return status and headers of the response; informational responses are skipped."""
    while True:
        event = _take_event(http)
        if event is None:
            http.receive_data(await reader.read(READ_BYTES))
        elif isinstance(event, h11.Response):
            return event


def _take_event(http: h11.Connection) -> h11.Event | None:
    """Return the next event in the received data; None when more is needed."""
    in_body = http.their_state is h11.SEND_BODY
    try:
        event = http.next_event()
    except h11.RemoteProtocolError as error:
        _, is_closed = http.trailing_data
        if is_closed:
            raise ConnectionLost(CUT_SHORT if in_body else NO_RESPONSE) from error
        raise InvalidHttp(str(error)) from error
    if event is h11.NEED_DATA:
        return None
    if isinstance(event, h11.ConnectionClosed) or not isinstance(event, h11.Event):
        raise ConnectionLost(NO_RESPONSE)
    return event
