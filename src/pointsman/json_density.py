"""Whether JSON holds more values than text of its length honestly has.

A limit of bytes alone is none: the three bytes of `{},` become an object of eighty. Every value but the first of a list or
object has a comma before it, and counting commas takes a fiftieth of the time that decoding takes.
"""

from __future__ import annotations

_ALWAYS_ALLOWED = 100_000
_BYTES_PER_VALUE = 16
"""On average; objects of API servers have 25 and more."""


def is_too_dense(text: bytes) -> bool:
    allowed = _ALWAYS_ALLOWED + len(text) // _BYTES_PER_VALUE
    return len(text) > 2 * _ALWAYS_ALLOWED and text.count(b",") > allowed
