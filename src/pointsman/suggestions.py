"""What somebody who mistyped a name may have meant."""

from __future__ import annotations

from collections.abc import Iterable


def similar(name: str, known: Iterable[str], most: int = 1, *, likeness: float = 0.6) -> list[str]:
    """The known names closest to `name`, whatever their case; none when all are far."""
    import difflib

    by_lower = {word.lower(): word for word in known}
    return [
        by_lower[word] for word in difflib.get_close_matches(name.lower(), by_lower, n=most, cutoff=likeness)
    ]


def did_you_mean(name: str, known: Iterable[str], prefix: str = "", *, likeness: float = 0.6) -> str:
    """`, did you mean X?` to append to a complaint about `name`; nothing when no known name is close."""
    return "".join(f", did you mean {prefix}{word}?" for word in similar(name, known, likeness=likeness))
