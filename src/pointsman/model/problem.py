"""What is wrong with an object, in a form that metrics, events and people can use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from pointsman.model.service import ServicePortName

_MOST_TOLD = 20
_LONGEST_VALUE = 200


class Problem(msgspec.Struct, frozen=True, gc=False):
    """Something in an object that was left out, and why, or that is doubtful; the rest of the object is used."""

    reason: str
    """Short CamelCase word for metrics and events."""
    message: str
    address: bytes = b""
    """The address, where the problem is about one."""
    holder: ServicePortName | None = None
    """Who is served there instead."""
    served: bool = False
    """Nothing was left out: a warning about something that is served."""


def bad_annotation(annotation: str, value: str, expected: str) -> Problem:
    """A value that counts as not given, with what would be understood."""
    shown = value if len(value) <= _LONGEST_VALUE else f"{value[:_LONGEST_VALUE]}..."
    return Problem("BadAnnotation", f"annotation {annotation}: {shown!r} is ignored; {expected}")


def told(problems: list[Problem]) -> list[Problem]:
    """As many of the problems of one object as somebody will read, and how many there are besides."""
    if len(problems) <= _MOST_TOLD:
        return problems
    more = len(problems) - _MOST_TOLD
    return [*problems[:_MOST_TOLD], Problem("MoreProblems", f"and {more} more problems, not told one by one")]
