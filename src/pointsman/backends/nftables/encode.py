"""nf_tables messages: payloads behind the family header. Elements take the fast path, all else is rare."""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Iterator, Sequence

from pointsman.backends.nftables import clauses, userdata
from pointsman.backends.nftables.clauses import Rule
from pointsman.backends.nftables.fragment import Element
from pointsman.backends.nftables.schema import AFFINITY_SIZE, Chain, Data, SetSpec
from pointsman.backends.nftables.terms import TABLE, Field, Terms, field_length, key_length
from pointsman.kernel.attributes import NLA_F_NESTED, attribute, nested, text, u32be

NEW_TABLE, GET_TABLE, DELETE_TABLE = 0, 1, 2
NEW_CHAIN, GET_CHAIN, DELETE_CHAIN = 3, 4, 5
NEW_RULE, GET_RULE, DELETE_RULE = 6, 7, 8
NEW_SET, GET_SET, DELETE_SET = 9, 10, 11
NEW_ELEMENT, GET_ELEMENT, DELETE_ELEMENT = 12, 13, 14

_CREATE = 0x400
_APPEND = 0x800
_ELEMENTS_PER_MESSAGE = 60_000
"""Bytes: an attribute cannot exceed 64 KB."""

_SET_INTERVAL, _SET_MAP, _SET_TIMEOUT, _SET_DYNAMIC, _SET_CONCAT = 0x4, 0x8, 0x10, 0x20, 0x80
_TYPE_PROTOCOL, _TYPE_SERVICE, _TYPE_INTEGER, _TYPE_VERDICT = 12, 13, 4, 0xFFFFFF00
_TYPE_BITS = 6

_TABLE_ATTRIBUTE = text(1, TABLE)

Encoded = tuple[int, int, bytes]


def new_table(comment: str) -> Encoded:
    body = _TABLE_ATTRIBUTE + u32be(2, 0) + attribute(6, userdata.comment(comment))
    return NEW_TABLE, _CREATE, body


def delete_table() -> Encoded:
    return DELETE_TABLE, 0, _TABLE_ATTRIBUTE


def flush_rules(chain: str) -> Encoded:
    return DELETE_RULE, 0, _TABLE_ATTRIBUTE + (text(2, chain) if chain else b"")


def new_chain(chain: Chain) -> Encoded:
    body = _TABLE_ATTRIBUTE + text(3, chain.name)
    if chain.hook is not None:
        priority = struct.pack(">i", chain.hook.priority)
        body += nested(4, u32be(1, chain.hook.number), attribute(2, priority))
        body += u32be(5, 1) + text(7, chain.hook.kind)
    if chain.comment:
        body += attribute(12, userdata.comment(chain.comment))
    return NEW_CHAIN, _CREATE, body


def delete_chain(name: str) -> Encoded:
    return DELETE_CHAIN, 0, _TABLE_ATTRIBUTE + text(3, name)


def new_rule(chain: str, rule: Rule) -> Encoded:
    body = _TABLE_ATTRIBUTE + text(2, chain) + attribute(4 | NLA_F_NESTED, rule.expressions)
    if rule.comment:
        body += attribute(7, userdata.comment(rule.comment))
    return NEW_RULE, _CREATE | _APPEND, body


def new_set(spec: SetSpec, terms: Terms) -> Encoded:
    is_map = spec.data is not Data.NOTHING
    flags = (
        (_SET_MAP if is_map else 0)
        | (_SET_INTERVAL | _SET_CONCAT if spec.interval else 0)
        | (_SET_TIMEOUT | _SET_DYNAMIC if spec.dynamic else 0)
    )
    endpoint_fields = (Field.DESTINATION, Field.PORT) if spec.data is Data.ENDPOINT else ()
    parts = [
        _TABLE_ATTRIBUTE,
        text(2, spec.name),
        u32be(3, flags),
        u32be(4, _datatype(spec.key, terms)),
        u32be(5, key_length(spec.key, terms)),
        u32be(10, 1),
    ]
    if spec.data is Data.VERDICT:
        parts += [u32be(6, _TYPE_VERDICT), u32be(7, 0)]
    elif spec.data is Data.ENDPOINT:
        parts += [u32be(6, _datatype(endpoint_fields, terms)), u32be(7, key_length(endpoint_fields, terms))]
    if spec.dynamic:
        parts.append(nested(9, u32be(1, AFFINITY_SIZE)))
    if spec.interval:
        lengths = [nested(1, u32be(1, field_length(field, terms))) for field in spec.key]
        parts.append(nested(9, nested(2, *lengths)))
    description = userdata.set_description(
        spec.key, endpoint_fields, is_map=is_map, typeof=spec.typeof, text=spec.comment, terms=terms
    )
    parts.append(attribute(13, description))
    if spec.counter:
        parts.append(nested(17, text(1, "counter")))
    return NEW_SET, _CREATE, b"".join(parts)


