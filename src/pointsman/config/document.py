"""Conversion between plain data (from YAML or JSON) and the frozen configuration values, collecting every problem.

msgspec would stop at the first mistake; a user who edits a file needs to see all of them at once. Unknown fields are
only warned about, because files outlive versions, but with the nearest known name, because most are typing errors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from typing import Annotated, Any, TypeVar, get_args, get_origin

import msgspec

from pointsman.config.durations import (
    bytes_from_quantity,
    duration_from_nanoseconds,
    duration_from_text,
    format_duration,
)
from pointsman.text import did_you_mean

_Block = TypeVar("_Block", bound=msgspec.Struct)
_MAX_FLOAT32 = 3.4028234663852886e38


class ProblemList:
    """Errors, which make the document unusable, and warnings, which do not, in the order found."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.warnings: list[str] = []

    def add(self, path: str, value: object, rule: str) -> None:
        """Add a problem in upstream's wording."""
        self.errors.append(format_invalid(path, value, rule))


def format_invalid(path: str, value: object, rule: str) -> str:
    """Return one problem in upstream's wording."""
    return f"{path}: Invalid value: {format_value(value)}: {rule}"


def format_value(value: object) -> str:
    """Return a value as the user would have written it, truncated."""
    if isinstance(value, timedelta):
        value = format_duration(value)
    try:
        text = msgspec.json.encode(value).decode()
    except (TypeError, ValueError, OverflowError, RecursionError):
        text = type(value).__name__
    return text if len(text) <= 200 else text[:200] + "…"


@cache
def _index_fields(block: type[msgspec.Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    return {field.encode_name: field for field in msgspec.structs.fields(block)}


def block_from_plain(block: type[_Block], data: object, path: str, problems: ProblemList) -> _Block:
    """Return the block with every usable field taken from `data`; a null counts as absent, as in Go."""
    values: dict[str, Any] = {}
    if not isinstance(data, Mapping):
        problems.add(path, data, "must be an object")
        return block()
    known = _index_fields(block)
    for key, value in data.items():
        field = known.get(key) if isinstance(key, str) else None
        if field is None:
            problems.warnings.append(
                f'unknown field "{path}.{key}" is ignored{did_you_mean(str(key), known)}'
            )
            continue
        if value is None:
            continue
        decoded = _decode(field.type, value, f"{path}.{key}", problems)
        if decoded is not None:
            values[field.name] = decoded
    return block(**values)


def _decode(kind: Any, value: object, path: str, problems: ProblemList) -> Any:
    """Return the decoded value, or None after adding a problem."""
    meta: msgspec.Meta | None = None
    if get_origin(kind) is Annotated:
        kind, meta = get_args(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return block_from_plain(kind, value, path, problems)
    if get_origin(kind) is tuple:
        return _decode_list(get_args(kind)[0], value, path, problems)
    if get_origin(kind) is dict:
        return _decode_switches(value, path, problems)
    try:
        return _decode_scalar(kind, meta, value)
    except ValueError as wrong:
        problems.add(path, value, str(wrong))
        return None


def _decode_list(kind: Any, value: object, path: str, problems: ProblemList) -> tuple[Any, ...] | None:
    if not isinstance(value, list):
        problems.add(path, value, "must be a list")
        return None
    items = [_decode(kind, item, f"{path}[{index}]", problems) for index, item in enumerate(value)]
    return tuple(item for item in items if item is not None)


def _decode_switches(value: object, path: str, problems: ProblemList) -> dict[str, bool] | None:
    if not isinstance(value, Mapping):
        problems.add(path, value, "must be an object of name: true or false")
        return None
    switches = {}
    for name, on in value.items():
        if not isinstance(on, bool):
            problems.add(f"{path}.{name}", on, "must be true or false")
        else:
            switches[str(name)] = on
    return switches


def _decode_scalar(kind: Any, meta: msgspec.Meta | None, value: object) -> Any:
    if kind is timedelta:
        return _decode_duration(meta, value)
    if kind is bool:
        if isinstance(value, bool):
            return value
        raise ValueError("must be true or false")
    if kind is str:
        if isinstance(value, str):
            return value
        raise ValueError("must be a string; put it in quotes")
    if kind is float:
        if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _MAX_FLOAT32:
            return float(value)
        raise ValueError("must be a number")
    return _decode_integer(meta, value)


def _decode_integer(meta: msgspec.Meta | None, value: object) -> int:
    if meta is not None and meta.extra and "quantity" in meta.extra and isinstance(value, str):
        return bytes_from_quantity(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError("must be an integer")
    low, high = (meta.ge, meta.le) if meta is not None else (None, None)
    if (low is not None and value < low) or (high is not None and value > high):
        raise ValueError(f"must be within the range [{low}, {high}]")
    if low is None and not 0 <= value < 1 << 63:
        raise ValueError("must be a size in bytes, zero or more")
    return value


def _decode_duration(meta: msgspec.Meta | None, value: object) -> timedelta:
    if isinstance(value, str):
        return duration_from_text(value)
    if meta is not None and isinstance(value, int) and not isinstance(value, bool):
        return duration_from_nanoseconds(value)
    raise ValueError("must be a duration in quotes, such as 30s or 1h30m")


def plain_from_block(block: msgspec.Struct) -> dict[str, object]:
    """Return the block as plain data under upstream's names, in upstream's order; empty lists are null."""
    return {
        field.encode_name: _to_plain(field.type, getattr(block, field.name))
        for field in msgspec.structs.fields(type(block))
    }


def _to_plain(kind: Any, value: object) -> object:
    if isinstance(value, msgspec.Struct):
        return plain_from_block(value)
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, tuple):
        return [_to_plain(None, item) for item in value] or None
    if isinstance(value, dict):
        return dict(sorted(value.items()))
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return int(value)
    if get_origin(kind) is Annotated and (get_args(kind)[1].extra or {}).get("quantity"):
        return str(value)
    return value
