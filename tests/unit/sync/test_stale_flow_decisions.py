"""Which flows must go and which must stay."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.sync.flow_making import (
    BALANCER,
    CLUSTER,
    CONTEXT,
    EXTERNAL,
    NODE,
    NODE_PORT,
    OTHER_HOST,
    OWN_ADDRESSES,
    POD_A,
    POD_B,
    SCTP_NAME,
    TCP_NAME,
    check_after,
    flow,
    plan,
    pod,
    syn,
)

from pointsman.kernel.tracked_flows import FlowQuery
from pointsman.model.addresses import Cidr, Family
from pointsman.model.endpoint import Endpoint
from pointsman.model.node_context import NodeContext, NodePortAddresses
from pointsman.model.plan import ServicePlan
from pointsman.model.service import Protocol, ServicePortName
from pointsman.sync.reconcile import PlanChange
from pointsman.sync.stale_flows import FlowCheck, extend_check

FRONTENDS = [(CLUSTER, 53), (EXTERNAL, 53), (BALANCER, 53), (NODE, NODE_PORT), (b"\x7f\0\0\x01", NODE_PORT)]


@pytest.mark.parametrize(("address", "port"), FRONTENDS)
def test_a_flow_on_a_vanished_endpoint_goes_at_every_frontend(address: bytes, port: int) -> None:
    check = check_after(PlanChange(plan(pod(POD_A), pod(POD_B)), plan(pod(POD_B))))
    gone, kept = flow(address, port, POD_A), flow(address, port, POD_B)
    assert check.find_stale([gone, kept]) == [gone]


def test_an_endpoint_of_weight_0_keeps_its_flows() -> None:
    drained = pod(POD_A, weight=0)
    after = plan(drained, pod(POD_B))
    assert [e.identity for e in after.endpoints.cluster] == [POD_B]
    check = check_after(PlanChange(plan(pod(POD_A), pod(POD_B)), after))
    assert check.find_stale([flow(CLUSTER, 53, POD_A), flow(CLUSTER, 53, POD_B)]) == []


@pytest.mark.parametrize(("address", "port"), FRONTENDS)
def test_all_endpoints_gone_frees_every_translated_flow(address: bytes, port: int) -> None:
    check = check_after(PlanChange(plan(pod(POD_A)), plan()))
    assert check.find_stale([flow(address, port, POD_A), flow(address, port, None)]) == [
        flow(address, port, POD_A)
    ]


@pytest.mark.parametrize(("address", "port"), FRONTENDS)
def test_a_flow_begun_before_there_was_an_endpoint_is_caught(address: bytes, port: int) -> None:
    untranslated = flow(address, port, None)
    assert check_after(PlanChange(plan(), plan(pod(POD_A)))).find_stale([untranslated]) == [untranslated]
    assert check_after(PlanChange(None, plan(pod(POD_A)))).find_stale([untranslated]) == [untranslated]
    assert check_after(PlanChange(None, plan())).find_stale([untranslated]) == []


def test_a_terminating_endpoint_that_still_serves_keeps_its_flows() -> None:
    terminating = pod(POD_A, ready=False, serving=True, terminating=True)
    change = PlanChange(plan(pod(POD_A), pod(POD_B)), plan(terminating, pod(POD_B)))
    assert check_after(change).find_stale([flow(CLUSTER, 53, POD_A)]) == []


def test_an_endpoint_that_stops_serving_loses_its_flows() -> None:
    dead = pod(POD_A, ready=False, serving=False, terminating=True)
    change = PlanChange(plan(pod(POD_A), pod(POD_B)), plan(dead, pod(POD_B)))
    assert check_after(change).find_stale([flow(CLUSTER, 53, POD_A)]) == [flow(CLUSTER, 53, POD_A)]


def test_where_asked_a_terminating_endpoint_keeps_its_flows_until_it_is_removed() -> None:
    def keeping(*endpoints: Endpoint) -> ServicePlan:
        return plan(*endpoints, pod(POD_B), keep_draining_udp=True)

    ends = pod(POD_A, ready=False, serving=False, terminating=True)
    lost = flow(CLUSTER, 53, POD_A)
    assert check_after(PlanChange(keeping(pod(POD_A)), keeping(ends))).find_stale([lost]) == []
    assert check_after(PlanChange(keeping(ends), keeping())).find_stale([lost]) == [lost]
    unready = pod(POD_A, ready=False, serving=False)
    assert check_after(PlanChange(keeping(pod(POD_A)), keeping(unready))).find_stale([lost]) == [lost]
    withdrawn = PlanChange(keeping(ends), plan(ends, pod(POD_B)))
    assert check_after(withdrawn).find_stale([lost]) == [lost], "the annotation was removed"
    deleted = PlanChange(keeping(ends), None)
    assert check_after(deleted).find_stale([lost]) == [lost], "the Service was deleted"


def test_a_ready_endpoint_that_does_not_serve_loses_its_flows_as_with_kube_proxy() -> None:
    published = pod(POD_A, ready=True, serving=False)
    check = check_after(PlanChange(plan(pod(POD_A)), plan(published)))
    assert check.find_stale([flow(CLUSTER, 53, POD_A)]) == [flow(CLUSTER, 53, POD_A)]


def test_untranslated_flows_go_also_where_the_only_endpoint_is_ready_and_does_not_serve() -> None:
    published = pod(POD_A, ready=True, serving=False)
    check = check_after(PlanChange(None, plan(published)))
    assert check.find_stale([flow(CLUSTER, 53, None)]) == [flow(CLUSTER, 53, None)]
    gone = check_after(PlanChange(plan(published), None))
    assert gone.find_stale([flow(CLUSTER, 53, POD_A)]) == [flow(CLUSTER, 53, POD_A)]


REMOTE, HERE = pod(POD_A), pod(POD_B, local=True)
LOCAL: dict[str, Any] = {"internal_local": True, "external_local": True}


@pytest.mark.parametrize(("address", "port"), FRONTENDS)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(plan(REMOTE, **LOCAL), plan(REMOTE, HERE, **LOCAL), id="the local endpoint is back"),
        pytest.param(plan(REMOTE), plan(REMOTE, HERE), id="one more endpoint"),
        pytest.param(plan(REMOTE, **LOCAL), plan(REMOTE), id="policies no longer Local"),
        pytest.param(plan(REMOTE), plan(REMOTE, affinity_seconds=60), id="affinity"),
        pytest.param(
            plan(REMOTE, pod(POD_B, local=True, ready=False, serving=True), **LOCAL),
            plan(REMOTE, HERE, **LOCAL),
            id="the local endpoint is ready again",
        ),
    ],
)
def test_untranslated_flows_are_found_after_any_change_that_endpoints_remain_after(
    address: bytes, port: int, before: ServicePlan, after: ServicePlan
) -> None:
    """The kernel replaced rules of this service port, and a packet may have slipped through between two tables."""
    untranslated = flow(address, port, None)
    assert check_after(PlanChange(before, after)).find_stale([untranslated, flow(address, port, POD_A)]) == [
        untranslated
    ]


def test_a_node_port_counts_on_addresses_of_this_node_only() -> None:
    check = check_after(PlanChange(plan(pod(POD_A)), plan(pod(POD_B))))
    foreign = flow(OTHER_HOST, NODE_PORT, POD_A)
    untranslated = flow(OTHER_HOST, NODE_PORT, None)
    assert check.find_stale([foreign, untranslated]) == []


def test_selected_node_port_addresses_limit_what_is_touched() -> None:
    where = NodePortAddresses(match_all=False, addresses=(NODE,), loopback=False)
    selected = NodeContext(Family.IPV4, "n", node_ips=(NODE,), node_port_addresses=where)
    check = check_after(
        PlanChange(plan(pod(POD_A)), plan(pod(POD_B))), context=selected, own_addresses=(NODE, OTHER_HOST)
    )
    ours = flow(NODE, NODE_PORT, POD_A)
    others = [flow(OTHER_HOST, NODE_PORT, POD_A), flow(b"\x7f\0\0\x01", NODE_PORT, POD_A)]
    assert check.find_stale([ours, *others]) == [ours]


def test_other_ports_protocols_and_addresses_are_never_touched() -> None:
    check = check_after(PlanChange(plan(pod(POD_A)), plan(pod(POD_B))))
    others = [
        flow(CLUSTER, 54, POD_A),
        flow(CLUSTER, NODE_PORT, POD_A),
        flow(b"\x0a\x60\0\x0b", 53, POD_A),
        flow(CLUSTER, 53, POD_A, protocol=6),
        flow(NODE, 53, POD_A),
    ]
    assert check.find_stale(others) == []


def test_flows_of_a_deleted_service_go_and_untranslated_ones_stay() -> None:
    check = check_after(PlanChange(plan(pod(POD_A)), None))
    elsewhere = flow(NODE, NODE_PORT, (b"\x0a\xf4\0\x63", 1))
    assert check.find_stale(
        [flow(CLUSTER, 53, POD_A), flow(NODE, NODE_PORT, POD_A), flow(CLUSTER, 53, None), elsewhere]
    ) == [flow(CLUSTER, 53, POD_A), flow(NODE, NODE_PORT, POD_A)]


def test_an_address_taken_away_loses_its_flows_and_the_others_keep_theirs() -> None:
    check = check_after(PlanChange(plan(pod(POD_A)), plan(pod(POD_A), addresses=(CLUSTER,), node_port=0)))
    taken = [flow(BALANCER, 53, POD_A), flow(NODE, NODE_PORT, POD_A)]
    assert check.find_stale([*taken, flow(CLUSTER, 53, POD_A)]) == taken


def test_a_renamed_port_keeps_its_flows() -> None:
    renamed = ServicePortName("kube-system", "dns", "dns-udp", Protocol.UDP)
    changes = [PlanChange(plan(pod(POD_A)), None), PlanChange(None, plan(pod(POD_A), name=renamed))]
    for order in (changes, changes[::-1]):
        assert check_after(*order).find_stale([flow(CLUSTER, 53, POD_A), flow(NODE, NODE_PORT, POD_A)]) == []


def test_an_endpoint_on_the_frontend_itself_keeps_its_flows() -> None:
    """A host-network endpoint behind the node's own address as an external IP."""
    host = (EXTERNAL, 53)
    check = check_after(PlanChange(plan(pod(host), pod(POD_A)), plan(pod(host))))
    assert check.find_stale([flow(EXTERNAL, 53, None)]) == []


