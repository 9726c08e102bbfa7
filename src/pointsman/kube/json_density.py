"""Whether JSON holds more values than text of its length honestly has.

A limit of bytes alone is none: the three bytes of `{},` become an object of eighty. Every value but the first of a list or
object has a comma before it, and counting commas takes a fiftieth of the time that decoding takes.
"""

from __future__ import annotations

import re

_ALWAYS_ALLOWED = 100_000
_BYTES_PER_VALUE = 16
"""On average; objects of API servers have 25 and more."""
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


def is_too_dense(text: bytes) -> bool:
    """Commas in strings stand for nothing: an annotation may hold as many as it likes."""
    allowed = _ALWAYS_ALLOWED + len(text) // _BYTES_PER_VALUE
    if len(text) < allowed:
        return False
    commas = text.count(b",")
    if commas <= allowed:
        return False
    return commas - sum(string[0].count(b",") for string in _STRING.finditer(text)) > allowed
