"""HTTP to one API server: the only file that imports the HTTP client.

Two calls, `request` (whole answers) and `stream` (chunks as they arrive), so that another client could take
its place. Whatever goes wrong leaves here as a KubeError with a message fit for a log: no header, no token,
no proxy password.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple

import aiohttp
import msgspec

from pointsman import __version__
from pointsman.errors import Gone, KubeError, Throttled, Unauthorized
from pointsman.kube.access import Access
from pointsman.kube.auth import Credentials
from pointsman.kube.proxyenv import proxy_from_environment
from pointsman.kube.ratelimit import Clock, RateLimit, Sleep

_ERROR_BODY_LIMIT = 64 * 1024
_CONNECT_SECONDS = 15.0
_DEFAULT_RETRY_AFTER_SECONDS = 1.0


class Response(NamedTuple):
    """A complete answer with a status below 400."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Idle(KubeError):
    """An answer had begun, then gave no data for as long as was allowed; the peer may be gone."""


class _Status(msgspec.Struct):
    """metav1.Status, as far as a message needs it"""

    message: str = ""


class Transport:
    """Requests to one API server under one identity, at most `qps` per second after a burst of `burst`."""

    def __init__(
        self,
        access: Access,
        *,
        qps: float = 5.0,
        burst: int = 10,
        environ: Mapping[str, str] | None = None,
        credentials: Credentials | None = None,
        on_answer: Callable[[str, int], None] = lambda _method, _status: None,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._access = access
        self._credentials = credentials or Credentials(access)
        environment = os.environ if environ is None else environ
        self._proxy = access.proxy_url or proxy_from_environment(access.server, environment)
        self._rate = RateLimit(qps, burst, clock=clock, sleep=sleep)
        self._on_answer = on_answer
        self._session: aiohttp.ClientSession | None = None

    @property
    def server(self) -> str:
        return self._access.server

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        timeout: float = 60.0,  # noqa: ASYNC109  an idle timeout of the socket, not a deadline
    ) -> Response:
        """The whole answer; raises a KubeError for statuses of 400 and above.

        `timeout` bounds every single wait for data, not the whole transfer: a long list may take long.
        """
        encoding = "identity" if self._access.disable_compression else "gzip"
        headers = {"Accept": "application/json", "Accept-Encoding": encoding}
        if body is not None:
            headers["Content-Type"] = content_type
        async with self._exchange(method, path, params, headers, body, timeout) as response:
            return Response(response.status, response.headers, await response.read())

    @asynccontextmanager
    async def stream(
        self, path: str, *, params: Mapping[str, str] | None = None, idle_timeout: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Opens a stream; the value is an iterator over its chunks that ends when the server ends it.

        Raises Idle when nothing arrives for `idle_timeout` seconds.
        """
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        async with self._exchange("GET", path, params, headers, None, idle_timeout) as response:
            yield response.content.iter_any()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    @asynccontextmanager
    async def _exchange(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        headers: Mapping[str, str],
        body: bytes | None,
        idle: float,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        what = f"{method} {self._access.server}{path}"
        answered = False
        try:
            response = await self._send(method, path, params, headers, body, idle)
            if response.status == 401 and self._credentials.forget():
                response.release()
                response = await self._send(method, path, params, headers, body, idle)
            answered = True
            try:
                _notice_dead_peers(response)
                if response.status >= 400:
                    raise await _refusal(response, what)
                yield response
            finally:
                # A half-read body cannot be reused; after a complete one the connection is back in the pool already.
                response.close()
        except TimeoutError as error:
            if answered:
                raise Idle(f"{what}: no data for {idle:.0f} s") from error
            raise KubeError(f"{what}: no answer in time") from error
        except (aiohttp.ClientError, OSError, ssl.SSLError) as error:
            raise KubeError(f"{what}: {_reason(error)}") from error

    async def _send(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        headers: Mapping[str, str],
        body: bytes | None,
        idle: float,
    ) -> aiohttp.ClientResponse:
        await self._rate.take()
        presented = await self._credentials.present()
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers={"User-Agent": f"pointsman/{__version__}"},
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),
            )
        response = await self._session.request(
            method,
            self._access.server + path,
            params=params,
            data=body,
            headers=[*headers.items(), *presented.headers],
            ssl=presented.tls if presented.tls is not None else True,
            server_hostname=self._access.tls_server_name or None,
            proxy=self._proxy or None,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=None, connect=_CONNECT_SECONDS, sock_read=idle),
        )
        self._on_answer(method, response.status)
        return response


async def _refusal(response: aiohttp.ClientResponse, what: str) -> KubeError:
    status = response.status
    body = await response.content.read(_ERROR_BODY_LIMIT)
    try:
        detail = msgspec.json.decode(body, type=_Status).message
    except msgspec.DecodeError:
        detail = ""
    message = f"{what}: HTTP {status} {response.reason or ''}".rstrip() + (f": {detail}" if detail else "")
    if status in (401, 403):
        return Unauthorized(message, status)
    if status == 410:
        return Gone(message, status)
    if status == 429:
        return Throttled(message, _retry_after(response.headers.get("Retry-After", "")))
    return KubeError(message, status)


def _retry_after(text: str) -> float:
    return float(text) if text.isascii() and text.isdigit() else _DEFAULT_RETRY_AFTER_SECONDS


def _reason(error: Exception) -> str:
    """What happened, in words that cannot hold a URL with a password (proxies) nor a header."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"the server's certificate is not trusted: {error.certificate_error}"
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return f"the proxy answered HTTP {error.status}"
    if isinstance(error, aiohttp.ClientResponseError):
        return f"not valid HTTP: {error.message}"
    if isinstance(error, aiohttp.ClientConnectorError):
        errno = error.os_error.errno
        detail = os.strerror(errno) if errno and errno > 0 else str(error.os_error)
        return f"cannot connect to {error.host}:{error.port}: {detail}"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "the connection broke in the middle of the answer"
    return str(error) or type(error).__name__


def _notice_dead_peers(response: aiohttp.ClientResponse) -> None:
    """Let the kernel find out within half a minute that the peer vanished without a word.

    A quiet watch may rightly carry nothing for minutes, so reading alone cannot tell silence from absence.
    """
    connection = response.connection
    if connection is None or connection.transport is None:
        return
    peer = connection.transport.get_extra_info("socket")
    if peer is None or peer.family not in (socket.AF_INET, socket.AF_INET6):
        return
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000)
