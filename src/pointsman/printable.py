"""Text from outside, fit for a terminal and a log: names and messages of others must not be able to act on the reader.

A newline forges a line, an escape sequence rewrites the screen, a bidirectional mark turns words around. Each edge that
prints passes its lines through here, so that nobody before it has to think of that.
"""

from __future__ import annotations

import json

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str) -> str:
    """The text in one line; every character that does not simply show itself is written as an escape."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else _escaped(character) for character in text)


def printable_lines(text: str) -> list[str]:
    """The lines of a text that may rightly have several, each printable."""
    return [printable(line) for line in text.splitlines()]


def printable_json(encoded: str) -> str:
    """JSON text without the characters that it allows and a terminal would act on; it still reads back to the same value.

    A line break in it is layout: strings have theirs escaped.
    """
    return "\n".join(
        line if line.isprintable() else "".join(map(_escaped_in_json, line)) for line in encoded.split("\n")
    )


def _escaped_in_json(character: str) -> str:
    return character if character.isprintable() else json.dumps(character)[1:-1]


def _escaped(character: str) -> str:
    return _SHORT.get(character) or character.encode("unicode_escape").decode("ascii")
