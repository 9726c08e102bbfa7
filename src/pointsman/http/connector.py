"""Connections to one server: directly or through a proxy, with TLS or without."""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from pointsman.http.messages import READ_BYTES, ConnectFailed, HttpError, InvalidHttp, Request
from pointsman.model.addresses import address_from_text

CONNECT_TIMEOUT_SECONDS: Final = 15.0
_HAPPY_EYEBALLS_SECONDS: Final = 0.25
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_HTTP2: Final = "h2"


class Connection:
    """An open connection to the server, whatever lies between."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @property
    def speaks_http2(self) -> bool:
        """The server chose HTTP/2 during the TLS handshake."""
        tls: ssl.SSLObject | None = self.writer.get_extra_info("ssl_object")
        return tls is not None and tls.selected_alpn_protocol() == _HTTP2

    def close(self) -> None:
        """Close at once: neither the rest of a response nor the end of TLS is waited for."""
        self.writer.transport.abort()


@dataclass(frozen=True, slots=True)
class _Peer:
    """Where to connect to."""

    host: str
    port: int
    secure: bool
    authorization: str = field(default="", repr=False)

    @property
    def authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def proxy_headers(self) -> list[tuple[str, str]]:
        return [("Proxy-Authorization", self.authorization)] if self.authorization else []


@dataclass(frozen=True)
class Connector:
    """Address, proxy and TLS settings of one server. Equal connectors may share a connection."""

    server: str
    proxy: str = field(default="", repr=False)
    server_name: str = ""
    """The name that the server's certificate must have, if not the host of `server`."""
    tls: ssl.SSLContext | None = None
    """None for a server without TLS."""
    offers_http2: bool = True

    async def connect(self) -> Connection:
        """Return a connection that is ready for requests. Raises ConnectFailed."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
                return await self._connect()
        except TimeoutError as error:
            raise ConnectFailed(f"no connection within {CONNECT_TIMEOUT_SECONDS:.0f} s") from error
        except ssl.SSLCertVerificationError as error:
            message = (
                f"the server's certificate is not trusted: {error}; "
                "it must be signed by the configured CA and name the address it was reached by"
            )
            raise ConnectFailed(message) from error

    def route(self, request: Request) -> tuple[str, str, list[tuple[bytes, bytes]]]:
        """Return authority, target and headers of a request to this server."""
        parts, peer = self._server
        authority = parts.netloc.rpartition("@")[2]
        target = parts.path.rstrip("/") + request.target
        headers = request.encode_headers()
        if self._proxy is not None and not peer.secure:
            target = f"http://{authority}{target}"
            headers += [(name.encode(), value.encode()) for name, value in self._proxy.proxy_headers]
        return authority, target, headers

    @cached_property
    def _server(self) -> tuple[SplitResult, _Peer]:
        return _parse_url(self.server, "server")

    @cached_property
    def _proxy(self) -> _Peer | None:
        return _parse_url(self.proxy, "proxy")[1] if self.proxy else None

    async def _connect(self) -> Connection:
        _, server = self._server
        name = self.server_name or server.host
        if self.tls is not None:
            self.tls.set_alpn_protocols([_HTTP2, "http/1.1"] if self.offers_http2 else ["http/1.1"])
        if self._proxy is None:
            return await _open(server, self.tls, name)
        proxy_tls = ssl.create_default_context() if self._proxy.secure else None
        connection = await _open(self._proxy, proxy_tls, self._proxy.host)
        if self.tls is not None:
            try:
                await _tunnel(connection, self._proxy, server.authority)
                await connection.writer.start_tls(self.tls, server_hostname=name)
            except BaseException:
                connection.close()
                raise
        return connection


def _parse_url(url: str, role: str) -> tuple[SplitResult, _Peer]:
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError as error:
        raise ConnectFailed(f"the address of the {role} is not a URL") from error
    if parts.scheme not in _DEFAULT_PORTS or not host:
        raise ConnectFailed(f"the address of the {role} must be http://HOST:PORT or https://HOST:PORT")
    name, password = unquote(parts.username or ""), unquote(parts.password or "")
    pair = base64.b64encode(f"{name}:{password}".encode()).decode() if name or password else ""
    secure = parts.scheme == "https"
    return parts, _Peer(host, port or _DEFAULT_PORTS[parts.scheme], secure, f"Basic {pair}" if pair else "")


async def _open(peer: _Peer, tls: ssl.SSLContext | None, server_name: str) -> Connection:
    try:
        reader, writer = await asyncio.open_connection(
            peer.host,
            peer.port,
            ssl=tls,
            server_hostname=server_name if tls is not None else None,
            limit=READ_BYTES,
            happy_eyeballs_delay=_HAPPY_EYEBALLS_SECONDS if address_from_text(peer.host) is None else None,
        )
    except ssl.SSLCertVerificationError:
        raise
    except OSError as error:
        number = 0 if isinstance(error, ssl.SSLError) else error.errno or 0
        detail = os.strerror(number) if number > 0 else str(error)
        raise ConnectFailed(f"cannot connect to {peer.authority}: {detail}") from error
    _enable_keepalive(writer)
    return Connection(reader, writer)


async def _tunnel(connection: Connection, proxy: _Peer, authority: str) -> None:
    """Let the proxy connect to the server; everything after its answer is TLS."""
    from pointsman.http.http1 import send_connect

    name = f"proxy {proxy.authority}"
    try:
        status = await send_connect(connection, authority, proxy.proxy_headers)
    except InvalidHttp as error:
        raise ConnectFailed(f"{name}: not valid HTTP: {error}") from error
    except HttpError as error:
        raise ConnectFailed(f"{name}: {error}") from error
    if not 200 <= status < 300:
        raise ConnectFailed(f"{name}: HTTP {status}")


def _enable_keepalive(writer: asyncio.StreamWriter) -> None:
    """Let the kernel detect within half a minute that the peer is gone: a quiet watch carries no data for minutes."""
    peer: socket.socket | None = writer.get_extra_info("socket")
    if peer is None or peer.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with suppress(OSError):
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000)
