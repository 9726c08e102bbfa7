from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factory import endpoint, plan, service_port

from pointsman.model.endpoint import Endpoint
from pointsman.model.plan import EndpointSelection, TopologyMode
from pointsman.model.topology import choose_topology, find_endpoint_reason, select_endpoints
from pointsman.wording.outcomes import render_endpoint_reason


def choose(*endpoints: Endpoint, zone: str = "a", **fields: Any) -> EndpointSelection:
    return select_endpoints(service_port(**fields), endpoints, "n1", zone)


READY_HERE = endpoint("10.0.0.1", local=True, node="n1")
READY_AWAY = endpoint("10.0.0.2", node="n2")
DRAINING_HERE = endpoint("10.0.0.3", ready=False, terminating=True, local=True, node="n1")
DRAINING_AWAY = endpoint("10.0.0.4", ready=False, terminating=True, node="n2")
GONE = endpoint("10.0.0.5", ready=False, serving=False, terminating=True, local=True)
NOT_READY = endpoint("10.0.0.6", ready=False, local=True)


def test_ready_endpoints_are_used_and_others_not() -> None:
    chosen = choose(READY_HERE, READY_AWAY, DRAINING_HERE, GONE, NOT_READY)
    assert chosen.cluster == chosen.reachable == (READY_HERE, READY_AWAY)
    assert chosen.has_any


def test_serving_terminating_endpoints_are_the_fallback() -> None:
    chosen = choose(DRAINING_HERE, DRAINING_AWAY, GONE, NOT_READY)
    assert chosen.cluster == (DRAINING_HERE, DRAINING_AWAY)


def test_no_usable_endpoint_means_none_anywhere() -> None:
    assert not choose(GONE, NOT_READY).has_any
    assert choose() == EndpointSelection()


def test_serving_but_neither_ready_nor_terminating_is_not_used() -> None:
    assert choose(NOT_READY).cluster == ()


def test_internal_local_uses_only_this_node_and_knows_of_the_others() -> None:
    chosen = choose(READY_AWAY, internal_local=True)
    assert chosen.local == ()
    assert chosen.has_any
    assert choose(NOT_READY, internal_local=True).has_any is False


def test_external_local_falls_back_to_local_draining_ones_though_ready_ones_are_away() -> None:
    chosen = choose(READY_AWAY, DRAINING_HERE, external_local=True, node_port=30080)
    assert chosen.cluster == (READY_AWAY,)
    assert chosen.local == (DRAINING_HERE,)
    assert chosen.reachable == (READY_AWAY, DRAINING_HERE)


def test_external_local_matters_only_when_reachable_from_outside() -> None:
    assert choose(READY_HERE, external_local=True).local == ()


def zoned(text: str, *zones: str, **fields: Any) -> Endpoint:
    return endpoint(text, zone_hints=zones, **fields)


@pytest.mark.parametrize(
    ("endpoints", "zone", "mode", "note"),
    [
        ([zoned("10.0.0.1", "a"), zoned("10.0.0.2", "b")], "a", TopologyMode.ZONE, ""),
        (
            [zoned("10.0.0.1", "a"), zoned("10.0.0.2")],
            "a",
            TopologyMode.NONE,
            "1 of 2 ready endpoints have no zone hint",
        ),
        ([zoned("10.0.0.1", "a")], "", TopologyMode.NONE, "no zone label"),
        (
            [zoned("10.0.0.1", "b"), zoned("10.0.0.2", "c")],
            "a",
            TopologyMode.NONE,
            "0 of 2 ready endpoints are hinted for zone a (they are for b, c)",
        ),
        (
            [endpoint("10.0.0.1", node_hints=("n2",)), endpoint("10.0.0.2", node_hints=("n3",))],
            "a",
            TopologyMode.NONE,
            "0 of 2 ready endpoints are hinted for node n1",
        ),
        (
            [endpoint("10.0.0.1", node_hints=("n1",)), endpoint("10.0.0.2"), endpoint("10.0.0.3")],
            "a",
            TopologyMode.NONE,
            "2 of 3 ready endpoints have no node hint",
        ),
        ([zoned("10.0.0.1", "a"), zoned("10.0.0.2", ready=False)], "a", TopologyMode.ZONE, ""),
        ([zoned("10.0.0.1", "a", ready=False)], "a", TopologyMode.NONE, "0 of 1 endpoints are ready"),
        ([endpoint("10.0.0.1")], "a", TopologyMode.NONE, ""),
        (
            [endpoint("10.0.0.1", node_hints=("n1",)), endpoint("10.0.0.2", node_hints=("n2",))],
            "a",
            TopologyMode.NODE,
            "",
        ),
        (
            [zoned("10.0.0.1", "a", node_hints=("n2",)), zoned("10.0.0.2", "b", node_hints=("n3",))],
            "a",
            TopologyMode.ZONE,
            "",
        ),
        ([zoned("10.0.0.1", "a", node_hints=("n1",)), zoned("10.0.0.2", "b")], "a", TopologyMode.ZONE, ""),
    ],
)
def test_hints_are_all_or_nothing(
    endpoints: list[Endpoint], zone: str, mode: TopologyMode, note: str
) -> None:
    found, why = choose_topology(endpoints, "n1", zone)
    assert found is mode
    assert note in why
    assert bool(note) == bool(why)