def test_sctp_flows_are_left_alone() -> None:
    for new in (None, plan(name=SCTP_NAME), plan(pod(POD_B), name=SCTP_NAME)):
        change = PlanChange(plan(pod(POD_A), name=SCTP_NAME), new)
        assert extend_check(None, change) is None


@pytest.mark.parametrize(("address", "port"), FRONTENDS)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(None, plan(REMOTE, name=TCP_NAME), id="a new Service"),
        pytest.param(plan(name=TCP_NAME), plan(REMOTE, name=TCP_NAME), id="the first endpoint"),
        pytest.param(
            plan(REMOTE, name=TCP_NAME, **LOCAL),
            plan(REMOTE, HERE, name=TCP_NAME, **LOCAL),
            id="the first local endpoint",
        ),
    ],
)
def test_a_handshake_begun_before_its_frontend_was_in_service_may_begin_again(
    address: bytes, port: int, before: ServicePlan | None, after: ServicePlan
) -> None:
    check = check_after(PlanChange(before, after))
    others = [syn(address, port, POD_A), syn(address, port, replied=True), syn(OTHER_HOST, port)]
    assert check.find_stale([syn(address, port), *others]) == [syn(address, port)]


@pytest.mark.parametrize(("address", "port"), FRONTENDS[1:])
@pytest.mark.parametrize("ranges", [(), (Cidr(b"\x0a\0\0\0", 8),)], ids=["removed", "replaced"])
def test_a_handshake_of_a_client_that_was_denied_before_may_begin_again(
    address: bytes, port: int, ranges: tuple[Cidr, ...]
) -> None:
    """In iptables mode its drop goes before its translation comes, and a SYN may pass between the two."""
    guarded: dict[str, Any] = {"name": TCP_NAME, "ranges_everywhere": True}
    before = plan(REMOTE, source_ranges=(Cidr(b"\xc0\0\x02\0", 24),), **guarded)
    check = check_after(PlanChange(before, plan(REMOTE, source_ranges=ranges, **guarded)))
    others = [syn(address, port, POD_A), syn(address, port, replied=True)]
    assert check.find_stale([syn(address, port), *others]) == [syn(address, port)]


