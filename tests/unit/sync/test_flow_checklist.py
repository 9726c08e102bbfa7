"""Which flows must go and which must stay."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.sync.flow_making import (
    BALANCER,
    CLUSTER,
    EXTERNAL,
    NODE,
    NODE_PORT,
    OTHER_HOST,
    POD_A,
    POD_B,
    SCTP_NAME,
    SITUATION,
    TCP_NAME,
    flow,
    plan,
    pod,
    syn,
)

from pointsman.kernel.tracked_flows import FlowQuery
from pointsman.model.addresses import Cidr, Family
from pointsman.model.node_context import NodeContext, NodePortAddresses, Situation
from pointsman.model.plan import ServicePlan
from pointsman.model.service import Protocol, ServicePortName
from pointsman.sync.flow_checklist import (
    Checklist,
    Unsettled,
    checklist_of,
    stale_flows,
    unsettled_after,
)
from pointsman.sync.reconcile import PlanChange


def checklist(*changes: PlanChange, situation: Situation = SITUATION) -> Checklist:
    noted = [unsettled_after(None, change) for change in changes]
    return checklist_of([entry for entry in noted if entry is not None], situation)


FRONTENDS = [(CLUSTER, 53), (EXTERNAL, 53), (BALANCER, 53), (NODE, NODE_PORT), (b"\x7f\0\0\x01", NODE_PORT)]


@pytest.mark.parametrize(("address", "port"), FRONTENDS)
def test_a_flow_on_a_vanished_endpoint_goes_at_every_frontend(address: bytes, port: int) -> None:
    check = checklist(PlanChange(plan(pod(POD_A), pod(POD_B)), plan(pod(POD_B))))
    gone, kept = flow(address, port, POD_A), flow(address, port, POD_B)
    assert stale_flows([gone, kept], check) == [gone]


def test_an_endpoint_of_weight_0_keeps_its_flows() -> None:
    drained = pod(POD_A, weight=0)
    after = plan(drained, pod(POD_B))
    assert [e.identity for e in after.cluster_endpoints] == [POD_B]
    check = checklist(PlanChange(plan(pod(POD_A), pod(POD_B)), after))
    assert stale_flows([flow(CLUSTER, 53, POD_A), flow(CLUSTER, 53, POD_B)], check) == []


@pytest.mark.parametrize(("address", "port"), FRONTENDS)
def test_all_endpoints_gone_frees_every_translated_flow(address: bytes, port: int) -> None:
    check = checklist(PlanChange(plan(pod(POD_A)), plan()))
    assert stale_flows([flow(address, port, POD_A), flow(address, port, None)], check) == [
        flow(address, port, POD_A)
    ]


@pytest.mark.parametrize(("address", "port"), FRONTENDS)
def test_a_flow_begun_before_there_was_an_endpoint_is_caught(address: bytes, port: int) -> None:
    untranslated = flow(address, port, None)
    assert stale_flows([untranslated], checklist(PlanChange(plan(), plan(pod(POD_A))))) == [untranslated]
    assert stale_flows([untranslated], checklist(PlanChange(None, plan(pod(POD_A))))) == [untranslated]
    assert stale_flows([untranslated], checklist(PlanChange(None, plan()))) == []


def test_a_terminating_endpoint_that_still_serves_keeps_its_flows() -> None:
    terminating = pod(POD_A, ready=False, serving=True, terminating=True)
    change = PlanChange(plan(pod(POD_A), pod(POD_B)), plan(terminating, pod(POD_B)))
    assert stale_flows([flow(CLUSTER, 53, POD_A)], checklist(change)) == []


def test_an_endpoint_that_stops_serving_loses_its_flows() -> None:
    dead = pod(POD_A, ready=False, serving=False, terminating=True)
    change = PlanChange(plan(pod(POD_A), pod(POD_B)), plan(dead, pod(POD_B)))
    assert stale_flows([flow(CLUSTER, 53, POD_A)], checklist(change)) == [flow(CLUSTER, 53, POD_A)]


def test_a_ready_endpoint_that_does_not_serve_loses_its_flows_as_with_kube_proxy() -> None:
    published = pod(POD_A, ready=True, serving=False)
    check = checklist(PlanChange(plan(pod(POD_A)), plan(published)))
    assert stale_flows([flow(CLUSTER, 53, POD_A)], check) == [flow(CLUSTER, 53, POD_A)]


def test_untranslated_flows_go_also_where_the_only_endpoint_is_ready_and_does_not_serve() -> None:
    published = pod(POD_A, ready=True, serving=False)
    check = checklist(PlanChange(None, plan(published)))
    assert stale_flows([flow(CLUSTER, 53, None)], check) == [flow(CLUSTER, 53, None)]
    gone = checklist(PlanChange(plan(published), None))
    assert stale_flows([flow(CLUSTER, 53, POD_A)], gone) == [flow(CLUSTER, 53, POD_A)]


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
    assert stale_flows([untranslated, flow(address, port, POD_A)], checklist(PlanChange(before, after))) == [
        untranslated
    ]


def test_a_node_port_counts_on_addresses_of_this_node_only() -> None:
    check = checklist(PlanChange(plan(pod(POD_A)), plan(pod(POD_B))))
    foreign = flow(OTHER_HOST, NODE_PORT, POD_A)
    untranslated = flow(OTHER_HOST, NODE_PORT, None)
    assert stale_flows([foreign, untranslated], check) == []


def test_selected_node_port_addresses_limit_what_is_touched() -> None:
    where = NodePortAddresses(match_all=False, addresses=(NODE,), loopback=False)
    selected = Situation(
        NodeContext(Family.IPV4, "n", node_ips=(NODE,), node_port_addresses=where), (NODE, OTHER_HOST)
    )
    check = checklist(PlanChange(plan(pod(POD_A)), plan(pod(POD_B))), situation=selected)
    ours = flow(NODE, NODE_PORT, POD_A)
    others = [flow(OTHER_HOST, NODE_PORT, POD_A), flow(b"\x7f\0\0\x01", NODE_PORT, POD_A)]
    assert stale_flows([ours, *others], check) == [ours]


def test_other_ports_protocols_and_addresses_are_never_touched() -> None:
    check = checklist(PlanChange(plan(pod(POD_A)), plan(pod(POD_B))))
    others = [
        flow(CLUSTER, 54, POD_A),
        flow(CLUSTER, NODE_PORT, POD_A),
        flow(b"\x0a\x60\0\x0b", 53, POD_A),
        flow(CLUSTER, 53, POD_A, protocol=6),
        flow(NODE, 53, POD_A),
    ]
    assert stale_flows(others, check) == []


def test_flows_of_a_deleted_service_go_and_untranslated_ones_stay() -> None:
    check = checklist(PlanChange(plan(pod(POD_A)), None))
    elsewhere = flow(NODE, NODE_PORT, (b"\x0a\xf4\0\x63", 1))
    assert stale_flows(
        [flow(CLUSTER, 53, POD_A), flow(NODE, NODE_PORT, POD_A), flow(CLUSTER, 53, None), elsewhere], check
    ) == [flow(CLUSTER, 53, POD_A), flow(NODE, NODE_PORT, POD_A)]


def test_an_address_taken_away_loses_its_flows_and_the_others_keep_theirs() -> None:
    check = checklist(PlanChange(plan(pod(POD_A)), plan(pod(POD_A), addresses=(CLUSTER,), node_port=0)))
    taken = [flow(BALANCER, 53, POD_A), flow(NODE, NODE_PORT, POD_A)]
    assert stale_flows([*taken, flow(CLUSTER, 53, POD_A)], check) == taken


def test_a_renamed_port_keeps_its_flows() -> None:
    renamed = ServicePortName("kube-system", "dns", "dns-udp", Protocol.UDP)
    changes = [PlanChange(plan(pod(POD_A)), None), PlanChange(None, plan(pod(POD_A), name=renamed))]
    for order in (changes, changes[::-1]):
        assert stale_flows([flow(CLUSTER, 53, POD_A), flow(NODE, NODE_PORT, POD_A)], checklist(*order)) == []


def test_an_endpoint_on_the_frontend_itself_keeps_its_flows() -> None:
    """A host-network endpoint behind the node's own address as an external IP."""
    host = (EXTERNAL, 53)
    check = checklist(PlanChange(plan(pod(host), pod(POD_A)), plan(pod(host))))
    assert stale_flows([flow(EXTERNAL, 53, None)], check) == []


