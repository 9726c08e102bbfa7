"""A request, a response, and the errors between them."""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol
from urllib.parse import quote, urlencode

MAX_HEAD_BYTES: Final = 64 * 1024
"""Of the status line and the headers of a response."""
READ_BYTES: Final = 256 * 1024
PIECE_BYTES: Final = 256 * 1024
"""Of a decoded body. A few kilobytes of gzip can expand to gigabytes: no step yields more than one piece, so that the caller can stop at
its limit."""
_SAFE_IN_PATH: Final = "/:@!$&'()*+,;="
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\U0010ffff]*")


class HttpError(Exception):
    """A request got no usable response; the message names neither URL nor headers."""


class ConnectFailed(HttpError):
    """No connection was established."""


class InvalidHttp(HttpError):
    """The peer sent something that is not valid HTTP."""


class ConnectionLost(HttpError):
    """The connection or the stream ended before the response did."""


class NotProcessed(ConnectionLost):
    """The server did not process the request: it may be sent again, whatever its method."""


class BadEncoding(ValueError):
    """The body does not match its Content-Encoding."""


class Headers(Mapping[str, str]):
    """Headers of a response; names are case-insensitive, the first of several equal ones counts."""

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
class Request:
    """What to send. The path is plain text; it is percent-encoded here, once."""

    method: str
    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    body: bytes | None = field(default=None, repr=False)
    accepts_gzip: bool = False

    @property
    def target(self) -> str:
        """Path and query as sent."""
        path = quote(self.path, safe=_SAFE_IN_PATH)
        return f"{path}?{urlencode(self.params)}" if self.params else path

    def encode_headers(self) -> list[tuple[bytes, bytes]]:
        """Return all headers but those that name the server. Raises HttpError for one that HTTP does not allow."""
        encoding = "gzip" if self.accepts_gzip else "identity"
        headers = [*self.headers, ("Accept-Encoding", encoding)]
        if self.body is not None:
            headers.append(("Content-Length", str(len(self.body))))
        if not all(
            _HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value) for name, value in headers
        ):
            raise HttpError("invalid request header")
        return [(name.encode(), value.strip().encode()) for name, value in headers]


class Response:
    """Status and headers of an answer, and its body while it arrives. Must be closed."""

    def __init__(
        self,
        status: int,
        reason: str,
        headers: Headers,
        *,
        receive: Callable[[], Awaitable[bytes]],
        close: Callable[[], None],
        accepts_gzip: bool,
    ) -> None:
        self.status, self.reason, self.headers = status, reason, headers
        self.body = b""
        """The whole body, where the caller asked for it."""
        self.close = close
        """End the exchange at once: the rest of the body is not waited for."""
        self._receive = receive
        self._accepts_gzip = accepts_gzip
        self._decoder = None if "Content-Encoding" in headers else choose_decoder("", accepts_gzip=False)
        self._pieces: Iterator[bytes] = iter(())

    @property
    def content_type(self) -> str:
        return self.headers.get("Content-Type", "")

    async def read(self) -> bytes:
        """Return the next piece of the decoded body, of bounded size; b"" at its end. Raises HttpError.

        Other tasks get a turn before each piece, however much has arrived.
        """
        await asyncio.sleep(0)
        with raise_http_errors():
            if self._decoder is None:
                self._decoder = choose_decoder(
                    self.headers["Content-Encoding"], accepts_gzip=self._accepts_gzip
                )
            while True:
                for piece in self._pieces:
                    if piece:
                        return piece
                data = await self._receive()
                if not data:
                    self._decoder.finish()
                    return b""
                self._pieces = self._decoder.feed(data)


class Decoder(Protocol):
    """Turns the bytes on the wire, in order, into those of the body."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Return the pieces that this chunk completes."""

    def finish(self) -> None:
        """Must be called after the last chunk; raises BadEncoding when something is missing."""


def choose_decoder(content_encoding: str, *, accepts_gzip: bool) -> Decoder:
    """Return the decoder for a Content-Encoding header. Raises BadEncoding for one that was not requested."""
    match content_encoding.strip().lower():
        case "" | "identity":
            return _Identity()
        case "gzip" | "x-gzip" if accepts_gzip:
            return _Gzip()
    raise BadEncoding(f"Content-Encoding {content_encoding!r} was not requested")


class _Identity:
    """No encoding."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        return iter((data,))

    def finish(self) -> None:
        """The end of the body is marked by HTTP."""


class _Gzip:
    """One gzip member or several, as the format allows: API servers end one after each watch event.

    No decompressor, with its window of 32 KiB, is kept between two members.
    """

    def __init__(self) -> None:
        self._member: zlib._Decompress | None = None

    def feed(self, data: bytes) -> Iterator[bytes]:
        piece = b""
        while data or (len(piece) == PIECE_BYTES and self._member is not None):
            member = self._member or zlib.decompressobj(16 + zlib.MAX_WBITS)
            try:
                piece = member.decompress(data, PIECE_BYTES)
            except zlib.error as error:
                raise BadEncoding(f"not valid gzip: {error}") from error
            self._member = None if member.eof else member
            data = member.unused_data if member.eof else member.unconsumed_tail
            yield piece

    def finish(self) -> None:
        if self._member is not None:
            raise BadEncoding("gzip data ends early")


@contextmanager
def raise_http_errors() -> Iterator[None]:
    """Turn whatever a peer caused into an HttpError."""
    try:
        yield
    except HttpError:
        raise
    except BadEncoding as error:
        raise InvalidHttp(str(error)) from error
    except Exception as error:
        raise ConnectionLost(str(error) or type(error).__name__) from error