def test_a_tcp_frontend_that_was_in_service_all_the_time_is_not_looked_at() -> None:
    for old, new in (
        (plan(REMOTE, name=TCP_NAME), plan(REMOTE, HERE, name=TCP_NAME)),
        (plan(REMOTE, HERE, name=TCP_NAME), plan(HERE, name=TCP_NAME)),
        (plan(REMOTE, HERE, name=TCP_NAME, **LOCAL), plan(REMOTE, name=TCP_NAME, **LOCAL)),
        (plan(REMOTE, name=TCP_NAME), plan(name=TCP_NAME)),
        (plan(REMOTE, name=TCP_NAME), None),
    ):
        assert extend_check(None, PlanChange(old, new)) is None


def test_a_new_address_of_a_tcp_service_is_looked_at_alone() -> None:
    change = PlanChange(
        plan(REMOTE, name=TCP_NAME, addresses=(CLUSTER,), node_port=0),
        plan(REMOTE, name=TCP_NAME, addresses=(CLUSTER, EXTERNAL), node_port=0),
    )
    assert check_after(change).build_queries() == [FlowQuery(6, EXTERNAL, 53, unreplied=True)]


def test_insiders_are_helped_although_outsiders_meet_silence() -> None:
    """Pods and the node use endpoints elsewhere under external policy Local, so their flows can be untranslated."""
    check = check_after(PlanChange(None, plan(REMOTE, name=TCP_NAME, external_local=True)))
    assert check.find_stale([syn(BALANCER, 53)]) == [syn(BALANCER, 53)]


