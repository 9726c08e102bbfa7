"""Rules as the kernel lists them."""

from __future__ import annotations

import pytest
from tests.factory import packed

from pointsman.backends.nftables import clauses as c
from pointsman.backends.nftables.expressions import compute_fingerprint, is_same_rule, read_rule_counter
from pointsman.backends.nftables.fields import find_traits
from pointsman.kernel import nf_tables as nf
from pointsman.kernel import nft_wire as w
from pointsman.kernel.attributes import pack_nested, pack_text, pack_u32be, pack_u64be
from pointsman.model.addresses import Cidr, Family

COUNTER_BYTES = 1


def counter(octets: int, packets: int) -> bytes:
    """A counter as the kernel lists it."""
    return pack_nested(
        nf.NFTA_LIST_ELEM,
        pack_text(nf.NFTA_EXPR_NAME, "counter"),
        pack_nested(
            nf.NFTA_EXPR_DATA, pack_u64be(COUNTER_BYTES, octets), pack_u64be(nf.NFTA_COUNTER_PACKETS, packets)
        ),
    )


def test_packets_that_pass_do_not_change_a_rules_fingerprint() -> None:
    before, after = (count + c.goto("lb-2").encoding for count in (counter(0, 0), counter(1500, 25)))
    assert read_rule_counter(after) == 25
    assert compute_fingerprint([before]) == compute_fingerprint([after])


def test_another_verdict_behind_a_counter_changes_it() -> None:
    ours, theirs = (counter(7, 1) + verdict.encoding for verdict in (c.goto("lb-2"), c.DROP_PACKET))
    assert compute_fingerprint([ours]) != compute_fingerprint([theirs])
    assert compute_fingerprint([ours]) != compute_fingerprint([ours, theirs])


V4 = find_traits(Family.IPV4)


def source(address: str) -> bytes:
    return c.match_source(Cidr(packed(address), 32), V4).encoding


DIFFERENT = {
    "mod 8, mod 1": (w.draw_number(8, 8), w.draw_number(8, 1)),
    "mod 12, mod 2": (w.draw_number(8, 12), w.draw_number(8, 2)),
    "another register": (w.draw_number(8, 2), w.draw_number(9, 2)),
    "10.0.0.4, 2.128.0.0": (source("10.0.0.4"), source("2.128.0.0")),
    "an address that reads like an attribute": (
        w.compare(nf.NFT_CMP_EQ, packed("500:100:100::")),
        w.compare(nf.NFT_CMP_EQ, packed("500:100:101::")),
    ),
    "length": (w.compare(nf.NFT_CMP_EQ, b"lo"), w.compare(nf.NFT_CMP_EQ, b"lo\0")),
    "chain": (c.goto("lb-2").encoding, c.goto("lb-3").encoding),
    "verdict": (c.goto("lb-2").encoding, c.jump("lb-2").encoding),
    "an option that we did not ask for": (
        w.pack_expression("masq"),
        w.pack_expression("masq", pack_u32be(nf.NFTA_MASQ_FLAGS, 4)),
    ),
}


@pytest.mark.parametrize(("ours", "kernels"), DIFFERENT.values(), ids=DIFFERENT.keys())
def test_rules_that_say_something_else_are_not_the_same(ours: bytes, kernels: bytes) -> None:
    assert is_same_rule(ours, ours)
    assert not is_same_rule(ours, kernels)
    assert not is_same_rule(kernels, ours)


@pytest.mark.parametrize(("ours", "kernels"), [(8, 1), (12, 2), (16, 3), (20, 4), (9, 9)])
def test_registers_are_known_by_both_of_their_numbers(ours: int, kernels: int) -> None:
    assert is_same_rule(w.draw_number(ours, 8), w.draw_number(kernels, 8))


def test_what_the_kernel_adds_by_itself_makes_no_difference() -> None:
    def nat(*ends: bytes) -> bytes:
        return w.pack_expression("nat", pack_u32be(nf.NFTA_NAT_REG_ADDR_MIN, 8), *ends)

    assert is_same_rule(nat(), nat(pack_u32be(nf.NFTA_NAT_REG_ADDR_MAX, 1)))
    assert not is_same_rule(nat(), nat(pack_u32be(nf.NFTA_NAT_REG_ADDR_MAX, 9)))
    assert is_same_rule(c.COUNTER.encoding, counter(1500, 25))
