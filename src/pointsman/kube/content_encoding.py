"""Bodies as they were before the server compressed them, a bounded piece at a time.

A few kilobytes of gzip can stand for gigabytes. Unpacking a chunk as a whole could fill memory; here no step yields more
than a piece, so whoever adds the pieces up can stop in time.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Protocol

PIECE_BYTES = 256 * 1024


class BadEncoding(ValueError):
    """The body is not what its Content-Encoding says."""


class Decoder(Protocol):
    """Takes the bytes on the wire in order, gives those of the body."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The pieces that this chunk completes."""

    def finish(self) -> None:
        """To be called after the last chunk; raises BadEncoding when something is missing."""


def decoder_for(content_encoding: str, asked_for: str) -> Decoder:
    """The decoder for a Content-Encoding header; raises BadEncoding for one that was not asked for."""
    match content_encoding.strip().lower():
        case "" | "identity":
            return _Identity()
        case "gzip" | "x-gzip" if asked_for == "gzip":
            return _Gzip()
    raise BadEncoding(f"the answer's Content-Encoding {content_encoding!r} was not asked for")


class _Identity:
    """Nothing to undo."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        yield data

    def finish(self) -> None:
        """Where the body ends is HTTP's business."""


class _Gzip:
    """One gzip member or several, as the format allows."""

    def __init__(self) -> None:
        self._member = _new_member()
        self._begun = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        piece = b""
        while data or (len(piece) == PIECE_BYTES and not self._member.eof):
            if self._member.eof:
                self._member = _new_member()
            self._begun = True
            try:
                piece = self._member.decompress(data, PIECE_BYTES)
            except zlib.error as error:
                raise BadEncoding(f"the answer is not valid gzip: {error}") from error
            yield piece
            data = self._member.unused_data if self._member.eof else self._member.unconsumed_tail

    def finish(self) -> None:
        if self._begun and not self._member.eof:
            raise BadEncoding("the compressed answer ends early")


def _new_member() -> zlib._Decompress:
    return zlib.decompressobj(16 + zlib.MAX_WBITS)
