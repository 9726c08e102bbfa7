"""Opens connections to one API server: directly or through a proxy, with TLS or without."""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

import h11

from pointsman.model.addresses import address_from_text

CONNECT_SECONDS: Final = 15.0
LARGEST_HEAD: Final = 64 * 1024
"""Bytes of an answer's status line and headers."""
READ_BYTES: Final = 256 * 1024
_SECOND_ADDRESS_SECONDS: Final = 0.25
"""After which a name's next address is tried as well: one family may lead nowhere."""
_BROKEN: Final = "the connection broke in the middle of the answer"
_NO_ANSWER: Final = "the server closed the connection without an answer"
_PORTS: Final = {"http": 80, "https": 443}
_TURNS_TO_READ: Final = 2
"""Of the event loop, until what the kernel has received is in a reader's buffer."""


class NoConnection(Exception):
    """No connection came about; the message says why, without a URL that could hold a password."""


class NotHttp(Exception):
    """The peer sent something other than HTTP/1.1."""


@dataclass(frozen=True, slots=True)
class _Peer:
    host: str
    port: int
    secure: bool
    authorization: str = field(default="", repr=False)

    @property
    def authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Line:
    """An open connection to the server, whatever lies between."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @property
    def open(self) -> bool:
        return not (self.writer.transport.is_closing() or self.reader.at_eof())

    async def silent(self) -> bool:
        """Whether the server waits to be asked, as it must. If not, what it said answers no request: the line is closed."""
        waits = False
        try:
            for _ in range(_TURNS_TO_READ):
                await asyncio.sleep(0)
            async with asyncio.timeout(0):
                await self.reader.read(1)
        except TimeoutError:
            waits = self.open
        except OSError:
            pass
        finally:
            if not waits:
                self.close()
        return waits

    def close(self) -> None:
        """At once: neither the rest of an answer nor the end of TLS is waited for."""
        self.writer.transport.abort()


class Dialler:
    """Knows the way to one server."""

    def __init__(self, server: str, *, proxy: str = "", server_name: str = "") -> None:
        """`server_name` is what the server's certificate must name, if that is not the server's host.

        Raises NoConnection for an address that leads nowhere.
        """
        parts, self._server = _peer(server, "the server")
        self._proxy = _peer(proxy, "the proxy")[1] if proxy else None
        self._server_name = server_name or self._server.host
        prefix = parts.path.rstrip("/")
        self.host_header = parts.netloc.rpartition("@")[2]
        self.target_prefix = (
            f"http://{self.host_header}{prefix}" if self._proxy and not self._server.secure else prefix
        )
        """What comes before the path in a request: a proxy must be told the server, too."""
        self.proxy_headers: tuple[tuple[str, str], ...] = (
            _authorization(self._proxy) if self._proxy and not self._server.secure else ()
        )

    async def dial(self, tls: ssl.SSLContext | None) -> Line:
        """A connection that is ready for requests. Raises NoConnection, NotHttp or ssl.SSLCertVerificationError."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await self._dial(tls)
        except TimeoutError as error:
            raise NoConnection(f"no connection within {CONNECT_SECONDS:.0f} s") from error

    async def _dial(self, tls: ssl.SSLContext | None) -> Line:
        if self._proxy is None:
            return await _connected(self._server, tls, self._server_name)
        theirs = ssl.create_default_context() if self._proxy.secure else None
        line = await _connected(self._proxy, theirs, self._proxy.host)
        if tls is not None:
            try:
                await _tunnel(line, self._proxy, self._server.authority)
                await line.writer.start_tls(tls, server_hostname=self._server_name)
            except BaseException:
                line.close()
                raise
        return line


def _peer(url: str, whose: str) -> tuple[SplitResult, _Peer]:
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError as error:
        raise NoConnection(f"the address of {whose} is not a URL") from error
    if parts.scheme not in _PORTS or not host:
        raise NoConnection(f"the address of {whose} must be http://HOST:PORT or https://HOST:PORT")
    name, password = unquote(parts.username or ""), unquote(parts.password or "")
    pair = base64.b64encode(f"{name}:{password}".encode()).decode() if name or password else ""
    secure = parts.scheme == "https"
    return parts, _Peer(host, port or _PORTS[parts.scheme], secure, f"Basic {pair}" if pair else "")


