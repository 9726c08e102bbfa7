"""HTTP/1.1 on one connection: one request at a time becomes a `Request`, and its `Response` becomes bytes.

h11 knows the protocol; what is decided here is how much a client may take of this process. Whatever it sends or
leaves unsent or unread, a connection holds a few tens of kilobytes besides one answer, and ends after a while. Nobody
reads from a connection whose client has to wait for an answer, or has to read one, before it may ask again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

import h11

from pointsman.serve.connections import Connections
from pointsman.serve.messages import Handler, Request, Response, path_and_query, text_response
from pointsman.serve.troubles import Trouble

MOST_HEAD_BYTES: Final = 16384
"""Request line and headers together; a browser may bring cookies of other servers on localhost."""
MOST_BODY_BYTES: Final = 4096
"""The only body that anybody here reads is a number."""

_READ_BYTES: Final = 16384
_LINGER_SECONDS: Final = 1.0
"""For a refused client to find the answer: closing on what it still sends would take it away again."""
_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class HttpConnection(asyncio.BufferedProtocol):
    """A connection of a client; `on_end` hears when it is closed and nothing runs for it any more."""

    def __init__(
        self, handler: Handler, connections: Connections, on_end: Callable[[HttpConnection], None]
    ) -> None:
        self._handler, self._connections, self._on_end = handler, connections, on_end
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MOST_HEAD_BYTES)
        self._transport: asyncio.Transport | None = None
        self._inbox = bytearray()
        self._asked: h11.Request | None = None
        self._body = bytearray()
        self._task: asyncio.Task[None] | None = None
        """Answers the request."""
        self._between_requests = True
        self._unread = False
        """The client has not read its answers."""
        self._heard_all = False
        """The client will not send any more."""
        self._deaf = False
        """The client was refused; whatever else it says is thrown away."""
        self._retiring = self._dropped = False
        self._timer: asyncio.TimerHandle | None = None
        self._unsent = 0

    def drop(self) -> None:
        """Close it at once, whatever goes on."""
        self._dropped = True
        if self._transport is not None:
            self._transport.abort()

    def retire(self) -> None:
        """Close it as soon as no answer is being made."""
        self._retiring = True
        if self._task is None and self._transport is not None:
            self._transport.close()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._dropped:
            transport.abort()
        self._end_after(self._connections.idle_seconds)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._transport = None
        self._stop_timer()
        self._connections.left(self)
        if self._task is None:
            self._on_end(self)
        else:
            self._task.add_done_callback(lambda _task: self._on_end(self))
            self._task.cancel()

    def get_buffer(self, _sizehint: int) -> bytearray:
        """Small, as all of it may be kept; and made anew, as an idle connection needs none."""
        self._inbox = bytearray(_READ_BYTES)
        return self._inbox

    def buffer_updated(self, nbytes: int) -> None:
        received, self._inbox = bytes(memoryview(self._inbox)[:nbytes]), bytearray()
        if self._deaf or self._transport is None:
            return
        self._http.receive_data(received)
        if self._waiting:
            self._transport.pause_reading()
            return
        if self._between_requests:
            self._between_requests = False
            self._end_after(self._connections.idle_seconds)
        self._advance()

    def eof_received(self) -> bool:
        """True keeps it open for the answers to what has arrived."""
        self._heard_all = True
        return self._waiting and not self._deaf

    def pause_writing(self) -> None:
        self._unread = True
        if self._transport is not None:
            self._connections.unread(self, self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._unread = False
        self._connections.unread(self, 0)
        self._advance()

    # From bytes to a request.

    @property
    def _waiting(self) -> bool:
        """Whether the next request has to."""
        return self._task is not None or self._unread

    def _advance(self) -> None:
        """Go through what has arrived, up to a complete request, whose answer then begins."""
        try:
            while not self._waiting and not self._deaf and self._step():
                pass
        except h11.RemoteProtocolError as error:
            self._refuse(error.error_status_hint)

    def _step(self) -> bool:
        """One event of the request; False when there is no more."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        event = self._http.next_event()
        if isinstance(event, h11.Request):
            self._asked = event
            _check_head(event)
        elif isinstance(event, h11.Data):
            self._body += event.data
            if len(self._body) > MOST_BODY_BYTES:
                raise h11.RemoteProtocolError("body too long", 413)
        elif isinstance(event, h11.EndOfMessage):
            self._begin_answer(transport)
        elif self._heard_all:
            transport.close()
            return False
        else:
            if self._http.they_are_waiting_for_100_continue:
                go_on = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
                transport.write(self._http.send(go_on))
            transport.resume_reading()
            return False
        return True

    # From a request to an answer.

    def _begin_answer(self, transport: asyncio.Transport) -> None:
        asked, body = self._asked, bytes(self._body)
        assert asked is not None
        self._body.clear()
        path, query = path_and_query(asked.target.decode("ascii"))
        request = Request(
            asked.method.decode("ascii"),
            path,
            query,
            _header(asked, b"host").decode("latin-1"),
            body,
            transport,
        )
        self._stop_timer()
        self._connections.began(self)
        self._task = asyncio.get_running_loop().create_task(self._answer(request), name="answer")

    async def _answer(self, request: Request) -> None:
        try:
            await self._connections.turn(self)
            head, body = self._prepared(await self._handler(request))
        except Exception as error:  # noqa: BLE001 - of whatever kind, the client gets an answer and we the traceback
            self._connections.troubles.report(Trouble.HANDLER_FAILED, error)
            head, body = self._prepared(text_response("internal error\n", 500))
        except BaseException:
            self.drop()
            raise
        finally:
            self._task = None
            self._connections.ended(self)
        if self._transport is None or self._transport.is_closing():
            return
        self._send(self._transport, head, body)
        self._asked = None
        self._between_requests = True
        if self._http.our_state is h11.DONE:
            self._http.start_next_cycle()
            self._advance()
        else:
            self._transport.close()

    def _refuse(self, status: int) -> None:
        """A last answer, and no more listening."""
        transport = self._transport
        assert transport is not None
        name = transport.get_extra_info("peername")
        self._connections.troubles.report(Trouble.MALFORMED, client=str(name[0]) if name else "")
        self._deaf = self._retiring = True
        self._send(transport, *self._prepared(text_response(f"{_phrase(status)}\n", status)))
        transport.write_eof()
        transport.resume_reading()
        self._end_after(_LINGER_SECONDS)

    def _prepared(self, response: Response) -> tuple[h11.Response, bytes]:
        """In the form of the library, which raises for what is no HTTP; nothing is sent yet."""
        headers = [
            *response.headers.items(),
            ("Content-Length", str(len(response.body))),
            ("Date", http_date(time.time())),
        ]
        if self._retiring:
            headers.append(("Connection", "close"))
        head = h11.Response(
            status_code=response.status, headers=headers, reason=_phrase(response.status).encode()
        )
        return head, response.body

    def _send(self, transport: asyncio.Transport, head: h11.Response, body: bytes) -> None:
        first = self._http.send(head)
        if self._http.their_http_version == b"1.0":
            first = first.replace(b"HTTP/1.1", b"HTTP/1.0", 1)
        with_body = self._asked is None or self._asked.method != b"HEAD"
        content = self._http.send(h11.Data(data=body)) if with_body else b""
        self._http.send(h11.EndOfMessage())
        transport.write(first + content)
        self._unsent = transport.get_write_buffer_size()
        self._end_after(self._connections.idle_seconds)

    # How long it may last.

    def _end_after(self, seconds: float) -> None:
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._time_is_up, seconds)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_is_up(self, seconds: float) -> None:
        """Nothing was asked for so long; somebody who slowly reads a long answer is left to it."""
        if self._transport is None:
            return
        unsent = self._transport.get_write_buffer_size()
        if unsent < self._unsent:
            self._unsent = unsent
            self._end_after(seconds)
        else:
            self.drop()


