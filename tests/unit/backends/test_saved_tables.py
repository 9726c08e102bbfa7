"""Tables as iptables-save prints them, with rules of other programs in between."""

from __future__ import annotations

import pytest
from tests.factory import service_port

from pointsman.backends.contract import Difference
from pointsman.backends.netfilter.rule_text import Jump, parse_chains, split_rules
from pointsman.backends.netfilter.runners import diff_jumps, diff_rules

OWNER = service_port().name
JUMP = Jump("nat", "OUTPUT", "KUBE-SERVICES", "kubernetes service portals")
SPELLED = '-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES'


def saved(*lines: str) -> bytes:
    return "\n".join(("# Generated", "*nat", *lines, "COMMIT", "# Completed", "")).encode()


def test_every_declared_chain_is_there_with_its_rules_wherever_they_stand() -> None:
    chains = parse_chains(
        saved(
            ":OUTPUT ACCEPT [0:0]", ":A - [0:0]", ":B - [0:0]", "-A A -j B", "-A B -j RETURN", "-A A -j DROP"
        )
    )
    assert chains == {"OUTPUT": b"", "A": b"-A A -j B\n-A A -j DROP\n", "B": b"-A B -j RETURN\n"}


def test_a_table_without_rules_has_chains() -> None:
    assert parse_chains(saved(":OUTPUT ACCEPT [0:0]")) == {"OUTPUT": b""}
    assert parse_chains(b"") == {}


def test_a_line_break_in_a_comment_of_another_program_hides_no_other_rule() -> None:
    chains = parse_chains(
        saved(":A - [0:0]", ":B - [0:0]", '-A A -m comment --comment "one', 'two" -j DROP', "-A B -j RETURN")
    )
    assert split_rules(chains["A"]) == ['-A A -m comment --comment "one', 'two" -j DROP']
    assert split_rules(chains["B"]) == ["-A B -j RETURN"]


def test_characters_that_python_takes_for_line_breaks_do_not_split_a_rule() -> None:
    rule = '-A A -m comment --comment "form\x0cfeed and \u2028" -j DROP'
    assert split_rules(parse_chains(saved(":A - [0:0]", rule))["A"]) == [rule]


@pytest.mark.parametrize(
    ("rule", "asks", "found"),
    [
        (SPELLED, False, True),
        ('-A OUTPUT -j KUBE-SERVICES -m comment --comment "kubernetes service portals"', False, True),
        ("-A OUTPUT -m mark --mark 1 -j KUBE-SERVICES", True, False),
        ("-A OUTPUT -m mark --mark 1 -j OTHER", False, False),
    ],
)
def test_a_jump_is_found_in_any_order_and_iptables_decides_about_other_spellings(
    rule: str, asks: bool, found: bool
) -> None:
    asked: list[Jump] = []

    def ask(jump: Jump) -> bool:
        asked.append(jump)
        return False

    chains = parse_chains(saved(":OUTPUT ACCEPT [0:0]", rule))
    assert JUMP.exists_in(chains, ask) is found
    assert bool(asked) is asks
    missing = list(diff_jumps([JUMP], {"nat": chains}, ask))
    assert missing == ([] if found else [Difference("nat OUTPUT", SPELLED)])


def test_rules_are_missing_surplus_or_in_another_order() -> None:
    assert list(diff_rules("nat A", ["x", "y"], ["x", "y"])) == []
    assert list(diff_rules("nat A", ["x", "y"], ["y", "z"], {"x": OWNER})) == [
        Difference("nat A", "x", "", OWNER),
        Difference("nat A", "", "z"),
    ]
    order = Difference("nat A", "x / y", "the same rules in another order", OWNER)
    assert list(diff_rules("nat A", ["x", "y"], ["y", "x"], {"y": OWNER})) == [order]
    assert list(diff_rules("nat A", ["x", "y"], ["y", "x"], ordered=False)) == []