def _datatype(fields: Sequence[Field], terms: Terms) -> int:
    numbers = {
        Field.SOURCE: terms.address_datatype,
        Field.DESTINATION: terms.address_datatype,
        Field.PROTOCOL: _TYPE_PROTOCOL,
        Field.PORT: _TYPE_SERVICE,
        Field.SLOT: _TYPE_INTEGER,
    }
    value = 0
    for field in fields:
        value = value << _TYPE_BITS | numbers[field]
    return value


def flush_set(name: str) -> Encoded:
    return DELETE_ELEMENT, 0, _TABLE_ATTRIBUTE + text(2, name)


def delete_set(name: str) -> Encoded:
    return DELETE_SET, 0, _TABLE_ATTRIBUTE + text(2, name)


# --- elements -----------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def _verdict(chain: str) -> bytes:
    return nested(2, clauses.verdict_data("goto", chain))


@functools.lru_cache(maxsize=8)
def _key_prefix(length: int) -> bytes:
    """Headers of NFTA_SET_ELEM_KEY around a value of `length` bytes (a multiple of four)."""
    return struct.pack("=HHHH", length + 8, 1 | NLA_F_NESTED, length + 4, 1)


def element_items(entries: Iterable[tuple[Element, str]]) -> list[bytes]:
    """Encoded list members for sets and verdict maps."""
    items = []
    for element, label in entries:
        body = _key_prefix(len(element.key)) + element.key
        if element.key_end:
            body += nested(10, attribute(1, element.key_end))
        if element.chain is not None:
            body += _verdict(element.chain)
        if label:
            body += attribute(6, userdata.comment(label))
        items.append(struct.pack("=HH", len(body) + 4, 1 | NLA_F_NESTED) + body)
    return items


def slot_items(entries: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
    """Encoded list members for endpoint maps: all of one size, so one template serves."""
    if not entries:
        return []
    key_size, data_size = len(entries[0][0]), len(entries[0][1])
    head = struct.pack("=HH", key_size + data_size + 20, 1 | NLA_F_NESTED) + _key_prefix(key_size)
    middle = struct.pack("=HHHH", data_size + 8, 2 | NLA_F_NESTED, data_size + 4, 1)
    return [head + key + middle + data for key, data in entries]


def key_items(keys: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """Encoded list members for deletion: keys only."""
    items = []
    for key, end in keys:
        body = _key_prefix(len(key)) + key
        if end:
            body += nested(10, attribute(1, end))
        items.append(struct.pack("=HH", len(body) + 4, 1 | NLA_F_NESTED) + body)
    return items


def new_elements(name: str, items: Sequence[bytes], *, one_by_one: bool) -> Iterator[Encoded]:
    for chunk in _chunks(items, one_by_one):
        yield NEW_ELEMENT, _CREATE, _element_body(name, chunk)


def delete_elements(name: str, items: Sequence[bytes], *, one_by_one: bool) -> Iterator[Encoded]:
    for chunk in _chunks(items, one_by_one):
        yield DELETE_ELEMENT, 0, _element_body(name, chunk)


def _element_body(name: str, chunk: Sequence[bytes]) -> bytes:
    return _TABLE_ATTRIBUTE + text(2, name) + attribute(3 | NLA_F_NESTED, b"".join(chunk))


def _chunks(items: Sequence[bytes], one_by_one: bool) -> Iterator[Sequence[bytes]]:
    limit = 0 if one_by_one else _ELEMENTS_PER_MESSAGE
    start = size = 0
    for index, item in enumerate(items):
        if size and size + len(item) > limit:
            yield items[start:index]
            start, size = index, 0
        size += len(item)
    if start < len(items):
        yield items[start:]
