"""Facts about the host into findings: those that no lab can make safely, and how far rules are followed."""

from __future__ import annotations

import msgspec
import pytest
from tests import factory
from tests.unit.explain.explaining import asked, codes, view_of

from pointsman.explain.packets import compute_state
from pointsman.explain.rule_walk import Packet, RuleResult, find_results, select_result
from pointsman.explain.service_port import Explanation
from pointsman.explain.text import render_explanation
from pointsman.kernel.rtnl import Route
from pointsman.machine.host_facts import HostFacts
from pointsman.machine.legacy_chains import parse_legacy_chains
from pointsman.machine.packet_filter import Action, FilterChain, FilterRule, Match, PacketField
from pointsman.model.addresses import Family
from pointsman.model.decision import State

POD, OTHER_POD = factory.packed("10.244.1.5"), factory.packed("10.244.1.6")
CLEAR = HostFacts(Family.IPV4, forwarding=True, routes={POD: Route(interface="eth0")})


def explained(host: HostFacts, client: str = "pod", question: str = "web") -> Explanation:
    view = view_of(
        factory.service(type="NodePort", ports=[{"name": "http", "port": 80, "nodePort": 30080}]),
        factory.endpoint_slice("10.244.1.5"),
    )
    (first, *rest) = view.families
    looked = (msgspec.structs.replace(first, host=host), *rest)
    return asked(msgspec.structs.replace(view, families=looked), question, client)


def test_a_host_in_nobodys_way_is_said_to_be_so() -> None:
    explanation = explained(CLEAR)
    assert explanation.is_healthy
    assert codes(explanation) == set()
    assert (
        "Host: forwarding, routes, other programs' rules and conntrack do not obstruct"
        in render_explanation(explanation)
    )
    partly = explained(msgspec.structs.replace(CLEAR, not_read=("routes: no",)))
    assert "    not checked: routes: no\n" in render_explanation(partly)


@pytest.mark.parametrize(
    ("count", "most", "code", "answers"),
    [
        (262144, 262144, "ConntrackFull", False),
        (250000, 262144, "ConntrackNearlyFull", True),
        (200000, 262144, "", True),
        (262144, 0, "", True),
        (None, None, "", True),
    ],
)
def test_a_full_conntrack_table(count: int | None, most: int | None, code: str, answers: bool) -> None:
    explanation = explained(msgspec.structs.replace(CLEAR, conntrack_count=count, conntrack_max=most))
    assert codes(explanation) == ({code} if code else set())
    assert explanation.is_healthy is answers


def test_forwarding_does_not_matter_to_the_nodes_own_packets() -> None:
    off = msgspec.structs.replace(CLEAR, forwarding=False)
    assert codes(explained(off, "node")) == set()
    assert codes(explained(off)) == {"ForwardingOff"}
    assert codes(explained(msgspec.structs.replace(CLEAR, forwarding=None))) == set()


def test_the_routes_of_all_endpoints_are_looked_at() -> None:
    addresses = [f"10.244.3.{number}" for number in range(1, 31)]
    view = view_of(factory.service(), factory.endpoint_slice(*addresses))
    lost = factory.packed("10.244.3.30")
    host = msgspec.structs.replace(CLEAR, routes={lost: Route(error="no route leads there")})
    (first, *rest) = view.families
    looked = (msgspec.structs.replace(first, host=host), *rest)
    explanation = asked(msgspec.structs.replace(view, families=looked), "web", "pod")
    (cause,) = explanation.ports[0].findings
    assert cause.message == "this node has no route to 10.244.3.30:8080: no route leads there"
    assert cause.remedy.endswith("ip route get 10.244.3.30")


def test_strict_reverse_path_matters_to_a_named_client_of_a_node_port() -> None:
    client = factory.packed("198.51.100.7")
    host = msgspec.structs.replace(
        CLEAR,
        strict_reverse_path=frozenset(("eth0", "eth1")),
        interface_addresses={factory.packed("192.168.1.10"): "eth0", factory.packed("203.0.113.1"): "eth1"},
        routes={**CLEAR.routes, client: Route(interface="eth0")},
    )
    explanation = explained(host, "198.51.100.7", "192.168.1.10:30080")
    (cause,) = [cause for port in explanation.ports for cause in port.findings]
    assert cause.message.startswith("packets of 198.51.100.7 that arrive on eth1 (203.0.113.1) are dropped")
    assert explanation.is_healthy
    assert codes(explained(host, "198.51.100.7", "10.96.0.10:80")) == set()


