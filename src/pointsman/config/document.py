"""Between plain data (from YAML or JSON) and the frozen configuration values, collecting every problem.

msgspec would stop at the first mistake; a person editing a file wants to see all of them at once. Unknown fields are
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
    duration_text,
)
from pointsman.text import did_you_mean

_Block = TypeVar("_Block", bound=msgspec.Struct)
_LARGEST_FLOAT32 = 3.4028234663852886e38


class Findings:
    """Problems, which make the document unusable, and warnings, which do not, in the order found."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.warnings: list[str] = []

    def invalid(self, path: str, value: object, rule: str) -> None:
        self.problems.append(invalid(path, value, rule))


def invalid(path: str, value: object, rule: str) -> str:
    """One problem in upstream's wording."""
    return f"{path}: Invalid value: {shown(value)}: {rule}"


def shown(value: object) -> str:
    """A value as the user would have written it, shortened."""
    if isinstance(value, timedelta):
        value = duration_text(value)
    try:
        text = msgspec.json.encode(value).decode()
    except (TypeError, ValueError, OverflowError, RecursionError):
        text = type(value).__name__
    return text if len(text) <= 200 else text[:200] + "…"


@cache
def _fields(block: type[msgspec.Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    return {field.encode_name: field for field in msgspec.structs.fields(block)}


def block_from_plain(block: type[_Block], data: object, path: str, findings: Findings) -> _Block:
    """The block with every usable field taken from `data`; a null counts as absent, as in Go."""
    values: dict[str, Any] = {}
    if not isinstance(data, Mapping):
        findings.invalid(path, data, "must be an object")
        return block()
    known = _fields(block)
    for key, value in data.items():
        field = known.get(key) if isinstance(key, str) else None
        if field is None:
            findings.warnings.append(
                f'unknown field "{path}.{key}" is ignored{did_you_mean(str(key), known)}'
            )
            continue
        if value is None:
            continue
        decoded = _value(field.type, value, f"{path}.{key}", findings)
        if decoded is not None:
            values[field.name] = decoded
    return block(**values)


def _value(kind: Any, value: object, path: str, findings: Findings) -> Any:
    """The decoded value, or None after reporting a problem."""
    meta: msgspec.Meta | None = None
    if get_origin(kind) is Annotated:
        kind, meta = get_args(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return block_from_plain(kind, value, path, findings)
    if get_origin(kind) is tuple:
        return _sequence(get_args(kind)[0], value, path, findings)
    if get_origin(kind) is dict:
        return _switches(value, path, findings)
    try:
        return _scalar(kind, meta, value)
    except ValueError as wrong:
        findings.invalid(path, value, str(wrong))
        return None


def _sequence(kind: Any, value: object, path: str, findings: Findings) -> tuple[Any, ...] | None:
    if not isinstance(value, list):
        findings.invalid(path, value, "must be a list")
        return None
    items = [_value(kind, item, f"{path}[{index}]", findings) for index, item in enumerate(value)]
    return tuple(item for item in items if item is not None)


def _switches(value: object, path: str, findings: Findings) -> dict[str, bool] | None:
    if not isinstance(value, Mapping):
        findings.invalid(path, value, "must be an object of name: true or false")
        return None
    switches = {}
    for name, on in value.items():
        if not isinstance(on, bool):
            findings.invalid(f"{path}.{name}", on, "must be true or false")
        else:
            switches[str(name)] = on
    return switches


def _scalar(kind: Any, meta: msgspec.Meta | None, value: object) -> Any:
    if kind is timedelta:
        return _duration(meta, value)
    if kind is bool:
        if isinstance(value, bool):
            return value
        raise ValueError("must be true or false")
    if kind is str:
        if isinstance(value, str):
            return value
        raise ValueError("must be a string; put it in quotes")
    if kind is float:
        if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _LARGEST_FLOAT32:
            return float(value)
        raise ValueError("must be a number")
    return _integer(meta, value)


def _integer(meta: msgspec.Meta | None, value: object) -> int:
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


def _duration(meta: msgspec.Meta | None, value: object) -> timedelta:
    if isinstance(value, str):
        return duration_from_text(value)
    if meta is not None and isinstance(value, int) and not isinstance(value, bool):
        return duration_from_nanoseconds(value)
    raise ValueError("must be a duration in quotes, such as 30s or 1h30m")


def plain_from_block(block: msgspec.Struct) -> dict[str, object]:
    """The block as plain data under upstream's names, in upstream's order; empty lists are null."""
    return {
        field.encode_name: _plain(field.type, getattr(block, field.name))
        for field in msgspec.structs.fields(type(block))
    }


def _plain(kind: Any, value: object) -> object:
    if isinstance(value, msgspec.Struct):
        return plain_from_block(value)
    if isinstance(value, timedelta):
        return duration_text(value)
    if isinstance(value, tuple):
        return [_plain(None, item) for item in value] or None
    if isinstance(value, dict):
        return dict(sorted(value.items()))
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return int(value)
    if get_origin(kind) is Annotated and (get_args(kind)[1].extra or {}).get("quantity"):
        return str(value)
    return value
