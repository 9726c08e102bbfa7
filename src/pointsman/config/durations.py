"""Durations and sizes as Go and Kubernetes write them: `1h30m`, `250ms`, `2Ki`.

Go counts nanoseconds, `timedelta` microseconds: a finer value is rounded away from zero, so that "a little" never
becomes "none".
"""

from __future__ import annotations

import re
from datetime import timedelta

_NANOSECONDS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_PART = re.compile(r"([0-9]*)(?:\.([0-9]*))?(ns|us|µs|μs|ms|s|m|h)")
_MAX_INT64 = (1 << 63) - 1
_QUANTITY = re.compile(r"([+]?)([0-9]+|[0-9]+\.[0-9]*|\.[0-9]+)(Ki|Mi|Gi|Ti|Pi|Ei|k|K|M|G|T|P|E|)")
_MULTIPLES: dict[str, int] = {
    "": 1,
    "k": 10**3,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "E": 10**18,
} | {f"{prefix}i": 1024 ** (power + 1) for power, prefix in enumerate("KMGTPE")}


def duration_from_text(text: str) -> timedelta:
    """Return the duration; ValueError with the reason when the text is not one."""
    body = text[1:] if text[:1] in ("-", "+") else text
    if body == "0":
        return timedelta(0)
    total = position = 0
    while position < len(body):
        part = _PART.match(body, position)
        if part is None or not (part[1] or part[2]):
            raise ValueError(
                f"invalid duration {text!r}: write numbers with units h, m, s, ms, us, ns, such as 1h30m"
            )
        fraction = part[2] or ""
        unit = _NANOSECONDS[part[3]]
        total += int(part[1] or "0") * unit + (int(fraction) * unit // 10 ** len(fraction) if fraction else 0)
        position = part.end()
        if total > _MAX_INT64:
            raise ValueError(f"invalid duration {text!r}: longer than 292 years")
    if not body:
        raise ValueError(f"invalid duration {text!r}: it is empty")
    microseconds = -(-total // 1000)
    return timedelta(microseconds=-microseconds if text[0] == "-" else microseconds)


def duration_from_nanoseconds(count: int) -> timedelta:
    """Return the duration of so many nanoseconds; ValueError beyond Go's range."""
    if abs(count) > _MAX_INT64:
        raise ValueError(f"invalid duration {count}: longer than 292 years")
    microseconds = -(-abs(count) // 1000)
    return timedelta(microseconds=-microseconds if count < 0 else microseconds)


def format_duration(duration: timedelta) -> str:
    """Return the duration as Go prints it: `1h30m0s`, `1.5s`, `250ms`, `0s`."""
    total = duration // timedelta(microseconds=1)
    sign, total = ("-", -total) if total < 0 else ("", total)
    if total == 0:
        return "0s"
    if total < 1_000:
        return f"{sign}{total}µs"
    if total < 1_000_000:
        return f"{sign}{_format_decimal(total, 1_000)}ms"
    seconds, micros = divmod(total, 1_000_000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{_format_decimal(seconds * 1_000_000 + micros, 1_000_000)}s"
    if hours or minutes:
        text = f"{minutes}m{text}"
    return f"{sign}{hours}h{text}" if hours else f"{sign}{text}"


def _format_decimal(value: int, unit: int) -> str:
    whole, rest = divmod(value, unit)
    return f"{whole}.{str(rest + unit)[1:].rstrip('0')}" if rest else str(whole)


def bytes_from_quantity(text: str) -> int:
    """Return the bytes of `512`, `2Ki`, `3M`, or ValueError; fractions are rounded up as Kubernetes does."""
    found = _QUANTITY.fullmatch(text)
    if found is None:
        raise ValueError(f"invalid size {text!r}: write bytes (512) or multiples such as 1K, 2Ki, 3M, 4Mi")
    whole, _, fraction = found[2].partition(".")
    scaled = int((whole or "0") + fraction) * _MULTIPLES[found[3]]
    size = -(-scaled // int("1" + "0" * len(fraction)))
    if size > _MAX_INT64:
        raise ValueError(f"invalid size {text!r}: too large")
    return size