def http_date(moment: float) -> str:
    """A Unix time as HTTP writes it, whatever the locale."""
    now = time.gmtime(moment)
    clock = f"{now.tm_hour:02d}:{now.tm_min:02d}:{now.tm_sec:02d}"
    return f"{_DAYS[now.tm_wday]}, {now.tm_mday:02d} {_MONTHS[now.tm_mon - 1]} {now.tm_year} {clock} GMT"


def _check_head(asked: h11.Request) -> None:
    """Raise for what no handler should see."""
    lines = sum(len(name) + len(value) + len(": \r\n") for name, value in asked.headers)
    if len(asked.method) + len(asked.target) + len("  HTTP/1.1\r\n\r\n") + lines > MOST_HEAD_BYTES:
        raise h11.RemoteProtocolError("head too long", 431)
    if not asked.http_version.startswith(b"1."):
        raise h11.RemoteProtocolError("not HTTP/1", 505)
    if asked.method == b"CONNECT":
        raise h11.RemoteProtocolError("any good answer would promise a tunnel", 405)
    if int(_header(asked, b"content-length") or 0) > MOST_BODY_BYTES:
        raise h11.RemoteProtocolError("body too long", 413)


def _header(asked: h11.Request, wanted: bytes) -> bytes:
    return next((value for name, value in asked.headers if name == wanted), b"")


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
