"""The protobuf wire format: decodes messages into structs, with the fields that a table names and no others.

Written by hand because every start and event uses it, and measured: decoding with the protobuf library and filling our
structs takes a third longer, and importing it costs 75 ms and 8 MB. A reader raises IndexError or UnicodeDecodeError for
bytes that are not a message; `decode_with` in `kube/codec.py` translates them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from pointsman.model.objects import MAX_ENTRIES

T = TypeVar("T")
Reader = Callable[[bytes], T]
Collect = Callable[[list[Any], int, Any], None]

_MAX_CACHED_VALUES, _MAX_CACHED_BYTES = 4096, 256
_MAX_PAIRS = 100_000
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
_FIXED_LENGTHS = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}
_MAX_VARINT_SHIFT = 63


class Malformed(ValueError):
    """The bytes are not a message of this kind."""


class Field(NamedTuple):
    """How to read one field of a message."""

    number: int
    wire_type: int
    read: Callable[[Any], Any]
    collect: Collect | None = None
    """Adds one of several values; None where the last one counts."""


class _Slot(NamedTuple):
    """Where a field goes in the struct, and how."""

    where: int
    read: Callable[[Any], Any]
    collect: Collect | None


class BoundedCache(dict[bytes, T], Generic[T]):
    """Returns the same value for the same bytes: a hundred thousand endpoints have a handful of conditions and zones.

    Cleared when full; long values are not kept.
    """

    def __init__(self, read: Reader[T]) -> None:
        super().__init__()
        self._read = read

    def __missing__(self, data: bytes) -> T:
        if len(data) > _MAX_CACHED_BYTES:
            return self._read(data)
        if len(self) >= _MAX_CACHED_VALUES:
            self.clear()
        value = self[data] = self._read(data)
        return value


_name = BoundedCache(lambda data: sys.intern(data.decode())).__getitem__


def text(number: int, *, empty: str | None = "") -> Field:
    """A string; `empty` is what the API means by an empty one, which Go writes for every field without a value."""
    if empty == "":
        return Field(number, _BYTES, bytes.decode)
    return Field(number, _BYTES, lambda data: data.decode() or empty)


def name(number: int) -> Field:
    """A string that many objects share."""
    return Field(number, _BYTES, _name)


def texts(number: int) -> Field:
    return Field(number, _BYTES, bytes.decode, _append)


def mapping(number: int) -> Field:
    """A map from strings to strings."""
    return Field(number, _BYTES, _read_pair, _add_entry)


def flag(number: int) -> Field:
    return Field(number, _VARINT, bool)


def integer(number: int) -> Field:
    """An int32; the wire has negative ones as 64 bits."""
    return Field(number, _VARINT, lambda value: value if value < 1 << 31 else _to_signed(value, 32))


def long_integer(number: int) -> Field:
    return Field(number, _VARINT, lambda value: value if value < 1 << 63 else _to_signed(value, 64))


def one(number: int, read: Reader[Any]) -> Field:
    """A message, or whatever else `read` makes of its bytes."""
    return Field(number, _BYTES, read)


def many(number: int, read: Reader[Any]) -> Field:
    return Field(number, _BYTES, read, _append)


def message(kind: Callable[..., T], /, **fields: Field) -> Reader[T]:
    """Return a reader of messages into the struct `kind`, whose fields are named by the keywords.

    Fields that are not named are skipped, those that do not occur keep the struct's default. A field of the wrong wire
    type, and a missing one without default, make the message malformed.
    """
    names = kind.__struct_fields__  # type: ignore[attr-defined]
    slots = {
        _encode_tag(field): _Slot(names.index(key), field.read, field.collect)
        for key, field in fields.items()
    }
    slots |= {
        field.number << 3 | wire_type: _Slot(0, _build_refusal(key), None)
        for key, field in fields.items()
        for wire_type in (_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES)
        if wire_type != field.wire_type
    }
    optional = kind.__struct_defaults__  # type: ignore[attr-defined]
    required = len(names) - len(optional)
    defaults = [*([None] * required), *optional]
    slot_of = slots.get

    def read(data: bytes) -> T:
        values = defaults.copy()
        position, end = 0, len(data)
        while position < end:
            tag = data[position]
            position += 1
            if tag > 0x7F:
                tag, position = read_varint(data, position - 1)
            slot = slot_of(tag)
            wire_type = tag & 7
            if wire_type == _BYTES:
                length = data[position]
                position += 1
                if length > 0x7F:
                    length, position = read_varint(data, position - 1)
                start, position = position, position + length
                if slot is not None:
                    where, read_value, collect = slot
                    if collect is None:
                        values[where] = read_value(data[start:position])
                    else:
                        collect(values, where, read_value(data[start:position]))
            elif wire_type == _VARINT:
                number, position = read_varint(data, position)
                if slot is not None:
                    values[slot.where] = slot.read(number)
            else:
                position += _get_fixed_length(wire_type)
                if slot is not None:
                    slot.read(b"")
        if position != end:
            raise Malformed("it ends in the middle of a field")
        if required and None in values[:required]:
            raise Malformed(f"{names[values.index(None)]} is missing")
        return kind(*values)

    return read


def _append(values: list[Any], where: int, item: object) -> None:
    found = values[where]
    if found is None:
        values[where] = [item]
    elif len(found) < MAX_ENTRIES:
        found.append(item)
    else:
        raise Malformed(f"a list has more than {MAX_ENTRIES} entries")


def _add_entry(values: list[Any], where: int, entry: tuple[str, str]) -> None:
    found = values[where]
    if found is None:
        values[where] = {entry[0]: entry[1]}
    elif len(found) < _MAX_PAIRS:
        found[entry[0]] = entry[1]
    else:
        raise Malformed(f"a map has more than {_MAX_PAIRS} entries")


def iter_parts(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield number and contents of the fields that hold bytes, without copying them: for a message as large as a list."""
    position, end = 0, len(data)
    while position < end:
        tag, position = read_varint(data, position)
        if tag & 7 == _BYTES:
            length, position = read_varint(data, position)
            if position + length > end:
                raise Malformed("it ends in the middle of a field")
            yield tag >> 3, data[position : position + length]
            position += length
        elif tag & 7 == _VARINT:
            _, position = read_varint(data, position)
        else:
            position += _get_fixed_length(tag & 7)


def read_varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """Return the number at `position` and the position after it. Raises IndexError when it does not end."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > _MAX_VARINT_SHIFT:
            raise Malformed("a number has more than 64 bits")


def _encode_tag(field: Field) -> int:
    return field.number << 3 | field.wire_type


def _get_fixed_length(wire_type: int) -> int:
    try:
        return _FIXED_LENGTHS[wire_type]
    except KeyError:
        raise Malformed(f"there is no wire type {wire_type}") from None


def _build_refusal(key: str) -> Callable[[Any], Any]:
    def refuse(_value: object) -> None:
        raise Malformed(f"{key} has the wrong type")

    return refuse


def _to_signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


class _Entry(msgspec.Struct, frozen=True, gc=False):
    """An entry of a map"""

    key: str = ""
    value: str = ""


_read_entry = message(_Entry, key=name(1), value=text(2))


def _read_pair(data: bytes) -> tuple[str, str]:
    entry = _read_entry(data)
    return entry.key, entry.value