def test_sctp_flows_are_left_alone() -> None:
    for new in (None, plan(name=SCTP_NAME), plan(pod(POD_B), name=SCTP_NAME)):
        change = PlanChange(plan(pod(POD_A), name=SCTP_NAME), new)
        assert unsettled_after(None, change) is None


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
    check = checklist(PlanChange(before, after))
    others = [syn(address, port, POD_A), syn(address, port, replied=True), syn(OTHER_HOST, port)]
    assert stale_flows([syn(address, port), *others], check) == [syn(address, port)]


@pytest.mark.parametrize(("address", "port"), FRONTENDS[1:])
@pytest.mark.parametrize("ranges", [(), (Cidr(b"\x0a\0\0\0", 8),)], ids=["removed", "replaced"])
def test_a_handshake_of_a_client_that_was_denied_before_may_begin_again(
    address: bytes, port: int, ranges: tuple[Cidr, ...]
) -> None:
    """In iptables mode its drop goes before its translation comes, and a SYN may pass between the two."""
    guarded: dict[str, Any] = {"name": TCP_NAME, "ranges_everywhere": True}
    before = plan(REMOTE, source_ranges=(Cidr(b"\xc0\0\x02\0", 24),), **guarded)
    check = checklist(PlanChange(before, plan(REMOTE, source_ranges=ranges, **guarded)))
    others = [syn(address, port, POD_A), syn(address, port, replied=True)]
    assert stale_flows([syn(address, port), *others], check) == [syn(address, port)]