# --- following rules -----------------------------------------------------------------------------------------

PORT = (b"\x1f\x90", b"\x1f\x90")
TO_PORT = Packet({PacketField.DESTINATION_PORT: PORT})
YES = Match("dport 8080", PacketField.DESTINATION_PORT, (PORT,))
NO = Match("dport 1", PacketField.DESTINATION_PORT, ((b"\0\1", b"\0\1"),))
PERHAPS = Match("mark 1")


def rule(action: Action, *matches: Match, to: str = "") -> FilterRule:
    return FilterRule(matches, action, to)


def dropped(
    *rules: FilterRule, policy: Action = Action.ACCEPT, sub: tuple[FilterRule, ...] = ()
) -> RuleResult | None:
    chain = FilterChain("inet fw", "c", rules, "filter", "forward", policy=policy)
    chains = {("inet fw", "c"): chain, ("inet fw", "sub"): FilterChain("inet fw", "sub", sub)}
    return select_result(find_results(chain, chains, TO_PORT), frozenset((Action.DROP,)))


D, A, R, J, G = Action.DROP, Action.ACCEPT, Action.RETURN, Action.JUMP, Action.GOTO


@pytest.mark.parametrize(
    ("rules", "policy", "sub", "certain"),
    [
        ([], A, [], None),
        ([], D, [], True),
        ([rule(D, NO)], A, [], None),
        ([rule(D, YES)], A, [], True),
        ([rule(D, YES, NO)], A, [], None),
        ([rule(D, PERHAPS)], A, [], False),
        ([rule(A, YES)], D, [], None),
        ([rule(A, PERHAPS)], D, [], False),
        ([rule(A, NO)], D, [], True),
        ([rule(D, PERHAPS)], D, [], True),
        ([rule(R, YES), rule(D)], A, [], None),
        ([rule(R, PERHAPS), rule(D)], A, [], False),
        ([rule(J, to="sub")], A, [rule(D, YES)], True),
        ([rule(J, PERHAPS, to="sub")], A, [rule(D)], False),
        ([rule(J, NO, to="sub")], A, [rule(D)], None),
        ([rule(J, to="sub"), rule(D)], A, [rule(A, YES)], None),
        ([rule(J, to="sub"), rule(D)], A, [rule(A, PERHAPS)], False),
        ([rule(J, to="sub"), rule(D)], A, [rule(A, NO)], True),
        ([rule(J, to="sub"), rule(D)], A, [rule(R, YES)], True),
        ([rule(J, PERHAPS, to="sub"), rule(D)], A, [], True),
        ([rule(J, to="elsewhere"), rule(D)], A, [], False),
        ([rule(G, to="sub"), rule(D)], A, [], None),
        ([rule(G, to="sub")], D, [rule(A, NO)], True),
        ([rule(G, PERHAPS, to="sub"), rule(D)], A, [], False),
        ([rule(G, PERHAPS, to="sub"), rule(D)], A, [rule(D, PERHAPS)], False),
        ([rule(Action.UNTRACK, YES)], D, [], True),
    ],
)
def test_rules_are_followed_as_far_as_they_can_be_foreseen(
    rules: list[FilterRule], policy: Action, sub: list[FilterRule], certain: bool | None
) -> None:
    fate = dropped(*rules, policy=policy, sub=tuple(sub))
    assert (fate.certain if fate else None) is certain


