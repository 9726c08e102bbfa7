"""Bodies of nf_tables messages about our table. Elements take the fast path, everything else is rare."""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Iterator, Sequence

from pointsman.backends.nftables import clauses, userdata
from pointsman.backends.nftables.clauses import Rule
from pointsman.backends.nftables.fields import FamilyTraits
from pointsman.backends.nftables.fragment import Element
from pointsman.backends.nftables.schema import (
    AFFINITY_SIZE,
    TABLE,
    Chain,
    Data,
    FlowTimeout,
    SetSpec,
    compute_set_shape,
)
from pointsman.kernel import nf_tables as nf
from pointsman.kernel.attributes import (
    NLA_F_NESTED,
    pack_attribute,
    pack_nested,
    pack_text,
    pack_u8,
    pack_u32be,
)

_BYTES_PER_MESSAGE = 60_000
"""An attribute, here the list of elements, cannot exceed 64 KB."""


def pack_table_name(name: str = TABLE) -> bytes:
    """Return the attribute that begins every message: tables, chains, rules, sets and elements number it alike."""
    return pack_text(nf.NFTA_TABLE_NAME, name)


TABLE_NAME = pack_table_name()


def name_object(kind: int, name: str) -> bytes:
    """Return the body that names a chain, set or object, or what belongs to it."""
    return TABLE_NAME + pack_text(kind, name)


def encode_table(comment: str) -> bytes:
    flags = pack_u32be(nf.NFTA_TABLE_FLAGS, 0)
    return TABLE_NAME + flags + pack_attribute(nf.NFTA_TABLE_USERDATA, userdata.encode_comment(comment))


def encode_chain(chain: Chain) -> bytes:
    body = name_object(nf.NFTA_CHAIN_NAME, chain.name)
    if chain.hook is not None:
        priority = pack_attribute(nf.NFTA_HOOK_PRIORITY, struct.pack(">i", chain.hook.priority))
        body += pack_nested(nf.NFTA_CHAIN_HOOK, pack_u32be(nf.NFTA_HOOK_HOOKNUM, chain.hook.point), priority)
        body += pack_u32be(nf.NFTA_CHAIN_POLICY, chain.hook.policy) + pack_text(
            nf.NFTA_CHAIN_TYPE, chain.hook.kind
        )
    if chain.comment:
        body += pack_attribute(nf.NFTA_CHAIN_USERDATA, userdata.encode_comment(chain.comment))
    return body


def encode_rule(chain: str, rule: Rule) -> bytes:
    body = name_object(nf.NFTA_RULE_CHAIN, chain)
    body += pack_attribute(nf.NFTA_RULE_EXPRESSIONS | NLA_F_NESTED, rule.expressions)
    if rule.comment:
        body += pack_attribute(nf.NFTA_RULE_USERDATA, userdata.encode_comment(rule.comment))
    return body


def encode_set(spec: SetSpec, traits: FamilyTraits) -> bytes:
    shape = compute_set_shape(spec, traits)
    parts = [
        name_object(nf.NFTA_SET_NAME, spec.name),
        pack_u32be(nf.NFTA_SET_FLAGS, shape.flags),
        pack_u32be(nf.NFTA_SET_KEY_TYPE, shape.key_type),
        pack_u32be(nf.NFTA_SET_KEY_LEN, shape.key_length),
        pack_u32be(nf.NFTA_SET_ID, 1),
    ]
    if spec.data is not Data.NOTHING:
        parts.append(pack_u32be(nf.NFTA_SET_DATA_TYPE, shape.data_type))
        parts.append(pack_u32be(nf.NFTA_SET_DATA_LEN, shape.data_length))
    if spec.dynamic:
        parts.append(pack_nested(nf.NFTA_SET_DESC, pack_u32be(nf.NFTA_SET_DESC_SIZE, AFFINITY_SIZE)))
    if spec.interval:
        lengths = (pack_u32be(nf.NFTA_SET_FIELD_LEN, field.length) for field in traits.find_fields(spec.key))
        fields = (pack_nested(nf.NFTA_LIST_ELEM, length) for length in lengths)
        parts.append(pack_nested(nf.NFTA_SET_DESC, pack_nested(nf.NFTA_SET_DESC_CONCAT, *fields)))
    parts.append(pack_attribute(nf.NFTA_SET_USERDATA, userdata.encode_set_description(spec, traits)))
    if spec.counter:
        parts.append(pack_nested(nf.NFTA_SET_EXPR, pack_text(nf.NFTA_EXPR_NAME, "counter")))
    return b"".join(parts)


_TIMEOUT_STATES = {
    "established": nf.CTA_TIMEOUT_TCP_ESTABLISHED,
    "unreplied": nf.CTA_TIMEOUT_UDP_UNREPLIED,
    "replied": nf.CTA_TIMEOUT_UDP_REPLIED,
}