def _authorization(proxy: _Peer) -> tuple[tuple[str, str], ...]:
    return (("Proxy-Authorization", proxy.authorization),) if proxy.authorization else ()


async def _connected(peer: _Peer, tls: ssl.SSLContext | None, server_name: str) -> Line:
    try:
        reader, writer = await asyncio.open_connection(
            peer.host,
            peer.port,
            ssl=tls,
            server_hostname=server_name if tls is not None else None,
            limit=READ_BYTES,
            happy_eyeballs_delay=_SECOND_ADDRESS_SECONDS if address_from_text(peer.host) is None else None,
        )
    except ssl.SSLCertVerificationError:
        raise
    except OSError as error:
        number = 0 if isinstance(error, ssl.SSLError) else error.errno or 0
        detail = os.strerror(number) if number > 0 else str(error)
        raise NoConnection(f"cannot connect to {peer.authority}: {detail}") from error
    _notice_dead_peers(writer)
    return Line(reader, writer)


async def _tunnel(line: Line, proxy: _Peer, authority: str) -> None:
    """Let the proxy connect to the server; what it passes on from then on is for TLS alone."""
    http = h11.Connection(h11.CLIENT, max_incomplete_event_size=LARGEST_HEAD)
    request = h11.Request(
        method="CONNECT", target=authority, headers=[("Host", authority), *_authorization(proxy)]
    )
    line.writer.write(http.send(request))
    line.writer.write(http.send(h11.EndOfMessage()))
    named = f"the proxy {proxy.authority}"
    try:
        status = (await answer_head(http, line.reader)).status_code
    except ConnectionError as error:
        raise NoConnection(f"{named} closed the connection without an answer") from error
    except NotHttp as error:
        raise NoConnection(f"{named} sent no valid HTTP: {error}") from error
    if not 200 <= status < 300:
        raise NoConnection(f"{named} answered HTTP {status}")


async def answer_head(http: h11.Connection, reader: asyncio.StreamReader) -> h11.Response:
    """Status and headers of the peer's answer. Raises NotHttp, or ConnectionError when there is none."""
    event = await next_event(http, reader)
    while isinstance(event, h11.InformationalResponse):
        event = await next_event(http, reader)
    assert isinstance(event, h11.Response)
    return event


async def next_event(http: h11.Connection, reader: asyncio.StreamReader) -> h11.Event:
    """The next thing that the peer says. Raises NotHttp, or ConnectionError when it says nothing more."""
    while (event := _event_in(http)) is None:
        http.receive_data(await reader.read(READ_BYTES))
    return event


async def next_data(http: h11.Connection, reader: asyncio.StreamReader) -> bytes:
    """All that has arrived of a body since the last call, at least a byte; nothing once it is complete. Raises as above.

    However small the chunks are that a peer makes of it, what came together is handled together.
    """
    found: list[bytes | bytearray] = []
    while http.their_state is h11.SEND_BODY:
        event = _event_in(http)
        if isinstance(event, h11.Data):
            found.append(event.data)
        elif event is None and found:
            break
        elif event is None:
            http.receive_data(await reader.read(READ_BYTES))
    return b"".join(found)


def _event_in(http: h11.Connection) -> h11.Event | None:
    """The next event in what has arrived; None when more must arrive first."""
    begun = http.their_state is h11.SEND_BODY
    try:
        event = http.next_event()
    except h11.RemoteProtocolError as error:
        _, ended = http.trailing_data
        if ended:
            raise ConnectionError(_BROKEN if begun else _NO_ANSWER) from error
        raise NotHttp(str(error)) from error
    if event is h11.NEED_DATA:
        return None
    if isinstance(event, h11.ConnectionClosed) or not isinstance(event, h11.Event):
        raise ConnectionError(_NO_ANSWER)
    return event


def _notice_dead_peers(writer: asyncio.StreamWriter) -> None:
    """Let the kernel find out within half a minute that the peer vanished without a word.

    A quiet watch may rightly carry nothing for minutes, so reading alone cannot tell silence from absence.
    """
    peer: socket.socket | None = writer.get_extra_info("socket")
    if peer is None or peer.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with suppress(OSError):
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000)
