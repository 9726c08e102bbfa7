"""What was left out of an object, in a form that metrics, events and people can use."""

from __future__ import annotations

import msgspec


class Problem(msgspec.Struct, frozen=True, gc=False):
    """Something in an object that was left out, and why; the rest of the object is used."""

    reason: str
    """Short CamelCase word for metrics and events."""
    message: str
