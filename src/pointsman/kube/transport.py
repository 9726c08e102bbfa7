"""Requests to one API server under one identity: whole answers, or streams as they arrive.

Whatever goes wrong leaves here as a KubeError with a message fit for a log: no header, no token, no proxy password.
"""

from __future__ import annotations

import asyncio
import io
import os
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import h11

from pointsman import __version__
from pointsman.errors import Gone, KubeError, Throttled, Unauthorized
from pointsman.kube.access import Access
from pointsman.kube.auth import Credentials, Presented
from pointsman.kube.client_metrics import RequestListener
from pointsman.kube.content_encoding import decoder_for
from pointsman.kube.dialling import Dialler, NotHttp
from pointsman.kube.exchange import Answer, HttpClient, HttpRequest
from pointsman.kube.formats import JSON, decode_status
from pointsman.kube.proxyenv import proxy_from_environment
from pointsman.kube.ratelimit import Clock, RateLimit, Sleep

_ERROR_BODY_LIMIT, _ERROR_BODY_SECONDS = 64 * 1024, 5.0
_LONGEST_DETAIL = 500
_WHOLE_ANSWER_SECONDS = 600.0
_DEFAULT_RETRY_AFTER_SECONDS, _LONGEST_RETRY_AFTER_SECONDS = 1.0, 60.0
STREAM_ANSWER_SECONDS = 30.0
LARGEST_BODY = 128 * 1024 * 1024
"""Uncompressed bytes of one answer. A page of 2,000 objects with 60 KiB each fits; for more, ask for smaller pages."""


