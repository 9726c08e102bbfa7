"""Decoding of Content-Encoding, in pieces of bounded size.

A few kilobytes of gzip can expand to gigabytes: no step yields more than one piece, so that the caller can stop at its limit.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Protocol

PIECE_BYTES = 256 * 1024


class BadEncoding(ValueError):
    """The body is not what its Content-Encoding says."""


class Decoder(Protocol):
    """Turns the bytes on the wire, in order, into those of the body."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Return the pieces that this chunk completes."""

    def finish(self) -> None:
        """Must be called after the last chunk; raises BadEncoding when something is missing."""


def decoder_for(content_encoding: str, *, accepts_gzip: bool) -> Decoder:
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
    """One gzip member or several, as the format allows; a server may end one at each flush."""

    def __init__(self) -> None:
        self._member = _new_member()
        self._has_data = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        piece = b""
        while data or (len(piece) == PIECE_BYTES and not self._member.eof):
            if self._member.eof:
                self._member = _new_member()
            self._has_data = True
            try:
                piece = self._member.decompress(data, PIECE_BYTES)
            except zlib.error as error:
                raise BadEncoding(f"not valid gzip: {error}") from error
            yield piece
            data = self._member.unused_data if self._member.eof else self._member.unconsumed_tail

    def finish(self) -> None:
        if self._has_data and not self._member.eof:
            raise BadEncoding("gzip data ends early")


def _new_member() -> zlib._Decompress:
    return zlib.decompressobj(16 + zlib.MAX_WBITS)