def test_a_handshake_at_a_frontend_that_was_taken_away_meanwhile_is_left_alone() -> None:
    host = pod((EXTERNAL, 53))
    first = extend_check(None, PlanChange(None, plan(host, name=TCP_NAME)))
    then = extend_check(first, PlanChange(plan(host, name=TCP_NAME), None))
    assert then is not None
    assert (
        FlowCheck([(TCP_NAME, then)], {}, CONTEXT, OWN_ADDRESSES).find_stale(
            [syn(EXTERNAL, 53), syn(CLUSTER, 53)]
        )
        == []
    )


def test_few_ports_are_asked_for_exactly_and_many_by_protocol() -> None:
    one = check_after(PlanChange(plan(pod(POD_A), addresses=(CLUSTER,)), plan(addresses=(CLUSTER,))))
    assert set(one.build_queries()) == {FlowQuery(17, CLUSTER, 53), FlowQuery(17, None, NODE_PORT)}
    several = check_after(PlanChange(plan(pod(POD_A)), plan()))
    assert set(several.build_queries()) == {FlowQuery(17, None, 53), FlowQuery(17, None, NODE_PORT)}
    many = [PlanChange(plan(pod(POD_A), port=port), None) for port in range(1, 10)]
    assert check_after(*many).build_queries() == [FlowQuery(17)]
    handshakes = PlanChange(None, plan(pod(POD_A), name=TCP_NAME, addresses=(CLUSTER,), node_port=0))
    assert check_after(*many, handshakes).build_queries() == [
        FlowQuery(17),
        FlowQuery(6, CLUSTER, 53, unreplied=True),
    ]


def test_accumulated_changes_union_what_was_and_take_the_latest_plan() -> None:
    alone: dict[str, Any] = {"addresses": (CLUSTER,), "node_port": 0}
    first = extend_check(None, PlanChange(plan(pod(POD_A), **alone), plan(**alone)))
    second = extend_check(first, PlanChange(plan(pod(POD_B), addresses=(EXTERNAL,), node_port=0), None))
    assert second is not None
    assert sorted(second.frontends) == sorted([(17, CLUSTER, 53), (17, EXTERNAL, 53)])
    assert (sorted(second.endpoints), second.listed) == (sorted([POD_A, POD_B]), ())


def test_endpoints_are_read_only_where_they_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """This runs on the event loop after every sync, and a TCP Service may have hundreds of thousands of endpoints."""
    read: list[ServicePlan | None] = []

    def count(made: ServicePlan | None) -> frozenset[tuple[bytes, int]]:
        read.append(made)
        return frozenset()

    monkeypatch.setattr("pointsman.sync.stale_flows._collect_listed", count)
    monkeypatch.setattr("pointsman.sync.stale_flows._collect_used", count)
    before, after = (plan(pod(one), name=TCP_NAME) for one in (POD_A, POD_B))
    assert extend_check(None, PlanChange(before, after)) is None
    assert read == []