def test_legacy_rules_as_its_save_program_prints_them() -> None:
    text = """*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [1:2]
:guard - [0:0]
:KUBE-SVC-X - [0:0]
-A KUBE-SVC-X -j "not closed
-A FORWARD -m comment --comment "a b" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD ! -s 10.0.0.0/8 -i eth+ -p tcp -m tcp --dport 80:90 -g guard
-A guard -m addrtype --dst-type LOCAL -j REJECT --reject-with icmp-port-unreachable
-A guard -j LOG
COMMIT
*raw
:PREROUTING ACCEPT [0:0]
-A PREROUTING -d 10.1.1.1/32 -j CT --notrack
COMMIT
"""
    chains = parse_legacy_chains(text)
    assert ("legacy filter", "KUBE-SVC-X") not in chains
    forward, guard = chains["legacy filter", "FORWARD"], chains["legacy filter", "guard"]
    assert (forward.hook, forward.policy, guard.hook) == ("forward", Action.DROP, "")
    assert [entry.text for entry in forward.rules] == [
        "--ctstate RELATED,ESTABLISHED accept",
        "! -s 10.0.0.0/8 -i eth+ -p tcp --dport 80:90 goto guard",
    ]
    assert [match.field is None for match in guard.rules[0].matches] == [True]
    assert [entry.action for entry in guard.rules] == [Action.REJECT, Action.PASS]
    raw = chains["legacy raw", "PREROUTING"]
    assert (raw.priority, raw.rules[0].action) == (-300, Action.UNTRACK)


@pytest.mark.parametrize("comment", ["- drop it", "-j", "!", "-g guard"])
def test_a_comment_of_a_legacy_rule_is_never_an_option(comment: str) -> None:
    text = f"""*filter
:FORWARD ACCEPT [0:0]
-A FORWARD -m comment --comment "{comment}" -p tcp -j DROP
COMMIT
"""
    (rule,) = parse_legacy_chains(text)["legacy filter", "FORWARD"].rules
    assert (rule.text, len(rule.matches)) == ("-p tcp drop", 1)


def test_a_legacy_rule_that_is_spread_over_two_lines_is_one_that_cannot_be_read() -> None:
    text = """*filter
:INPUT ACCEPT [0:0]
-A INPUT -m comment --comment "first line
second line" -j DROP
-A INPUT -p tcp -j ACCEPT
COMMIT
"""
    rules = parse_legacy_chains(text)["legacy filter", "INPUT"].rules
    assert [rule.action for rule in rules] == [Action.UNKNOWN, Action.ACCEPT]


def test_rules_that_branch_at_every_step_are_followed_so_far_and_no_further() -> None:
    perhaps = (Match("on a whim"),)
    ladder = {
        ("ip others", f"step{number}"): FilterChain(
            "ip others",
            f"step{number}",
            tuple(FilterRule(perhaps, Action.JUMP, f"step{number + 1}") for _ in range(5)),
        )
        for number in range(15)
    }
    ladder["ip others", "step15"] = FilterChain("ip others", "step15", (FilterRule(perhaps, Action.DROP),))
    base = FilterChain("ip others", "in", (FilterRule((), Action.JUMP, "step0"),), "filter", "input")
    found = find_results(base, ladder, Packet({}))
    assert {fate.action for fate in found} == {Action.DROP, Action.ACCEPT}
    assert not any(fate.certain for fate in found)


def test_a_local_pod_that_is_not_detected_as_one_is_a_warning() -> None:
    view = view_of(factory.service(), factory.endpoint_slice("10.244.1.5"), cluster_cidr="10.42.0.0/16")
    (first, *rest) = view.families
    looked = (msgspec.structs.replace(first, host=CLEAR), *rest)
    explanation = asked(msgspec.structs.replace(view, families=looked), "web", "pod")
    assert (explanation.is_healthy, codes(explanation)) == (True, {"PodsNotDetected"})


def test_a_service_port_whose_endpoints_have_no_route_is_down() -> None:
    view = view_of(factory.service(), factory.endpoint_slice("10.244.1.5", "10.244.1.6"))
    (first, *_) = view.families
    (plan,) = first.plans.values()
    for unreachable, state in (((), State.HEALTHY), ((POD,), State.HEALTHY), ((POD, OTHER_POD), State.DOWN)):
        found = msgspec.structs.replace(first, unreachable=frozenset(unreachable))
        assert compute_state(plan, found, view.mode) is state
