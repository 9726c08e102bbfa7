"""Lists, counts and sizes as text."""

from __future__ import annotations

from collections.abc import Iterable

MAX_SHOWN = 5


def join_some(items: Iterable[str], limit: int = MAX_SHOWN) -> str:
    """Join the first items, and say how many more there are."""
    every = list(items)
    more = len(every) - limit
    return ", ".join(every[:limit]) + (f" and {more} more" if more > 0 else "")


def count_text(count: int, noun: str) -> str:
    """Return `1 node`, `2 nodes`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def size_text(size: int) -> str:
    """Return a number of bytes in its unit."""
    if size < 1024:
        return f"{size} B"
    return f"{size / 1024:.1f} KiB" if size < 1 << 20 else f"{size / (1 << 20):.1f} MiB"