def encode_timeout_policy(timeout: FlowTimeout) -> dict[int, bytes]:
    """Return the attributes of the states that a policy sets."""
    return {_TIMEOUT_STATES[state]: struct.pack(">I", seconds) for state, seconds in timeout.policy.items()}


def name_timeout(name: str) -> bytes:
    return name_object(nf.NFTA_OBJ_NAME, name) + pack_u32be(nf.NFTA_OBJ_TYPE, nf.NFT_OBJECT_CT_TIMEOUT)


def encode_timeout(timeout: FlowTimeout, traits: FamilyTraits) -> bytes:
    policy = (pack_attribute(state, value) for state, value in encode_timeout_policy(timeout).items())
    return name_timeout(timeout.name) + pack_nested(
        nf.NFTA_OBJ_DATA,
        pack_attribute(nf.NFTA_CT_TIMEOUT_L3PROTO, struct.pack(">H", traits.nfproto)),
        pack_u8(nf.NFTA_CT_TIMEOUT_L4PROTO, timeout.protocol.value),
        pack_nested(nf.NFTA_CT_TIMEOUT_DATA, *policy),
    )


# --- elements -----------------------------------------------------------------------------------------------


_ELEMENTS = nf.NFTA_SET_ELEM_LIST_ELEMENTS | NLA_F_NESTED
_ITEM = nf.NFTA_LIST_ELEM | NLA_F_NESTED
_KEY = nf.NFTA_SET_ELEM_KEY | NLA_F_NESTED
_DATA = nf.NFTA_SET_ELEM_DATA | NLA_F_NESTED


@functools.lru_cache(maxsize=4096)
def _encode_verdict(chain: str) -> bytes:
    return pack_nested(nf.NFTA_SET_ELEM_DATA, clauses.encode_verdict("goto", chain))


@functools.lru_cache(maxsize=8)
def _encode_key_prefix(length: int) -> bytes:
    """Return the headers of NFTA_SET_ELEM_KEY around a value of `length` bytes (a multiple of four)."""
    return struct.pack("=HHHH", length + 8, _KEY, length + 4, nf.NFTA_DATA_VALUE)


def _encode_key_end(key: bytes) -> bytes:
    return pack_nested(nf.NFTA_SET_ELEM_KEY_END, pack_attribute(nf.NFTA_DATA_VALUE, key))


def encode_elements(entries: Iterable[tuple[Element, str]]) -> Iterator[bytes]:
    """Yield encoded list members for sets and verdict maps."""
    for element, label in entries:
        body = _encode_key_prefix(len(element.key)) + element.key
        if element.key_end:
            body += _encode_key_end(element.key_end)
        if element.chain is not None:
            body += _encode_verdict(element.chain)
        if label:
            body += pack_attribute(nf.NFTA_SET_ELEM_USERDATA, userdata.encode_comment(label))
        yield struct.pack("=HH", len(body) + 4, _ITEM) + body


def encode_slots(entries: Iterable[tuple[bytes, bytes]]) -> Iterator[bytes]:
    """Yield encoded list members for endpoint maps: all of one size, so one template serves."""
    head = middle = b""
    for key, data in entries:
        if not head:
            head = struct.pack("=HH", len(key) + len(data) + 20, _ITEM) + _encode_key_prefix(len(key))
            middle = struct.pack("=HHHH", len(data) + 8, _DATA, len(data) + 4, nf.NFTA_DATA_VALUE)
        yield head + key + middle + data


_CATCH_ALL = pack_u32be(nf.NFTA_SET_ELEM_FLAGS, nf.NFT_SET_ELEM_CATCHALL)


def encode_keys(keys: Iterable[tuple[bytes, bytes]]) -> Iterator[bytes]:
    """Yield encoded list members that name elements: keys only, empty for the catch-all."""
    for key, end in keys:
        body = _encode_key_prefix(len(key)) + key if key else _CATCH_ALL
        if end:
            body += _encode_key_end(end)
        yield struct.pack("=HH", len(body) + 4, _ITEM) + body


def encode_element_list(name: str, items: Sequence[bytes] = ()) -> bytes:
    """Return the body of a message about these elements of a set, or about all of them."""
    body = name_object(nf.NFTA_SET_ELEM_LIST_SET, name)
    return body + pack_attribute(_ELEMENTS, b"".join(items)) if items else body


def encode_element_lists(name: str, items: Iterable[bytes], *, one_by_one: bool) -> Iterator[bytes]:
    """Yield bodies with as many elements as fit into one message, or one each; those of a full load never exist all at once."""
    limit = 0 if one_by_one else _BYTES_PER_MESSAGE
    chunk: list[bytes] = []
    size = 0
    for item in items:
        if chunk and size + len(item) > limit:
            yield encode_element_list(name, chunk)
            chunk, size = [], 0
        chunk.append(item)
        size += len(item)
    if chunk:
        yield encode_element_list(name, chunk)