def test_a_tcp_frontend_that_was_in_service_all_the_time_is_not_looked_at() -> None:
    for old, new in (
        (plan(REMOTE, name=TCP_NAME), plan(REMOTE, HERE, name=TCP_NAME)),
        (plan(REMOTE, HERE, name=TCP_NAME), plan(HERE, name=TCP_NAME)),
        (plan(REMOTE, HERE, name=TCP_NAME, **LOCAL), plan(REMOTE, name=TCP_NAME, **LOCAL)),
        (plan(REMOTE, name=TCP_NAME), plan(name=TCP_NAME)),
        (plan(REMOTE, name=TCP_NAME), None),
    ):
        assert unsettled_after(None, PlanChange(old, new)) is None


def test_a_new_address_of_a_tcp_service_is_looked_at_alone() -> None:
    change = PlanChange(
        plan(REMOTE, name=TCP_NAME, addresses=(CLUSTER,), node_port=0),
        plan(REMOTE, name=TCP_NAME, addresses=(CLUSTER, EXTERNAL), node_port=0),
    )
    assert checklist(change).queries() == [FlowQuery(6, EXTERNAL, 53, unreplied=True)]


def test_insiders_are_helped_although_outsiders_meet_silence() -> None:
    """Pods and the node use endpoints elsewhere under external policy Local, so their flows can be untranslated."""
    check = checklist(PlanChange(None, plan(REMOTE, name=TCP_NAME, external_local=True)))
    assert stale_flows([syn(BALANCER, 53)], check) == [syn(BALANCER, 53)]


def test_a_handshake_at_a_frontend_that_was_taken_away_meanwhile_is_left_alone() -> None:
    host = pod((EXTERNAL, 53))
    first = unsettled_after(None, PlanChange(None, plan(host, name=TCP_NAME)))
    then = unsettled_after(first, PlanChange(plan(host, name=TCP_NAME), None))
    assert then is not None
    assert stale_flows([syn(EXTERNAL, 53), syn(CLUSTER, 53)], checklist_of([then], SITUATION)) == []


def test_few_ports_are_asked_for_exactly_and_many_by_protocol() -> None:
    one = checklist(PlanChange(plan(pod(POD_A), addresses=(CLUSTER,)), plan(addresses=(CLUSTER,))))
    assert set(one.queries()) == {FlowQuery(17, CLUSTER, 53), FlowQuery(17, None, NODE_PORT)}
    several = checklist(PlanChange(plan(pod(POD_A)), plan()))
    assert set(several.queries()) == {FlowQuery(17, None, 53), FlowQuery(17, None, NODE_PORT)}
    many = [PlanChange(plan(pod(POD_A), port=port), None) for port in range(1, 10)]
    assert checklist(*many).queries() == [FlowQuery(17)]
    handshakes = PlanChange(None, plan(pod(POD_A), name=TCP_NAME, addresses=(CLUSTER,), node_port=0))
    assert checklist(*many, handshakes).queries() == [
        FlowQuery(17),
        FlowQuery(6, CLUSTER, 53, unreplied=True),
    ]


def test_accumulated_changes_union_what_was_and_take_the_latest_plan() -> None:
    alone: dict[str, Any] = {"addresses": (CLUSTER,), "node_port": 0}
    first = unsettled_after(None, PlanChange(plan(pod(POD_A), **alone), plan(**alone)))
    second = unsettled_after(first, PlanChange(plan(pod(POD_B), addresses=(EXTERNAL,), node_port=0), None))
    assert second == Unsettled(
        frozenset({(17, CLUSTER, 53), (17, EXTERNAL, 53)}), frozenset({POD_A, POD_B}), None
    )
