"""Text from outside made safe to print, suggestions for mistyped names, and lists, counts and sizes as text.

Names and messages from outside could act on a terminal: a newline forges a line, an escape sequence rewrites the screen, a
bidirectional mark reverses the order of letters. Everything that prints to a terminal or a log escapes its lines here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

MAX_JOINED = 5
_SHORT_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def escape(text: str) -> str:
    """Return the text in one line; every character that does not simply show itself becomes an escape."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else _escape(character) for character in text)


def escape_lines(text: str) -> list[str]:
    """Return the lines of a text, each escaped."""
    return [escape(line) for line in text.splitlines()]


def escape_json(encoded: str) -> str:
    """Return JSON text without the characters that it allows and a terminal would act on; it decodes to the same value.

    A line break in it is layout: strings have theirs escaped.
    """
    return "\n".join(
        line if line.isprintable() else "".join(map(_escape_in_json, line)) for line in encoded.split("\n")
    )


def _escape_in_json(character: str) -> str:
    return character if character.isprintable() else json.dumps(character)[1:-1]


def _escape(character: str) -> str:
    return _SHORT_ESCAPES.get(character) or character.encode("unicode_escape").decode("ascii")


def find_similar(name: str, known: Iterable[str], limit: int = 1, *, likeness: float = 0.6) -> list[str]:
    """Return the known names closest to `name`, whatever their case; none when all are far."""
    import difflib

    by_lower = {word.lower(): word for word in known}
    return [
        by_lower[word] for word in difflib.get_close_matches(name.lower(), by_lower, n=limit, cutoff=likeness)
    ]


def did_you_mean(name: str, known: Iterable[str], prefix: str = "", *, likeness: float = 0.6) -> str:
    """Return `, did you mean X?` to append to an error about `name`; nothing when no known name is close."""
    return "".join(f", did you mean {prefix}{word}?" for word in find_similar(name, known, likeness=likeness))


def join_some(items: Iterable[str], limit: int = MAX_JOINED) -> str:
    """Join the first items, and say how many more there are."""
    every = list(items)
    more = len(every) - limit
    return ", ".join(every[:limit]) + (f" and {more} more" if more > 0 else "")


def format_count(count: int, noun: str) -> str:
    """Return `1 node`, `2 nodes`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def format_size(size: int) -> str:
    """Return a number of bytes in its unit."""
    if size < 1024:
        return f"{size} B"
    return f"{size / 1024:.1f} KiB" if size < 1 << 20 else f"{size / (1 << 20):.1f} MiB"
