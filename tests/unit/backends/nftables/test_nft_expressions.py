"""Rules as the kernel lists them."""

from __future__ import annotations

from pointsman.backends.nftables import clauses as c
from pointsman.backends.nftables.expressions import counted_packets, fingerprint
from pointsman.kernel import nf_tables as nf
from pointsman.kernel.attributes import nested, text, u64be

COUNTER_BYTES = 1


def counter(octets: int, packets: int) -> bytes:
    """A counter as the kernel lists it."""
    return nested(
        nf.NFTA_LIST_ELEM,
        text(nf.NFTA_EXPR_NAME, "counter"),
        nested(nf.NFTA_EXPR_DATA, u64be(COUNTER_BYTES, octets), u64be(nf.NFTA_COUNTER_PACKETS, packets)),
    )


def test_packets_that_pass_do_not_change_a_rules_fingerprint() -> None:
    before, after = (count + c.goto("lb-2").encoding for count in (counter(0, 0), counter(1500, 25)))
    assert counted_packets(after) == 25
    assert fingerprint([before]) == fingerprint([after])


def test_another_verdict_behind_a_counter_changes_it() -> None:
    ours, theirs = (counter(7, 1) + verdict.encoding for verdict in (c.goto("lb-2"), c.DROP_PACKET))
    assert fingerprint([ours]) != fingerprint([theirs])
    assert fingerprint([ours]) != fingerprint([ours, theirs])
