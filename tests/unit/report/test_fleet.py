"""Many nodes' answers side by side."""

from __future__ import annotations

import msgspec
from tests import factory
from tests.unit.explain.explaining import asked, view_of

from pointsman.report.fleet import group_nodes, merge_explanations, merge_lists, render_fleet
from pointsman.report.labels import ServiceLabels
from pointsman.report.service_list import ListQuery, ServiceList, build_list

WEB = factory.service(
    externalTrafficPolicy="Local", type="NodePort", ports=[{"name": "http", "port": 80, "nodePort": 30080}]
)
NODES = [f"n{number}" for number in range(1, 13)]


def _list(*endpoints: str, node: str = "n1") -> ServiceList:
    view = view_of(factory.node(node), WEB, factory.endpoint_slice(*endpoints), node_name=node)
    return build_list(view, ServiceLabels(), ListQuery())


def test_the_position_of_most_nodes_comes_first() -> None:
    assert [(p.text, p.nodes) for p in group_nodes({"c": "x", "a": "y", "b": "x", "d": "z"}.items())] == [
        ("x", ("b", "c")),
        ("y", ("a",)),
        ("z", ("d",)),
    ]


def test_states_that_differ_by_policy_local_are_shown_and_no_disagreement() -> None:
    answers = {node: _list("10.244.1.5", node=node) for node in NODES[:3]}
    report = merge_lists(answers, {})
    assert report.disagreements == ()
    assert report.rows[0].cells[-1] == "partial on 2 nodes, healthy on n1"
    assert report.exit_status == 0


def test_a_node_that_lags_behind_is_named_among_many() -> None:
    answers = {node: _list("10.244.1.5", "10.244.1.6") for node in NODES}
    answers["n7"] = _list("10.244.1.5")
    report = merge_lists(answers, {})
    (found,) = report.disagreements
    assert [group.nodes for group in found.groups][1] == ("n7",)
    text = render_fleet(report)
    assert "n1, n10, n11, n12, n2, n3, n4, n5 and 3 more: 2 endpoints" in text
    assert report.rows[0].cells[-2] == "1..2"
    assert report.exit_status == 1


def test_a_service_that_one_node_does_not_know() -> None:
    answers = {"n1": _list("10.244.1.5"), "n2": ServiceList(node="n2")}
    (found,) = merge_lists(answers, {}).disagreements
    assert {group.text for group in found.groups} == {
        "unknown",
        "1 endpoints, at 10.96.0.10:80, port 30080",
    }


def test_reasons_are_grouped_by_what_they_say() -> None:
    good = asked(view_of(factory.service(), factory.endpoint_slice("10.244.1.5")), "web")
    bad = asked(view_of(factory.service(), factory.endpoint_slice()), "web")
    report = merge_explanations({"a": good, "b": bad, "c": bad}, {"d": "no route"})
    assert report.heading == "web: IPv4 healthy on 1 of 3 nodes"
    assert all(group.nodes == ("b", "c") for group in report.bad)
    assert [group.nodes for group in report.disagreements[0].groups] == [("b", "c"), ("a",)]
    assert report.exit_status == 2
    assert "✗ d could not be asked: no route" in render_fleet(report)
    assert msgspec.json.encode(report)


def test_each_family_is_judged_for_itself() -> None:
    dual = factory.service(ipFamilies=["IPv4", "IPv6"], clusterIPs=["10.96.0.10", "fd00::10"])
    answer = asked(view_of(dual, factory.endpoint_slice("10.244.1.5")), "web")
    report = merge_explanations({"a": answer, "b": answer}, {})
    assert report.heading == "web: IPv4 healthy on 2 of 2 nodes, IPv6 has no endpoints"
    assert report.rows[0].cells[2:4] == ("healthy", "down")
    assert [entry["families"] for entry in msgspec.to_builtins(report)["rows"]] == [
        {"IPv4": "healthy", "IPv6": "down"}
    ] * 2


def test_nodes_that_know_no_such_service_agree() -> None:
    nothing = asked(view_of(factory.service("other")), "web")
    report = merge_explanations({"a": nothing, "b": nothing}, {})
    assert report.disagreements == ()
    assert report.bad[0].text.startswith("NoSuchService")
    assert report.exit_status == 1
