"""Rules of others from the kernel's expressions: odd ones become unknown, never an exception."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.kernel import nf_tables as nf
from pointsman.kernel import nft_wire as w
from pointsman.kernel.attributes import pack_u32be
from pointsman.kernel.nfnl import NftablesSocket
from pointsman.machine.nft_chains import ChainReader
from pointsman.machine.nft_rules import SetElement, parse_rule
from pointsman.machine.packet_filter import Action, FilterChain, FilterRule, PacketField
from pointsman.model.addresses import Family

LOOKUP = w.look_up("blocked", pack_u32be(nf.NFTA_LOOKUP_FLAGS, 0))
DESTINATION = w.load_payload(w.FIRST_REGISTER, nf.NFT_PAYLOAD_NETWORK_HEADER, 16, 4)
TIME_TO_LIVE = w.load_payload(w.FIRST_REGISTER, nf.NFT_PAYLOAD_NETWORK_HEADER, 8, 1)


@pytest.mark.parametrize(
    ("load", "elements", "field"),
    [
        (DESTINATION, [], PacketField.DESTINATION),
        (DESTINATION, [SetElement(bytes(4), bytes(4))], PacketField.DESTINATION),
        (DESTINATION, [SetElement(bytes(8), bytes(8))], None),
        (DESTINATION, None, None),
        (TIME_TO_LIVE, [], None),
        (TIME_TO_LIVE, [SetElement(b"\1", b"\1")], None),
    ],
)
def test_sets_are_looked_into_where_their_keys_are_one_known_field(
    load: bytes, elements: list[SetElement] | None, field: PacketField | None
) -> None:
    ((match,),) = [rule.matches for rule in parse_rule(load + LOOKUP, Family.IPV4, lambda _name: elements)]
    assert match.field is field
    assert match.text.endswith("in @blocked")


def test_orders_that_are_no_range_are_shown_as_written() -> None:
    masked = DESTINATION + w.apply_mask(b"\xff\0\0\xff", bytes(4)) + w.compare(nf.NFT_CMP_LTE, b"\1\0\0\0")
    interface = w.load_meta(nf.NFT_META_IIFNAME, w.FIRST_REGISTER) + w.compare(nf.NFT_CMP_GT, b"\1\0\0\0")
    (rule,) = parse_rule(masked + interface, Family.IPV4, lambda _name: None)
    assert [match.field for match in rule.matches] == [None, None]
    assert rule.conditions == "daddr & 0xff0000ff <= 0x1 iifname > 0x1"


NAMES = ("payload", "cmp", "bitwise", "lookup", "meta", "ct", "range", "match", "target", "immediate", "nat")


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.binary(max_size=60))), st.sampled_from(Family))
def test_no_rule_ends_an_explanation(parts: list[tuple[str, bytes]], family: Family) -> None:
    odd = b"".join(w.pack_expression(name, data) for name, data in parts)
    (rule, *_) = parse_rule(odd, family, lambda _name: [SetElement(b"", b"")])
    assert rule.action in Action


def test_a_chain_that_several_lead_to_is_read_once() -> None:
    leads = {"first": ("second", "third"), "second": (), "third": ("second", "first")}
    read: list[str] = []

    class Leading(ChainReader):
        def read_rules(self, table: str, chain: str) -> Iterator[FilterRule]:
            del table
            read.append(chain)
            return (FilterRule((), Action.JUMP, target) for target in leads[chain])

    with contextlib.closing(NftablesSocket()) as socket:
        reader = Leading(socket, Family.IPV4)
        found = reader.read_chains([FilterChain("ip others", "first")])
    assert sorted(read) == ["first", "second", "third"]
    assert found.keys() == {("ip others", name) for name in leads}
