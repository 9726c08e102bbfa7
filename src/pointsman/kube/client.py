"""Requests to one API server under one identity: complete responses, or streams as they arrive.

Every failure is a KubeError whose message can be logged: it holds no header, no token and no proxy password.
"""

from __future__ import annotations

import asyncio
import io
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from pointsman import __version__
from pointsman.errors import Gone, KubeError, Throttled, Unauthorized
from pointsman.http.client import HttpClient
from pointsman.http.connector import Connector
from pointsman.http.messages import HttpError, InvalidHttp, Request, Response
from pointsman.kube.access import Access, find_environment_proxy
from pointsman.kube.auth import Credentials, Presented
from pointsman.kube.client_metrics import RequestListener
from pointsman.kube.codec import TooLarge
from pointsman.kube.formats import JSON, decode_status
from pointsman.kube.timing import Clock, RateLimit, Sleep

STREAM_HEADERS_SECONDS = 30.0
MAX_BODY_BYTES = 16 * 1024 * 1024
"""Uncompressed, of one response. A page of 2,000 objects with 8 KiB each fits; for more, request smaller pages."""
_MAX_ERROR_BODY_BYTES, _ERROR_BODY_TIMEOUT_SECONDS = 64 * 1024, 5.0
_MAX_DETAIL_CHARACTERS = 500
_TRANSFER_TIMEOUT_SECONDS = 600.0
_DEFAULT_RETRY_AFTER_SECONDS, _MAX_RETRY_AFTER_SECONDS = 1.0, 60.0


class RequestFailed(KubeError):
    """A request got no response, or one that cannot be read."""