def test_hints_do_not_narrow_local_traffic() -> None:
    here = zoned("10.0.0.1", "b", local=True)
    chosen = choose(here, zoned("10.0.0.2", "a"), external_local=True, node_port=30080)
    assert chosen.local == (here,)
    assert chosen.cluster == (zoned("10.0.0.2", "a"),)


_any_endpoint = st.builds(
    endpoint,
    st.sampled_from([f"10.0.0.{i}" for i in range(1, 9)]),
    ready=st.booleans(),
    serving=st.booleans(),
    terminating=st.booleans(),
    local=st.booleans(),
    zone_hints=st.sampled_from([(), ("a",), ("b",), ("a", "b")]),
    node_hints=st.sampled_from([(), ("n1",), ("n2",)]),
)


@given(
    st.lists(_any_endpoint, max_size=8, unique_by=lambda e: e.address),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0, 30080]),
    st.sampled_from(["", "a", "c"]),
)
def test_laws_of_selection(
    endpoints: list[Endpoint], internal: bool, external: bool, node_port: int, zone: str
) -> None:
    port = service_port(internal_local=internal, external_local=external, node_port=node_port)
    chosen = select_endpoints(port, tuple(endpoints), "n1", zone)
    assert set(chosen.reachable) == {*chosen.cluster, *chosen.local}
    assert all(e.local for e in chosen.local)
    for group in (chosen.cluster, chosen.local):
        assert all(e.ready for e in group) or all(e.serving and e.terminating for e in group)
        assert list(group) == [e for e in endpoints if e in group]
    anywhere = any(e.ready or (e.serving and e.terminating) for e in endpoints)
    assert chosen.has_any == anywhere
    if port.uses_cluster_endpoints:
        assert bool(chosen.cluster) == anywhere
    made = plan(port, *endpoints)
    for local_policy in (False, True):
        for e in made.endpoints.all:
            used, why = find_endpoint_reason(made, e, local_policy=local_policy)
            assert render_endpoint_reason(why, e, "n1", "")
            assert used == (e in (made.endpoints.local if local_policy else made.endpoints.cluster))


@pytest.mark.parametrize(
    ("subject", "others", "fields", "expected"),
    [
        (READY_HERE, [READY_AWAY], {}, (True, "ready")),
        (DRAINING_AWAY, [READY_AWAY], {}, (False, "terminating; ready endpoints exist")),
        (DRAINING_AWAY, [], {}, (True, "terminating but still serving, and no endpoint is ready")),
        (GONE, [], {}, (False, "terminating and no longer serving")),
        (NOT_READY, [], {}, (False, "not ready")),
    ],
)
def test_reasons_are_words(
    subject: Endpoint, others: list[Endpoint], fields: dict[str, Any], expected: tuple[bool, str]
) -> None:
    made = plan(service_port(**fields), subject, *others)
    used, why = find_endpoint_reason(made, subject, local_policy=False)
    assert (used, render_endpoint_reason(why, subject, "n1", "a")) == expected


def test_the_reason_of_a_remote_endpoint_names_its_node() -> None:
    made = plan(service_port(external_local=True, node_port=30080), READY_AWAY)
    used, why = find_endpoint_reason(made, READY_AWAY, local_policy=True)
    assert not used
    text = render_endpoint_reason(why, READY_AWAY, "n1", "")
    assert text == "policy Local: it runs on node n2, this node is n1"