class Response(NamedTuple):
    """A complete answer with a status below 400."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Stream(NamedTuple):
    """An answer whose body is still arriving; the chunks end when the server ends them."""

    content_type: str
    chunks: AsyncIterator[bytes]


class RequestFailed(KubeError):
    """A request met no answer, or one that cannot be read; `reason` says why, without naming the request."""

    def __init__(self, request: str, reason: str) -> None:
        super().__init__(f"{request}: {reason}")
        self.reason = reason


class Idle(KubeError):
    """An answer had begun, then gave no data for as long as was allowed; the peer may be gone."""


class TooLarge(KubeError):
    """An answer is longer than anything an honest server sends in one piece; ask for less at a time."""


@dataclass(frozen=True, slots=True)
class _Call:
    """One request, and how long to wait: for the headers of its answer, and for any data after them."""

    method: str
    path: str
    params: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes | None
    idle: float
    answer: float


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
        largest_body: int = LARGEST_BODY,
        listener: RequestListener | None = None,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._access = access
        self._credentials = credentials or Credentials(access, listener=listener)
        environment = os.environ if environ is None else environ
        self._proxy = access.proxy_url or proxy_from_environment(access.server, environment)
        self._client: HttpClient | None = None
        self._rate = RateLimit(qps, burst, clock=clock, sleep=sleep)
        self._largest_body = largest_body
        self._listener = listener or RequestListener()
        self._clock = clock

    @property
    def server(self) -> str:
        return self._access.server

    @property
    def advice(self) -> str:
        """What to do when the server cannot be reached; empty where there is nothing to change."""
        return self._access.advice

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        accept: str = JSON,
        timeout: float = 60.0,  # noqa: ASYNC109  an idle timeout of the socket, not a deadline
    ) -> Response:
        """The whole answer; raises a KubeError for every status but 2xx.

        `timeout` bounds every single wait for data; the whole transfer has minutes, because a long list may take long.
        """
        encoding = "identity" if self._access.disable_compression else "gzip"
        headers = {"Accept": accept, "Accept-Encoding": encoding}
        if body is not None:
            headers["Content-Type"] = content_type
        call = _Call(method, path, params or {}, headers, body, idle=timeout, answer=timeout)
        started, received = self._clock(), None
        try:
            answer = await self._whole_answer(call)
            received = len(answer.body)
        except TimeoutError as error:
            raise KubeError(
                f"{self._what(call)}: not complete after {_WHOLE_ANSWER_SECONDS:.0f} s"
            ) from error
        finally:
            self._listener.ended(method, self._clock() - started, len(body or b""), received)
        return answer

    async def _whole_answer(self, call: _Call) -> Response:
        async with asyncio.timeout(_WHOLE_ANSWER_SECONDS), self._exchange(call) as response:
            body = io.BytesIO()
            async for piece in self._pieces(call, response):
                if body.tell() + len(piece) > self._largest_body:
                    raise TooLarge(
                        f"{self._what(call)}: the answer is longer than {self._largest_body >> 20} MiB"
                    )
                body.write(piece)
            return Response(response.status, response.headers, body.getvalue())

    @asynccontextmanager
    async def stream(
        self,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        accept: str = JSON,
        idle_timeout: float,
        answer_timeout: float = STREAM_ANSWER_SECONDS,
    ) -> AsyncIterator[Stream]:
        """Opens a stream.

        Raises Idle when nothing arrives for `idle_timeout` seconds; the first sign, the headers, must come sooner,
        within `answer_timeout`: a server sends them at once, however quiet the stream is afterwards.
        """
        headers = {"Accept": accept, "Accept-Encoding": "identity"}
        call = _Call("GET", path, params or {}, headers, None, idle=idle_timeout, answer=answer_timeout)
        async with self._exchange(call) as response, aclosing(self._pieces(call, response)) as pieces:
            yield Stream(response.headers.get("Content-Type", ""), pieces)

    async def close(self) -> None:
        if self._client is not None:
            self._client.close()

    @asynccontextmanager
    async def _exchange(self, call: _Call) -> AsyncIterator[Answer]:
        """The answer of a server that did not refuse."""
        what = self._what(call)
        response = await self._answer(call)
        try:
            if response.status == 401 and self._credentials.forget():
                response.close()
                response = await self._answer(call)
            if not 200 <= response.status < 300:
                raise _refusal(response, what, await self._error_body(call, response))
            yield response
        finally:
            response.close()

    async def _answer(self, call: _Call) -> Answer:
        """Sends the request and waits for the headers of the answer."""
        asked = self._clock()
        await self._rate.take()
        self._listener.waited(call.method, self._clock() - asked)
        presented = await self._credentials.present()
        try:
            response = await self._headers(call, presented)
        except RequestFailed:
            self._listener.answered(call.method, None)
            raise
        self._listener.answered(call.method, response.status)
        return response

    async def _headers(self, call: _Call, presented: Presented) -> Answer:
        headers = (("User-Agent", f"pointsman/{__version__}"), *call.headers.items(), *presented.headers)
        request = HttpRequest(call.method, call.path, call.params, headers, call.body)
        what = self._what(call)
        with translated(what, RequestFailed(what, f"no answer within {call.answer:.0f} s")):
            if self._client is None:
                name = self._access.tls_server_name
                self._client = HttpClient(Dialler(self._access.server, proxy=self._proxy, server_name=name))
            async with asyncio.timeout(call.answer):
                return await self._client.ask(request, presented.tls)

    async def _pieces(self, call: _Call, response: Answer) -> AsyncGenerator[bytes, None]:
        """The body, uncompressed, in pieces of bounded size as they arrive; everybody else has a turn after each."""
        what = self._what(call)
        with translated(what, Idle(f"{what}: no data for {call.idle:.0f} s")):
            encoding = response.headers.get("Content-Encoding", "")
            decoder = decoder_for(encoding, call.headers["Accept-Encoding"])
            async for chunk in response.body(call.idle):
                for piece in decoder.feed(chunk):
                    yield piece
                    await asyncio.sleep(0)
            decoder.finish()

    async def _error_body(self, call: _Call, response: Answer) -> bytes:
        """As much of it as a message needs and as comes in time; one that cannot be read says nothing."""
        found = b""
        try:
            async with asyncio.timeout(min(call.answer, _ERROR_BODY_SECONDS)):
                async for piece in self._pieces(call, response):
                    found += piece
                    if len(found) >= _ERROR_BODY_LIMIT:
                        break
        except TimeoutError:
            pass
        except KubeError:
            return b""
        return found[:_ERROR_BODY_LIMIT]

    def _what(self, call: _Call) -> str:
        return f"{call.method} {self._access.server}{call.path}"


@contextmanager
def translated(what: str, late: KubeError) -> Iterator[None]:
    """The border to HTTP: whatever a server sends, and whatever that does, leaves as a KubeError.

    `late` is for a wait of ours that took too long. Of a peer that does not acknowledge anything, the kernel says the
    same with a number.
    """
    try:
        yield
    except KubeError:
        raise
    except Exception as error:
        if isinstance(error, TimeoutError) and error.errno is None:
            raise late from error
        raise RequestFailed(what, _one_line(_reason(error))) from error


def _one_line(words: str) -> str:
    """Words of others: their layout means nothing in a message of ours, and neither does the end of a long tale."""
    return " ".join(words.split())[:_LONGEST_DETAIL]


def _refusal(response: Answer, what: str, body: bytes) -> KubeError:
    status, reason = response.status, _one_line(response.reason or "")
    detail = _one_line(decode_status(body).message)
    message = f"{what}: HTTP {status} {reason}".rstrip() + (f": {detail}" if detail else "")
    if status in (401, 403):
        return Unauthorized(message, status)
    if status == 410:
        return Gone(message, status)
    if status == 429:
        return Throttled(message, _retry_after(response.headers.get("Retry-After", "")))
    return KubeError(message, status)


def _retry_after(text: str) -> float:
    """Never longer than a minute: what the server does not know of us, we must not wait a day to tell it."""
    asked = float(text) if text.isascii() and text.isdigit() else _DEFAULT_RETRY_AFTER_SECONDS
    return min(asked, _LONGEST_RETRY_AFTER_SECONDS)


def _reason(error: Exception) -> str:
    """What happened, in words that cannot hold a URL with a password (proxies) nor a header."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the server's certificate is not trusted: {error}; "
            "it must be signed by the configured CA and name the address it was reached by"
        )
    if isinstance(error, h11.LocalProtocolError):
        return "the request holds something that no request may hold"
    if isinstance(error, NotHttp):
        return f"not valid HTTP: {error}"
    return str(error) or type(error).__name__
