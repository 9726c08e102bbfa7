"""Changes, one after another, lead to the very table that a full load of the same plans makes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.factory import context, endpoint, plan, service_port
from tests.unit.backends.nftables.nft_strategies import Plans, histories
from tests.unit.backends.nftables.nft_table_model import TableModel

from pointsman.backends.nftables.batch import Step
from pointsman.backends.nftables.change import Change
from pointsman.backends.nftables.compile import compile_fragment
from pointsman.backends.nftables.contents import Contents
from pointsman.backends.nftables.fragment import Fragment
from pointsman.model.addresses import Family
from pointsman.model.node_context import NodeContext
from pointsman.model.plan import ServicePlan
from pointsman.model.service import ServicePortName


def loaded(node: NodeContext, plans: Plans) -> Contents:
    contents = Contents(node)
    contents.load({name: compile_fragment(p, node) for name, p in plans.items()})
    return contents


def changed(contents: Contents, plans: dict[ServicePortName, ServicePlan | None]) -> Change:
    updates: dict[ServicePortName, Fragment | None] = {}
    for name, new in plans.items():
        previous = contents.fragments.get(name)
        updates[name] = None if new is None else compile_fragment(new, contents.context, previous)
    return Change(contents, updates)


def updates_between(old: Plans, new: Plans) -> dict[ServicePortName, ServicePlan | None]:
    return {name: new.get(name) for name in old.keys() | new.keys() if old.get(name) != new.get(name)}


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(data=st.data(), family=st.sampled_from(list(Family)))
def test_a_history_of_changes_equals_a_full_load(data: st.DataObject, family: Family) -> None:
    node, states = data.draw(histories(family))
    contents = loaded(node, states[0])
    table = TableModel()
    table.run(contents.build_full_batch(replace=False, update=False))
    for before, after in itertools.pairwise(states):
        change = changed(contents, updates_between(before, after))
        table.run(change.batch)
        change.apply()
        fresh = loaded(node, after)
        expected = TableModel()
        expected.run(fresh.build_full_batch(replace=False, update=False))
        assert table.meaning(contents) == expected.meaning(fresh)
        assert contents.count_elements() == fresh.count_elements()
        assert contents.verdicts == fresh.verdicts


@settings(max_examples=60, deadline=None)
@given(data=st.data(), family=st.sampled_from(list(Family)))
def test_a_reload_in_place_equals_a_fresh_load_and_keeps_affinity_sets(
    data: st.DataObject, family: Family
) -> None:
    node, states = data.draw(histories(family, steps=2))
    old, new = loaded(node, states[0]), loaded(node, states[-1])
    table = TableModel()
    table.run(old.build_full_batch(replace=False, update=False))
    kept = {spec.name for spec in old.list_sets()} & {spec.name for spec in new.list_sets() if spec.dynamic}
    for name in kept:
        table.sets[name][b"client"] = "learned"
    stale_chains = table.chains.keys() - {chain.name for chain in new.list_chains()}
    stale_sets = table.sets.keys() - {spec.name for spec in new.list_sets()}
    batch = new.build_full_batch(
        replace=False, update=True, stale_chains=sorted(stale_chains), stale_sets=sorted(stale_sets)
    )
    table.run(batch)
    assert all(table.sets[name].pop(b"client") == "learned" for name in kept)
    expected = TableModel()
    expected.run(new.build_full_batch(replace=False, update=False))
    assert table.meaning(new) == expected.meaning(new)


def ten(*numbers: int) -> ServicePlan:
    return plan(service_port(), *(endpoint(f"10.244.2.{n}") for n in numbers))


def test_replacing_one_of_ten_endpoints_takes_two_elements() -> None:
    before, after = ten(*range(10)), ten(*range(9), 77)
    contents = loaded(context(), {before.name: before})
    change = changed(contents, {before.name: after})
    assert change.batch.count_elements() == {"endpoints": 2}
    assert len(list(change.batch.encode())) == 2


def test_removing_one_of_ten_endpoints_moves_the_last_slot_and_the_verdict() -> None:
    before, after = ten(*range(10)), ten(*(n for n in range(10) if n != 4))
    contents = loaded(context(), {before.name: before})
    change = changed(contents, {before.name: after})
    assert change.batch.count_elements() == {"endpoints": 3, "service-ips": 2}
    assert not any(isinstance(operation, Step) for operation in change.batch.operations)


def test_an_unchanged_plan_makes_an_empty_batch() -> None:
    same = ten(1, 2, 3)
    contents = loaded(context(), {same.name: same})
    assert not changed(contents, {same.name: same}).batch


def test_a_cluster_ip_stays_until_its_last_port_is_gone() -> None:
    http = plan(service_port(port_name="http", port=80), endpoint())
    https = plan(service_port(port_name="https", port=443), endpoint())
    contents = loaded(context(), {http.name: http, https.name: https})
    first = changed(contents, {http.name: None})
    assert "cluster-ips" not in first.batch.count_elements()
    first.apply()
    assert changed(contents, {https.name: None}).batch.count_elements()["cluster-ips"] == 1


def test_idle_balancer_chains_are_removed_when_there_are_many() -> None:
    contents = loaded(context(), {})
    table = TableModel()
    table.run(contents.build_full_batch(replace=False, update=False))
    most = 0
    for size in range(1, 400, 3):
        grown = plan(service_port(), *(endpoint("10.244.2.1", 1000 + n) for n in range(size)))
        change = changed(contents, {grown.name: grown})
        table.run(change.batch)
        change.apply()
        most = max(most, len(contents.present))
    assert most <= 140
    assert {b.name for b in contents.present} <= table.chains.keys()


@pytest.mark.parametrize("bad", ['evil"; drop', "x" * 500, "tab\tnewline\n", "ünïcode"])
def test_hostile_names_stay_inside_their_comment(bad: str) -> None:
    hostile = plan(service_port(name=bad, affinity_seconds=10), endpoint())
    text = loaded(context(), {hostile.name: hostile}).render()
    for line in text.splitlines():
        if 'comment "' in line:
            comment = line.split('comment "', 1)[1]
            assert comment.count('"') == 1
            assert len(comment) < 160
    assert "ünï" not in text
