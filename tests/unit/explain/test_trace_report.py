"""Events of a traced packet in words: what passed, what ended it and where."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests import factory
from tests.unit.explain.explaining import asked, view_of

from pointsman.cli.trace import find_place
from pointsman.explain.service_port import Explanation
from pointsman.explain.trace import TraceReport, build_trace_report
from pointsman.machine.packet_filter import Action, FilterChain, FilterRule, Match
from pointsman.machine.trace import Header, TraceEvent

HEADER = Header("10.0.0.1:4000", "10.96.0.1:80")
TABLE, CHAIN = "inet firewall", "guard"


def report(events: Sequence[TraceEvent], *rules: FilterRule) -> TraceReport:
    chains = {(TABLE, CHAIN): FilterChain(TABLE, CHAIN, rules, hook="postrouting")}
    nothing = Explanation("", "n", "nftables", live=True, ports=(), findings=())
    return build_trace_report("a packet", events, chains, {}, nothing)


def event(action: Action, *, by_policy: bool = False, handle: int = 7, target: str = "") -> TraceEvent:
    return TraceEvent(1, TABLE, CHAIN, handle, action, target, by_policy, HEADER)


@pytest.mark.parametrize(
    ("action", "rule", "by_policy", "result"),
    [
        (Action.DROP, Action.DROP, False, "dropped in chain guard of table inet firewall, by its rule `tcp`"),
        (
            Action.DROP,
            Action.REJECT,
            False,
            "rejected in chain guard of table inet firewall, by its rule `tcp`",
        ),
        (Action.DROP, Action.ACCEPT, True, "dropped by the policy of chain guard of table inet firewall"),
    ],
)
def test_what_ends_a_packet_is_named_with_its_place(
    action: Action, rule: Action, by_policy: bool, result: str
) -> None:
    found = report([event(action, by_policy=by_policy)], FilterRule((Match("tcp"),), rule, handle=7))
    assert not found.passed
    assert found.result == result


@pytest.mark.parametrize(
    ("action", "rule", "verdict"),
    [
        (Action.ACCEPT, Action.ACCEPT, "accepted by this chain"),
        (Action.ACCEPT, Action.DESTINATION_NAT, "destination translated"),
        (Action.ACCEPT, Action.SOURCE_NAT, "source translated"),
        (Action.JUMP, Action.JUMP, "to chain next"),
        (Action.GOTO, Action.GOTO, "to chain next"),
        (Action.RETURN, Action.RETURN, "back"),
        (Action.PASS, Action.PASS, "continues"),
        (Action.UNKNOWN, Action.UNKNOWN, "something unknown"),
    ],
)
def test_other_deeds_let_the_packet_pass(action: Action, rule: Action, verdict: str) -> None:
    found = report([event(action, target="next")], FilterRule((), rule, handle=7))
    assert found.passed
    assert [step.verdict for step in found.stages[0].steps] == [verdict]
    masked = "its source became the node's when it left (chain guard)"
    assert (masked in found.result) == (rule is Action.SOURCE_NAT)


def test_a_policy_that_accepts_and_the_end_of_a_chain_are_no_steps() -> None:
    found = report([event(Action.ACCEPT, by_policy=True), event(Action.RETURN, handle=0)])
    assert found.passed
    assert [stage.steps for stage in found.stages] == [()]


def test_the_packet_of_a_foreign_table_with_a_like_name_is_followed() -> None:
    ours = TraceEvent(1, "ip pointsman-trace", "output", 1, Action.PASS)
    foreign = TraceEvent(2, "ip my-pointsman-trace", "output", 1, Action.DROP, header=HEADER)
    found = report([ours, foreign])
    assert not found.passed
    assert [step.table for stage in found.stages for step in stage.steps] == ["ip my-pointsman-trace"]


@pytest.mark.parametrize(
    ("client", "where"),
    [("10.244.1.9", "10.96.0.10"), ("203.0.113.9", "192.0.2.7"), ("", "10.96.0.10")],
    ids=["pod", "external", "this node"],
)
def test_an_external_client_is_followed_to_an_external_address(client: str, where: str) -> None:
    service = factory.service(externalIPs=["192.0.2.7"])
    view = view_of(service, factory.endpoint_slice("10.244.1.9"))
    place, source = find_place(asked(view, "web", client))
    assert (place.address, source) == (factory.packed(where), factory.packed(client) if client else b"")