class ApiClient:
    """Requests to one API server, at most `qps` per second after a burst of `burst`."""

    def __init__(
        self,
        access: Access,
        *,
        qps: float = 5.0,
        burst: int = 10,
        environ: Mapping[str, str] | None = None,
        credentials: Credentials | None = None,
        max_body: int = MAX_BODY_BYTES,
        listener: RequestListener | None = None,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._server = access.server
        self._credentials = credentials or Credentials(access, listener=listener)
        self._environ = os.environ if environ is None else environ
        self._http = HttpClient()
        self._rate = RateLimit(qps, burst, clock=clock, sleep=sleep)
        self._max_body = max_body
        self._listener = listener or RequestListener()
        self._clock = clock

    @property
    def server(self) -> str:
        return self._server

    @property
    def _accepts_gzip(self) -> bool:
        return not self._credentials.access.disable_compression

    @property
    def advice(self) -> str:
        """What to do when the server cannot be reached; empty where there is nothing to change."""
        return self._credentials.access.advice

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        accept: str = JSON,
        timeout: float = 60.0,  # noqa: ASYNC109  of each wait for data, not a deadline
    ) -> Response:
        """Return the response with its body. Raises a KubeError for every status but 2xx.

        `timeout` limits each wait for data; the whole transfer has ten minutes, because a long list takes time.
        """
        headers = [("Accept", accept)] + ([("Content-Type", content_type)] if body is not None else [])
        request = Request(method, path, params or {}, tuple(headers), body, accepts_gzip=self._accepts_gzip)
        started, received = self._clock(), None
        try:
            async with (
                asyncio.timeout(_TRANSFER_TIMEOUT_SECONDS),
                self._exchange(request, timeout) as response,
            ):
                response.body = await self._read_body(request, response, timeout)
                received = len(response.body)
                return response
        except TimeoutError as error:
            raise RequestFailed(
                f"{self._describe(request)}: not complete after {_TRANSFER_TIMEOUT_SECONDS:.0f} s"
            ) from error
        finally:
            self._listener.on_complete(method, self._clock() - started, len(body or b""), received)

    @asynccontextmanager
    async def stream(
        self,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        accept: str = JSON,
        headers_timeout: float = STREAM_HEADERS_SECONDS,
    ) -> AsyncIterator[Response]:
        """Open a stream. Its headers must come within `headers_timeout`; waiting for data is limited by the caller.

        A failure to read the response inside the context leaves as a KubeError, too.
        """
        headers = (("Accept", accept),)
        request = Request("GET", path, params or {}, headers, accepts_gzip=self._accepts_gzip)
        async with self._exchange(request, headers_timeout) as response:
            yield response

    async def close(self) -> None:
        self._http.close()

    @asynccontextmanager
    async def _exchange(self, request: Request, headers_timeout: float) -> AsyncIterator[Response]:
        """Give a response with a 2xx status. Raises KubeError, also for what fails while it is read."""
        response = await self._send(request, headers_timeout)
        try:
            if response.status == 401 and self._credentials.forget():
                response.close()
                response = await self._send(request, headers_timeout)
            if not 200 <= response.status < 300:
                body = await self._read_error_body(
                    response, min(headers_timeout, _ERROR_BODY_TIMEOUT_SECONDS)
                )
                raise _build_error(response, self._describe(request), body)
            yield response
        except HttpError as error:
            raise self._build_failure(request, error) from error
        finally:
            response.close()

    async def _send(self, request: Request, headers_timeout: float) -> Response:
        """Send the request and wait for the headers of the response."""
        queued = self._clock()
        await self._rate.take()
        self._listener.on_rate_limited(request.method, self._clock() - queued)
        presented = await self._credentials.present()
        try:
            response = await self._send_as(presented, request, headers_timeout)
        except RequestFailed:
            self._listener.on_response(request.method, None)
            raise
        self._listener.on_response(request.method, response.status)
        return response

    async def _send_as(self, presented: Presented, request: Request, headers_timeout: float) -> Response:
        access = self._credentials.access
        proxy = access.proxy_url or find_environment_proxy(access.server, self._environ)
        # client-go has the same variable: a way out where something in between breaks HTTP/2.
        connector = Connector(
            access.server,
            proxy,
            access.tls_server_name,
            presented.tls,
            offers_http2=not self._environ.get("DISABLE_HTTP2"),
        )
        signed = Request(
            request.method,
            request.path,
            request.params,
            (("User-Agent", f"pointsman/{__version__}"), *request.headers, *presented.headers),
            request.body,
            accepts_gzip=request.accepts_gzip,
        )
        try:
            async with asyncio.timeout(headers_timeout):
                return await self._http.send(signed, connector)
        except TimeoutError as error:
            raise RequestFailed(
                f"{self._describe(request)}: no response within {headers_timeout:.0f} s"
            ) from error
        except HttpError as error:
            raise self._build_failure(request, error) from error

    async def _read_body(self, request: Request, response: Response, idle: float) -> bytes:
        body = io.BytesIO()
        while True:
            try:
                async with asyncio.timeout(idle):
                    piece = await response.read()
            except TimeoutError as error:
                raise RequestFailed(f"{self._describe(request)}: no data for {idle:.0f} s") from error
            if not piece:
                return body.getvalue()
            if body.tell() + len(piece) > self._max_body:
                raise TooLarge(
                    f"{self._describe(request)}: the response is larger than {self._max_body >> 20} MiB"
                )
            body.write(piece)

    async def _read_error_body(self, response: Response, timeout: float) -> bytes:  # noqa: ASYNC109
        """Return as much as a message needs and arrives in time; nothing when it cannot be read."""
        found = b""
        try:
            async with asyncio.timeout(timeout):
                while len(found) < _MAX_ERROR_BODY_BYTES and (piece := await response.read()):
                    found += piece
        except TimeoutError:
            pass
        except HttpError:
            return b""
        return found[:_MAX_ERROR_BODY_BYTES]

    def _describe(self, request: Request) -> str:
        return f"{request.method} {self._server}{request.path}"

    def _build_failure(self, request: Request, error: HttpError) -> RequestFailed:
        reason = f"not valid HTTP: {error}" if isinstance(error, InvalidHttp) else str(error)
        return RequestFailed(f"{self._describe(request)}: {_to_one_line(reason)}")


def _to_one_line(text: str) -> str:
    """Return text from outside so that it can neither forge a log line nor fill the log."""
    return " ".join(text.split())[:_MAX_DETAIL_CHARACTERS]


def _build_error(response: Response, name: str, body: bytes) -> KubeError:
    status, reason = response.status, _to_one_line(response.reason)
    detail = _to_one_line(decode_status(body).message)
    message = f"{name}: HTTP {status} {reason}".rstrip() + (f": {detail}" if detail else "")
    if status in (401, 403):
        return Unauthorized(message, status)
    if status == 410:
        return Gone(message, status)
    if status == 429:
        return Throttled(message, _parse_retry_after(response.headers.get("Retry-After", "")))
    return KubeError(message, status)


def _parse_retry_after(text: str) -> float:
    """Return seconds, at most a minute: a server must not be able to stop a node for a day."""
    seconds = float(text) if text.isascii() and text.isdigit() else _DEFAULT_RETRY_AFTER_SECONDS
    return min(seconds, _MAX_RETRY_AFTER_SECONDS)
