"""HTTP/1.1: listening sockets, and on each connection a loop that reads a request, has it answered and sends the response.

h11 implements the protocol; what is decided here is how much a client may take of this process. Nothing is read ahead: while
a request is answered or its response sent, further requests wait in the kernel. So a connection holds at most one read
and one response, and every step has the idle timeout. Accepting is done here and not by asyncio, which logs a traceback for
every attempt that lacks a descriptor.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import struct
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any, Final, Protocol

import h11
import msgspec

from pointsman.model.addresses import address_from_text
from pointsman.serve.connections import Connections, ServingError
from pointsman.serve.messages import (
    Client,
    ClientCertificate,
    Handler,
    Request,
    Response,
    split_target,
    text_response,
)

MAX_HEAD_BYTES: Final = 16384
"""Request line and headers together; a browser may send cookies of other servers on localhost."""
MAX_BODY_BYTES: Final = 4096
"""The only body that a handler reads is a number."""

_READ_BYTES: Final = 16384
_SEND_BYTES: Final = 65536
"""What a client must read within the idle timeout."""
_LINGER_SECONDS: Final = 1.0
"""Closing while a refused client still sends would reset the connection before it has read why."""
_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_CLOSE_TIMEOUT_SECONDS: Final = 1.0
_ACCEPT_RETRY_SECONDS: Final = 0.5
_ACCEPT_BATCH: Final = 16
"""Connections accepted before other work has its turn."""
_CREDENTIALS: Final = struct.Struct("3i")


class Stream(Protocol):
    """Reads and writes one connection; the socket is closed by its owner."""

    @property
    def needs_handshake(self) -> bool:
        """Keys must be agreed on before anything else."""

    @property
    def is_stale(self) -> bool:
        """New connections would be accepted under other certificates."""

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


class Connection:
    """An accepted connection, served by a task until either side closes it; `on_end` is called when nothing is left of it."""

    def __init__(
        self,
        sock: socket.socket,
        client: Client,
        handler: Handler,
        connections: Connections,
        on_end: Callable[[Connection], None],
        open_stream: OpenStream = PlainStream,
    ) -> None:
        self._sock, self._client, self._handler = sock, client, handler
        self._connections, self._on_end = connections, on_end
        self._stream = open_stream(sock)
        self._loop = asyncio.get_running_loop()
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._answering = False
        self._is_head = False
        """The current request needs no body."""
        self._last = False
        """The connection ends with the current response."""
        self._task = self._loop.create_task(self._serve(), name="http connection")
        self._task.add_done_callback(self._on_ended)

    def abort(self) -> None:
        """Close it at once, in whatever state it is."""
        self._task.cancel()

    def finish(self) -> None:
        """Close it as soon as no request is being answered."""
        if self._answering:
            self._last = True
        else:
            self._task.cancel()

    def _on_ended(self, task: asyncio.Task[None]) -> None:
        self._sock.close()
        self._connections.remove(self)
        self._on_end(self)
        if not task.cancelled():
            task.result()

    async def _serve(self) -> None:
        answered_at = float("-inf")
        with contextlib.suppress(TimeoutError, OSError):
            try:
                if self._stream.needs_handshake:
                    await self._handshake()
                while not self._last:
                    async with asyncio.timeout(self._connections.idle_seconds):
                        request = await self._read_request()
                    if request is None:
                        return
                    await self._connections.throttle(self, answered_at)
                    self._answering = True
                    self._last |= self._stream.is_stale
                    head, body = await self._answer(request)
                    answered_at = self._connections.mark_idle(self)
                    await self._send(head, body)
                    self._answering = False
                    if self._http.our_state is not h11.DONE:
                        return
                    self._http.start_next_cycle()
            except h11.RemoteProtocolError as error:
                await self._refuse(error.error_status_hint)

    async def _handshake(self) -> None:
        """Agree on keys and learn who the client is; those of remote clients, which cost more than a request, are throttled."""
        await self._connections.throttle(self, math.inf)
        try:
            async with asyncio.timeout(self._connections.idle_seconds):
                certificate = await self._stream.handshake()
        except OSError as error:
            if not isinstance(error, ConnectionError | TimeoutError):
                self._connections.errors.report(ServingError.MALFORMED, error, client=self._client.text)
            raise
        self._client = msgspec.structs.replace(self._client, certificate=certificate)

    async def _read_request(self) -> Request | None:
        """Read a complete request; None when the client has closed. Raises RemoteProtocolError."""
        head, body = None, bytearray()
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Request):
                head, self._is_head = event, event.method == b"HEAD"
                _check_head(head)
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > MAX_BODY_BYTES:
                    raise h11.RemoteProtocolError("body too long", 413)
            elif isinstance(event, h11.EndOfMessage):
                assert head is not None
                # With both, the body may have been framed differently on the way here (RFC 9112, 6.1).
                self._last |= bool(
                    _find_header(head, b"content-length") and _find_header(head, b"transfer-encoding")
                )
                path, query = split_target(head.target.decode("ascii"))
                host, authorization = (
                    _find_header(head, name).decode("latin-1") for name in (b"host", b"authorization")
                )
                method = head.method.decode("ascii")
                return Request(method, path, query, host, bytes(body), self._client, authorization)
            else:
                if self._http.they_are_waiting_for_100_continue:
                    go_on = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
                    await self._stream.send(self._http.send(go_on) or b"")
                received = await self._receive()
                if not received:
                    return None
                self._http.receive_data(received)

    async def _receive(self) -> bytes:
        received = await self._stream.receive(_READ_BYTES)
        await asyncio.sleep(0)  # what has already arrived is read without a pause
        return received

    async def _answer(self, request: Request) -> tuple[h11.Response, bytes]:
        """Call the handler; a client that resets the connection cancels it."""
        self._connections.mark_busy(self)
        self._loop.add_reader(self._sock, self._check_reset)
        try:
            return self._prepare(await self._handler(request))
        except Exception as error:  # noqa: BLE001  whatever fails, the client gets a response and the log a traceback
            self._connections.errors.report(ServingError.HANDLER_FAILED, error)
            return self._prepare(text_response("internal error\n", 500))
        finally:
            self._loop.remove_reader(self._sock)

    def _check_reset(self) -> None:
        self._loop.remove_reader(self._sock)
        try:
            self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            self._loop.add_reader(self._sock, self._check_reset)
        except OSError:
            self.abort()

    async def _refuse(self, status: int) -> None:
        """Send a last response and discard what else the client sends."""
        self._connections.errors.report(ServingError.MALFORMED, client=self._client.text)
        self._last = True
        await self._send(*self._prepare(text_response(f"{_find_phrase(status)}\n", status)))
        self._sock.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(_LINGER_SECONDS):
            while await self._receive():
                pass

    def _prepare(self, response: Response) -> tuple[h11.Response, bytes]:
        """Build what h11 sends, which raises for a response that is not HTTP."""
        headers = [
            *response.headers.items(),
            ("Content-Length", str(len(response.body))),
            ("Date", format_http_date(time.time())),
        ]
        if self._last:
            headers.append(("Connection", "close"))
        reason = _find_phrase(response.status).encode()
        return h11.Response(status_code=response.status, headers=headers, reason=reason), response.body

    async def _send(self, head: h11.Response, body: bytes) -> None:
        """Send a response; raises TimeoutError when the client stops reading it."""
        first = self._http.send(head) or b""
        if self._http.their_http_version == b"1.0":
            first = first.replace(b"HTTP/1.1", b"HTTP/1.0", 1)
        if not self._is_head:
            first += self._http.send(h11.Data(data=body)) or b""
        self._http.send(h11.EndOfMessage())
        unsent = memoryview(first)
        self._connections.set_unsent(self, len(unsent))
        while unsent:
            async with asyncio.timeout(self._connections.idle_seconds):
                await self._stream.send(unsent[:_SEND_BYTES])
            unsent = unsent[_SEND_BYTES:]
        self._connections.set_unsent(self, 0)
        await asyncio.sleep(0)


def format_http_date(moment: float) -> str:
    """Write a Unix time as HTTP does, whatever the locale."""
    now = time.gmtime(moment)
    clock = f"{now.tm_hour:02d}:{now.tm_min:02d}:{now.tm_sec:02d}"
    return f"{_DAYS[now.tm_wday]}, {now.tm_mday:02d} {_MONTHS[now.tm_mon - 1]} {now.tm_year} {clock} GMT"


def _check_head(head: h11.Request) -> None:
    """Raise for what no handler should see."""
    lines = sum(len(name) + len(value) + len(": \r\n") for name, value in head.headers)
    if len(head.method) + len(head.target) + len("  HTTP/1.1\r\n\r\n") + lines > MAX_HEAD_BYTES:
        raise h11.RemoteProtocolError("head too long", 431)
    if not head.http_version.startswith(b"1."):
        raise h11.RemoteProtocolError("not HTTP/1", 505)
    if head.method == b"CONNECT":
        raise h11.RemoteProtocolError("CONNECT is not supported", 405)
    if int(_find_header(head, b"content-length") or 0) > MAX_BODY_BYTES:
        raise h11.RemoteProtocolError("body too long", 413)


def _find_header(head: h11.Request, wanted: bytes) -> bytes:
    return next((value for name, value in head.headers if name == wanted), b"")


def _find_phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


class HttpServer:
    """Serves until closed; all its connections end with it."""

    def __init__(
        self, handler: Handler, connections: Connections, open_stream: OpenStream = PlainStream
    ) -> None:
        self._handler, self._connections, self._open_stream = handler, connections, open_stream
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
                self._connections.errors.report(ServingError.ACCEPT_FAILED, error)
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
        connection = Connection(
            sock, client, self._handler, self._connections, self._on_end, self._open_stream
        )
        self._open.add(connection)
        if not self._connections.admit(connection, is_local=client.is_local, client=client.text):
            connection.abort()

    def _on_end(self, connection: Connection) -> None:
        self._open.discard(connection)
        if not self._open:
            self._all_ended.set()


def _identify(sock: socket.socket, peer: Any) -> Client:
    """Return the client of a connection. It is local at the control socket, on loopback, and with the node's own address at both ends."""
    if sock.family == socket.AF_UNIX:
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return Client(user=_CREDENTIALS.unpack(credentials)[1], is_local=True)
    text = str(peer[0])
    client = Client(text, address_from_text(text.partition("%")[0]))
    return Client(text, client.address, is_local=client.is_loopback or text == sock.getsockname()[0])
