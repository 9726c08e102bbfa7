"""Requests and their answers over connections that are kept for the next request.

One request at a time on a connection; what HTTP/1.1 means is h11's business, what a status means the caller's.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, urlencode

import h11

from pointsman.kube.dialling import LARGEST_HEAD, Dialler, Line, answer_head, next_data

_KEEP_SECONDS: Final = 15.0
"""For which an idle connection is kept: a start and a burst of events reuse it, a quiet hour does not hold it."""
_REPEATABLE: Final = frozenset({"GET", "HEAD"})
_SAFE_IN_PATH: Final = "/:@!$&'()*+,;="


class Headers(Mapping[str, str]):
    """Those of an answer, found whatever their case."""

    def __init__(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        self._values: dict[str, str] = {}
        for name, value in pairs:
            self._values.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """What to ask for; the connection adds Host and the length of the body."""

    method: str
    path: str
    params: Mapping[str, str]
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    body: bytes | None = field(default=None, repr=False)


class Connection:
    """A line to the server with its state of HTTP."""

    def __init__(self, line: Line, tls: ssl.SSLContext | None) -> None:
        self.line, self.tls = line, tls
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=LARGEST_HEAD)

    async def ask(self, request: HttpRequest, dialler: Dialler) -> h11.Response:
        """Send the request and wait for the head of the answer."""
        body = request.body
        headers = [("Host", dialler.host_header), *request.headers, *dialler.proxy_headers]
        if body is not None:
            headers.append(("Content-Length", str(len(body))))
        target = dialler.target_prefix + quote(request.path, safe=_SAFE_IN_PATH)
        if request.params:
            target += "?" + urlencode(request.params)
        events: list[h11.Event] = [
            h11.Request(
                method=request.method,
                target=target,
                headers=[(name.encode(), value.strip().encode()) for name, value in headers],
            )
        ]
        if body:
            events.append(h11.Data(data=body))
        events.append(h11.EndOfMessage())
        self.line.writer.write(b"".join([self._http.send(event) or b"" for event in events]))
        await self.line.writer.drain()
        return await answer_head(self._http, self.line.reader)

    async def body(self, idle: float) -> AsyncGenerator[bytes, None]:
        """The body as it arrives; raises TimeoutError when nothing arrives for `idle` seconds."""
        while True:
            async with asyncio.timeout(idle):
                data = await next_data(self._http, self.line.reader)
            if not data:
                return
            yield data

    def ready_again(self) -> bool:
        """Whether the exchange is over and another one may follow."""
        if not (self._http.our_state is self._http.their_state is h11.DONE):
            return False
        if self._http.trailing_data != (b"", False):
            return False
        self._http.start_next_cycle()
        return self.line.open


class Answer:
    """The head of an answer, and its body while it arrives."""

    def __init__(self, head: h11.Response, connection: Connection, client: HttpClient) -> None:
        self.status = int(head.status_code)
        self.reason = head.reason.decode("latin-1")
        self.headers = Headers(head.headers)
        self._connection, self._client = connection, client

    def body(self, idle: float) -> AsyncGenerator[bytes, None]:
        return self._connection.body(idle)

    def close(self) -> None:
        """Be done with it: a connection whose answer was read to its end serves the next request."""
        self._client.give_back(self._connection)


class HttpClient:
    """Asks one server; its connections live as long as it does."""

    def __init__(self, dialler: Dialler) -> None:
        self._dialler = dialler
        self._idle: dict[Connection, asyncio.TimerHandle] = {}
        self._busy: set[Connection] = set()

    async def ask(self, request: HttpRequest, tls: ssl.SSLContext | None) -> Answer:
        """The answer's head.

        A kept connection that turns out to be closed by the server is replaced, where asking twice does no harm.
        """
        connection = await self._kept(tls)
        if connection is not None:
            try:
                return await self._ask(connection, request)
            except ConnectionError:
                if request.method not in _REPEATABLE:
                    raise
        return await self._ask(Connection(await self._dialler.dial(tls), tls), request)

    async def _ask(self, connection: Connection, request: HttpRequest) -> Answer:
        self._busy.add(connection)
        try:
            return Answer(await connection.ask(request, self._dialler), connection, self)
        except BaseException:
            self.give_back(connection)
            raise

    def give_back(self, connection: Connection) -> None:
        """Keep the connection for a while, or close it when nothing more can be asked on it."""
        self._busy.discard(connection)
        if connection.ready_again():
            loop = asyncio.get_running_loop()
            self._idle[connection] = loop.call_later(_KEEP_SECONDS, self._expire, connection)
        else:
            connection.line.close()

    def close(self) -> None:
        for connection in (*self._idle, *self._busy):
            connection.line.close()
        for timer in self._idle.values():
            timer.cancel()
        self._idle.clear()
        self._busy.clear()

    async def _kept(self, tls: ssl.SSLContext | None) -> Connection | None:
        """One that is idle and silent, and was made with these credentials; others are closed."""
        while self._idle:
            connection, timer = self._idle.popitem()
            timer.cancel()
            if connection.tls is not tls:
                connection.line.close()
            elif await connection.line.silent():
                return connection
        return None

    def _expire(self, connection: Connection) -> None:
        del self._idle[connection]
        connection.line.close()
