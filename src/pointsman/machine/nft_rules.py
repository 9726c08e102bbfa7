"""nf_tables rules of other programs, from the kernel's expressions to matches and actions. Does no I/O.

Addresses, ports, interfaces and connection states are understood, in nft's own expressions and in the common
extensions of iptables. Everything else becomes a match of unknown result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, NamedTuple

import msgspec

from pointsman.errors import KernelError
from pointsman.kernel import attributes as nla
from pointsman.kernel import nf_tables as nf
from pointsman.kernel.nfnl import parse_value
from pointsman.machine.nft_matches import (
    Loaded,
    build_comparison,
    build_range_match,
    find_value_length,
    parse_conntrack_match,
    parse_port_match,
)
from pointsman.machine.packet_filter import BIT_NAMES, Action, FilterRule, Match, PacketField
from pointsman.model.addresses import Family

_ADDRESSES = {
    Family.IPV4: {12: PacketField.SOURCE, 16: PacketField.DESTINATION},
    Family.IPV6: {8: PacketField.SOURCE, 24: PacketField.DESTINATION},
}
_PROTOCOL_OFFSET = {Family.IPV4: 9, Family.IPV6: 6}
_META = {
    nf.NFT_META_NFPROTO: PacketField.FAMILY,
    nf.NFT_META_L4PROTO: PacketField.PROTOCOL,
    nf.NFT_META_IIFNAME: PacketField.IN_INTERFACE,
    nf.NFT_META_OIFNAME: PacketField.OUT_INTERFACE,
}
_META_NAMES = {nf.NFT_META_MARK: "mark", nf.NFT_META_IIF: "iif", nf.NFT_META_OIF: "oif"}
_CT = {nf.NFT_CT_STATE: PacketField.CT_STATE, nf.NFT_CT_STATUS: PacketField.CT_STATUS}
TARGETS = {
    "REJECT": Action.REJECT,
    "MASQUERADE": Action.SOURCE_NAT,
    "SNAT": Action.SOURCE_NAT,
    "DNAT": Action.DESTINATION_NAT,
    "REDIRECT": Action.DESTINATION_NAT,
    "NOTRACK": Action.UNTRACK,
    "TPROXY": Action.UNKNOWN,
    "NFQUEUE": Action.UNKNOWN,
}
"""Of iptables; after others the next rule follows."""
_STATEMENTS = {
    "reject": Action.REJECT,
    "masq": Action.SOURCE_NAT,
    "redir": Action.DESTINATION_NAT,
    "notrack": Action.UNTRACK,
    "queue": Action.UNKNOWN,
    "tproxy": Action.UNKNOWN,
}
_WITHOUT_EFFECT = frozenset(("counter", "log", "last", "objref", "flow_offload", "dup", "byteorder"))
_VERDICTS = {
    nf.NF_DROP: Action.DROP,
    nf.NF_ACCEPT: Action.ACCEPT,
    nf.NFT_JUMP & 0xFFFFFFFF: Action.JUMP,
    nf.NFT_GOTO & 0xFFFFFFFF: Action.GOTO,
    nf.NFT_RETURN & 0xFFFFFFFF: Action.RETURN,
    nf.NFT_CONTINUE & 0xFFFFFFFF: Action.PASS,
}
_ANONYMOUS = "__"
"""Prefix of the names that the kernel gives to sets inside rules."""
_MAX_LISTED = 10


class SetElement(NamedTuple):
    """A range of keys in a set and, in a verdict map, the action for packets with such a key."""

    low: bytes
    high: bytes
    action: Action = Action.PASS
    target: str = ""


Elements = Callable[[str], Sequence[SetElement] | None]
"""Returns the elements of a set by its name; None when they cannot be used."""


def parse_rule(
    expressions: bytes, family: Family, elements: Elements, handle: int = 0, comment: str = ""
) -> list[FilterRule]:
    """Return a rule as it applies to packets of one family; a lookup in a verdict map becomes several rules.

    A malformed rule becomes one of unknown matches and action. Raises KernelError when elements cannot be read.
    """
    decoder = _Decoder(family, elements)
    try:
        for _, item in nla.iter_attributes(expressions):
            parts = nla.parse_attributes(item)
            decoder.take(
                _parse_text(parts, nf.NFTA_EXPR_NAME), nla.parse_attributes(parts.get(nf.NFTA_EXPR_DATA, b""))
            )
    except KernelError:
        raise
    except Exception:  # noqa: BLE001 rules of other programs may be anything, and must not end an explanation
        return [build_unreadable_rule(handle, comment)]
    matches = tuple(decoder.matches)
    if decoder.branches:
        return [
            FilterRule((*matches, branch), element.action, element.target, handle, comment)
            for branch, element in decoder.branches
        ]
    return [FilterRule(matches, decoder.action, decoder.target, handle, comment or decoder.comment)]


def build_unreadable_rule(handle: int = 0, comment: str = "") -> FilterRule:
    """Return the placeholder for a rule that cannot be parsed."""
    return FilterRule((Match("a rule that cannot be read"),), Action.UNKNOWN, "", handle, comment)


class _Decoder:
    """Follows the registers of one rule."""

    def __init__(self, family: Family, elements: Elements) -> None:
        self._family = family
        self._elements = elements
        self._registers: dict[int, Loaded] = {}
        self.matches: list[Match] = []
        self.branches: list[tuple[Match, SetElement]] = []
        self.action = Action.PASS
        self.target = ""
        self.comment = ""

    def take(self, name: str, data: Mapping[int, bytes]) -> None:
        """Add what one expression does to the rule; an unknown one loads an unknown value."""
        handler = self._HANDLERS.get(name)
        if handler is not None:
            handler(self, data)
        elif name in _STATEMENTS:
            self.action = _STATEMENTS[name]
        elif name not in _WITHOUT_EFFECT:
            self._load(data, 1, Loaded(None, name))
            if name in ("limit", "quota", "connlimit", "dynset"):
                self.matches.append(Match(name))

    def _load(self, data: Mapping[int, bytes], attribute: int, loaded: Loaded) -> None:
        self._registers[_parse_number(data, attribute)] = loaded

    def _get_held(self, data: Mapping[int, bytes], attribute: int) -> Loaded:
        return self._registers.get(_parse_number(data, attribute), Loaded(None, "something"))

    def _take_payload(self, data: Mapping[int, bytes]) -> None:
        if nf.NFTA_PAYLOAD_DREG not in data:
            return
        base, offset = _parse_number(data, nf.NFTA_PAYLOAD_BASE), _parse_number(data, nf.NFTA_PAYLOAD_OFFSET)
        length = _parse_number(data, nf.NFTA_PAYLOAD_LEN)
        field = None
        if base == nf.NFT_PAYLOAD_NETWORK_HEADER and length <= self._family.address_length:
            field = _ADDRESSES[self._family].get(offset)
            if field is None and offset == _PROTOCOL_OFFSET[self._family] and length == 1:
                field = PacketField.PROTOCOL
        elif base == nf.NFT_PAYLOAD_TRANSPORT_HEADER and length == 2:
            field = {0: PacketField.SOURCE_PORT, 2: PacketField.DESTINATION_PORT}.get(offset)
        text = field.value if field else f"payload {base},{offset},{length}"
        self._load(data, nf.NFTA_PAYLOAD_DREG, Loaded(field, text, length))

    def _take_meta(self, data: Mapping[int, bytes]) -> None:
        if nf.NFTA_META_DREG in data:
            key = _parse_number(data, nf.NFTA_META_KEY)
            field = _META.get(key)
            text = field.value if field else _META_NAMES.get(key, f"meta {key}")
            self._load(data, nf.NFTA_META_DREG, Loaded(field, text))

    def _take_ct(self, data: Mapping[int, bytes]) -> None:
        if nf.NFTA_CT_DREG in data:
            key = _parse_number(data, nf.NFTA_CT_KEY)
            field = _CT.get(key)
            self._load(data, nf.NFTA_CT_DREG, Loaded(field, field.value if field else f"ct {key}"))

    def _take_bitwise(self, data: Mapping[int, bytes]) -> None:
        held = self._get_held(data, nf.NFTA_BITWISE_SREG)
        plain = not any(_parse_value(data, nf.NFTA_BITWISE_XOR))
        mask = _parse_value(data, nf.NFTA_BITWISE_MASK)
        masked = held._replace(mask=mask) if plain and mask else held._replace(field=None)
        self._load(data, nf.NFTA_BITWISE_DREG, masked)

    def _take_cmp(self, data: Mapping[int, bytes]) -> None:
        held = self._get_held(data, nf.NFTA_CMP_SREG)
        operation = _parse_number(data, nf.NFTA_CMP_OP)
        self.matches.append(
            build_comparison(held, operation, _parse_value(data, nf.NFTA_CMP_DATA), self._family)
        )

    def _take_range(self, data: Mapping[int, bytes]) -> None:
        held = self._get_held(data, nf.NFTA_RANGE_SREG)
        low, high = (_parse_value(data, key) for key in (nf.NFTA_RANGE_FROM_DATA, nf.NFTA_RANGE_TO_DATA))
        negated = _parse_number(data, nf.NFTA_RANGE_OP) == nf.NFT_CMP_NEQ
        self.matches.append(build_range_match(held, ((low, high),), self._family, negated=negated))

    def _take_lookup(self, data: Mapping[int, bytes]) -> None:
        held, name = self._get_held(data, nf.NFTA_LOOKUP_SREG), _parse_text(data, nf.NFTA_LOOKUP_SET)
        elements = self._find_elements(held, name)
        if nf.NFTA_LOOKUP_DREG not in data:
            negated = bool(_parse_number(data, nf.NFTA_LOOKUP_FLAGS) & nf.NFT_LOOKUP_F_INV)
            self.matches.append(self._build_set_match(held, name, elements, negated=negated))
        elif _parse_number(data, nf.NFTA_LOOKUP_DREG) != nf.NFT_REG_VERDICT:
            self._load(data, nf.NFTA_LOOKUP_DREG, Loaded(None, f"map @{name}"))
        elif elements is None:
            self.matches.append(Match(f"{held.text} in map @{name}"))
            self.action = Action.UNKNOWN
        else:
            self.branches = [
                (build_range_match(held, ((element.low, element.high),), self._family), element)
                for element in elements
            ]

    def _find_elements(self, held: Loaded, name: str) -> Sequence[SetElement] | None:
        """Return the elements of a set whose keys are this one field, and no concatenation."""
        found = self._elements(name)
        if found is None or held.field is None or held.mask:
            return None
        length = 4 if held.field in BIT_NAMES else find_value_length(held.field, self._family)
        return found if all(len(element.low) == length for element in found) else None

    def _build_set_match(
        self, held: Loaded, name: str, elements: Sequence[SetElement] | None, *, negated: bool
    ) -> Match:
        text = f"{held.text}{' not' if negated else ''} in @{name}"
        if elements is None:
            return Match(text)
        ranges = tuple((element.low, element.high) for element in elements)
        match = build_range_match(held, ranges, self._family, negated=negated)
        is_short = name.startswith(_ANONYMOUS) and len(elements) <= _MAX_LISTED
        return match if is_short else msgspec.structs.replace(match, text=text)

    def _take_immediate(self, data: Mapping[int, bytes]) -> None:
        if _parse_number(data, nf.NFTA_IMMEDIATE_DREG) == nf.NFT_REG_VERDICT:
            self.action, self.target = parse_verdict_value(
                nla.parse_attributes(data.get(nf.NFTA_IMMEDIATE_DATA, b""))
            )

    def _take_nat(self, data: Mapping[int, bytes]) -> None:
        source = _parse_number(data, nf.NFTA_NAT_TYPE) == nf.NFT_NAT_SNAT
        self.action = Action.SOURCE_NAT if source else Action.DESTINATION_NAT

    def _take_target(self, data: Mapping[int, bytes]) -> None:
        name, info = _parse_text(data, nf.NFTA_TARGET_NAME), data.get(nf.NFTA_TARGET_INFO, b"")
        untracks = name == "CT" and bool(info[:1]) and bool(info[0] & 1)
        self.action = Action.UNTRACK if untracks else TARGETS.get(name, Action.PASS)

    def _take_match(self, data: Mapping[int, bytes]) -> None:
        name, info = _parse_text(data, nf.NFTA_MATCH_NAME), data.get(nf.NFTA_MATCH_INFO, b"")
        if name == "comment":
            self.comment = info.partition(b"\0")[0].decode(errors="replace")
            return
        if name in ("tcp", "udp"):
            self.matches += parse_port_match(name, info)
        else:
            self.matches.append(
                (parse_conntrack_match(info) if name == "conntrack" else None) or Match(f"-m {name}")
            )

    _HANDLERS: ClassVar[Mapping[str, Callable[[_Decoder, Mapping[int, bytes]], None]]] = {
        "payload": _take_payload,
        "meta": _take_meta,
        "ct": _take_ct,
        "bitwise": _take_bitwise,
        "cmp": _take_cmp,
        "range": _take_range,
        "lookup": _take_lookup,
        "immediate": _take_immediate,
        "nat": _take_nat,
        "target": _take_target,
        "match": _take_match,
    }
    """By the name of the expression."""


def _parse_number(data: Mapping[int, bytes], attribute: int) -> int:
    return nla.parse_number(data.get(attribute))


def _parse_value(data: Mapping[int, bytes], attribute: int) -> bytes:
    return parse_value(data.get(attribute, b""))


def _parse_text(data: Mapping[int, bytes], attribute: int) -> str:
    return nla.parse_text(data.get(attribute, b""))


def parse_verdict_value(data: Mapping[int, bytes]) -> tuple[Action, str]:
    """Return action and target chain, from the attributes of a value that is a verdict."""
    return parse_verdict(nla.parse_attributes(data.get(nf.NFTA_DATA_VERDICT, b"")))


def parse_verdict(parts: Mapping[int, bytes]) -> tuple[Action, str]:
    """Return action and target chain, from the attributes of the verdict itself."""
    action = _VERDICTS.get(nla.parse_number(parts.get(nf.NFTA_VERDICT_CODE)), Action.UNKNOWN)
    return action, nla.parse_text(parts.get(nf.NFTA_VERDICT_CHAIN, b""))
