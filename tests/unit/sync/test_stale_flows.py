"""Which flows must go and which must stay, and how a run deals with time, failure and newer changes."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Self

import pytest

from pointsman.errors import NotSupported, Rejected
from pointsman.kernel.conntrack import DeadlinePassed, Flow, FlowQuery, Wanted
from pointsman.model.addresses import Family
from pointsman.model.endpoint import Endpoint
from pointsman.model.node_context import NodeContext, NodePortAddresses
from pointsman.model.plan import Frontend, FrontendKind, Outcome, ServicePlan
from pointsman.model.service import Protocol, ServicePort, ServicePortName
from pointsman.obs.registry import Metrics
from pointsman.sync.reconcile import PlanChange
from pointsman.sync.stale import (
    Checklist,
    StaleFlowCleaner,
    Unsettled,
    checklist_of,
    may_leave_stale_flows,
    stale_flows,
    unsettled_after,
)

CLUSTER, EXTERNAL, BALANCER = b"\x0a\x60\0\x0a", b"\xc0\0\x02\x05", b"\xc0\0\x02\x06"
NODE, OTHER_HOST, CLIENT = b"\x0a\0\0\x01", b"\x0a\0\0\x63", b"\x0a\xf4\x09\x09"
POD_A, POD_B = (b"\x0a\xf4\0\x05", 5353), (b"\x0a\xf4\0\x06", 5353)
NODE_PORT = 30053
CONTEXT = NodeContext(Family.IPV4, "n", node_ips=(NODE,), local_addresses=(NODE, b"\x7f\0\0\x01"))
NAME = ServicePortName("kube-system", "dns", "dns", Protocol.UDP)


def pod(backend: tuple[bytes, int], **state: Any) -> Endpoint:
    return Endpoint(*backend, **state)


def plan(
    *endpoints: Endpoint,
    name: ServicePortName = NAME,
    addresses: Iterable[bytes] = (CLUSTER, EXTERNAL, BALANCER),
    node_port: int = NODE_PORT,
    port: int = 53,
) -> ServicePlan:
    frontends = [
        Frontend(FrontendKind.CLUSTER_IP, address, port, False, Outcome.BALANCE) for address in addresses
    ]
    if node_port:
        frontends.append(Frontend(FrontendKind.NODE_PORT, b"", node_port, False, Outcome.BALANCE))
    usable = tuple(entry for entry in endpoints if entry.ready)
    return ServicePlan(
        port=ServicePort(name, Family.IPV4, CLUSTER, port, node_port),
        frontends=tuple(frontends),
        cluster_endpoints=usable,
        local_endpoints=(),
        reachable_endpoints=usable,
        has_any=bool(endpoints),
        all_endpoints=endpoints,
    )


def flow(
    to: bytes, port: int, answering: tuple[bytes, int] | None, *, protocol: int = 17, source_port: int = 4000
) -> Flow:
    source, number = answering or (to, port)
    return Flow(protocol, CLIENT, source_port, to, port, source, number, CLIENT, source_port, b"\0\0\0\x01")


def checklist(*changes: PlanChange, context: NodeContext = CONTEXT) -> Checklist:
    return checklist_of([unsettled_after(None, change) for change in changes], context)


FRONTENDS = [(CLUSTER, 53), (EXTERNAL, 53), (BALANCER, 53), (NODE, NODE_PORT), (b"\x7f\0\0\x01", NODE_PORT)]


@pytest.mark.parametrize(("address", "port"), FRONTENDS)
def test_a_flow_on_a_vanished_endpoint_goes_at_every_frontend(address: bytes, port: int) -> None:
    check = checklist(PlanChange(plan(pod(POD_A), pod(POD_B)), plan(pod(POD_B))))
    gone, kept = flow(address, port, POD_A), flow(address, port, POD_B)
    assert stale_flows([gone, kept], check) == [gone]


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
    assert not may_leave_stale_flows(change)
    assert stale_flows([flow(CLUSTER, 53, POD_A)], checklist(change)) == []


def test_an_endpoint_that_stops_serving_loses_its_flows() -> None:
    dead = pod(POD_A, ready=False, serving=False, terminating=True)
    change = PlanChange(plan(pod(POD_A), pod(POD_B)), plan(dead, pod(POD_B)))
    assert may_leave_stale_flows(change)
    assert stale_flows([flow(CLUSTER, 53, POD_A)], checklist(change)) == [flow(CLUSTER, 53, POD_A)]


def test_a_ready_endpoint_that_does_not_serve_keeps_its_flows() -> None:
    published = pod(POD_A, ready=True, serving=False)
    check = checklist(PlanChange(plan(pod(POD_B)), plan(published)))
    assert stale_flows([flow(CLUSTER, 53, POD_A)], check) == []


def test_a_node_port_counts_on_addresses_of_this_node_only() -> None:
    check = checklist(PlanChange(plan(pod(POD_A)), plan(pod(POD_B))))
    foreign = flow(OTHER_HOST, NODE_PORT, POD_A)
    untranslated = flow(OTHER_HOST, NODE_PORT, None)
    assert stale_flows([foreign, untranslated], check) == []


def test_selected_node_port_addresses_limit_what_is_touched() -> None:
    selected = NodeContext(
        Family.IPV4,
        "n",
        node_ips=(NODE,),
        local_addresses=(NODE, OTHER_HOST),
        node_port_addresses=NodePortAddresses(match_all=False, addresses=(NODE,), loopback=False),
    )
    check = checklist(PlanChange(plan(pod(POD_A)), plan(pod(POD_B))), context=selected)
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


def test_sctp_is_checked_and_tcp_is_not() -> None:
    sctp, tcp = (ServicePortName("a", "b", "", protocol) for protocol in (Protocol.SCTP, Protocol.TCP))
    assert may_leave_stale_flows(PlanChange(plan(pod(POD_A), name=sctp), None))
    assert not may_leave_stale_flows(PlanChange(plan(pod(POD_A), name=tcp), None))
    assert not may_leave_stale_flows(PlanChange(None, None))
    check = checklist(PlanChange(plan(pod(POD_A), name=sctp), plan(pod(POD_B), name=sctp)))
    assert stale_flows([flow(CLUSTER, 53, POD_A, protocol=132)], check)
    assert stale_flows([flow(CLUSTER, 53, POD_A, protocol=17)], check) == []


def test_more_endpoints_need_no_look_at_the_flows() -> None:
    assert not may_leave_stale_flows(PlanChange(plan(pod(POD_A)), plan(pod(POD_A), pod(POD_B))))
    assert may_leave_stale_flows(PlanChange(plan(), plan(pod(POD_A))))


def test_few_ports_are_asked_for_exactly_and_many_by_protocol() -> None:
    one = checklist(PlanChange(plan(pod(POD_A), addresses=(CLUSTER,)), plan(addresses=(CLUSTER,))))
    assert set(one.queries()) == {FlowQuery(17, CLUSTER, 53), FlowQuery(17, None, NODE_PORT)}
    several = checklist(PlanChange(plan(pod(POD_A)), plan()))
    assert set(several.queries()) == {FlowQuery(17, None, 53), FlowQuery(17, None, NODE_PORT)}
    many = checklist(*(PlanChange(plan(pod(POD_A), port=port), None) for port in range(1, 10)))
    assert many.queries() == [FlowQuery(17)]


class FakeTable:
    """An in-memory conntrack table with the contract of the real one."""

    def __init__(self, flows: Iterable[Flow]) -> None:
        self.entries = list(flows)
        self.queries: list[FlowQuery] = []
        self.failure: Exception | None = None
        self.after_dump: Callable[[], object] = lambda: None

    def open(self, _family: Family) -> FakeTable:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.after_dump = lambda: None

    def flows(self, query: FlowQuery, wanted: Wanted, expired: Callable[[], bool]) -> list[Flow]:
        self.queries.append(query)
        if self.failure:
            raise self.failure
        if expired():
            raise DeadlinePassed("too slow")
        found = [
            entry
            for entry in self.entries
            if query.matches(entry.protocol, entry.destination, entry.destination_port)
            and wanted(entry.destination, entry.destination_port, entry.reply_source, entry.reply_source_port)
        ]
        self.after_dump()
        return found

    def delete(self, flows: list[Flow], expired: Callable[[], bool]) -> int:
        if expired():
            raise DeadlinePassed("too slow")
        self.entries = [entry for entry in self.entries if entry not in flows]
        return len(flows)


def cleaner(table: FakeTable, metrics: Metrics | None = None, **options: object) -> StaleFlowCleaner:
    return StaleFlowCleaner(
        Family.IPV4,
        metrics or Metrics("nftables"),
        open_table=table.open,  # type: ignore[arg-type]
        **options,  # type: ignore[arg-type]
    )


def test_a_run_deletes_what_is_stale_and_counts_it() -> None:
    metrics = Metrics("nftables")
    table = FakeTable([flow(CLUSTER, 53, POD_A), flow(CLUSTER, 53, POD_B, source_port=5000)])
    driver = cleaner(table, metrics)
    assert driver.add({NAME: PlanChange(plan(pod(POD_A), pod(POD_B)), plan(pod(POD_B)))}, CONTEXT)
    report = driver.run()
    assert (report.deleted, report.problem) == (1, "")
    assert table.entries == [flow(CLUSTER, 53, POD_B, source_port=5000)]
    assert driver.waiting == 0
    text = metrics.exposition().decode()
    assert 'kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family="IPv4"} 1.0' in text
    assert 'kubeproxy_conntrack_reconciler_sync_duration_seconds_count{ip_family="IPv4"} 1.0' in text


def test_changes_that_leave_nothing_stale_ask_the_kernel_nothing() -> None:
    table = FakeTable([flow(CLUSTER, 53, POD_A)])
    driver = cleaner(table)
    assert not driver.add({NAME: PlanChange(plan(pod(POD_A)), plan(pod(POD_A), pod(POD_B)))}, CONTEXT)
    assert driver.run().deleted == 0
    assert table.queries == []


def test_after_a_restart_only_flows_without_a_serving_endpoint_go() -> None:
    other = ServicePortName("a", "quic", "", Protocol.UDP)
    kept = [flow(CLUSTER, 53, POD_B), flow(b"\x0a\x60\0\x0b", 443, POD_A)]
    table = FakeTable([flow(CLUSTER, 53, POD_A, source_port=1), *kept])
    driver = cleaner(table)
    unchanged = plan(pod(POD_A), name=other, addresses=(b"\x0a\x60\0\x0b",), node_port=0, port=443)
    driver.add({NAME: PlanChange(None, plan(pod(POD_B))), other: PlanChange(None, unchanged)}, CONTEXT)
    assert driver.run().deleted == 1
    assert table.entries == kept


def test_a_failed_run_keeps_its_notes_and_the_next_one_knows_newer_changes() -> None:
    table = FakeTable([flow(CLUSTER, 53, POD_A), flow(CLUSTER, 53, POD_B, source_port=2)])
    table.failure = Rejected("no buffer space", errno.ENOBUFS)
    driver = cleaner(table)
    driver.add({NAME: PlanChange(plan(pod(POD_A)), plan())}, CONTEXT)
    assert "no buffer space" in driver.run().problem
    assert driver.waiting == 1
    driver.add({NAME: PlanChange(plan(), plan(pod(POD_B)))}, CONTEXT)
    table.failure = None
    assert driver.run().deleted == 1
    assert table.entries == [flow(CLUSTER, 53, POD_B, source_port=2)]


def test_frontends_lost_between_two_failed_runs_are_still_checked() -> None:
    table = FakeTable([flow(BALANCER, 53, POD_A)])
    table.failure = Rejected("busy")
    driver = cleaner(table)
    driver.add({NAME: PlanChange(None, plan(pod(POD_A)))}, CONTEXT)
    driver.run()
    driver.add({NAME: PlanChange(plan(pod(POD_A)), None)}, CONTEXT)
    table.failure = None
    assert driver.run().deleted == 1


def test_a_run_past_its_deadline_stops_and_keeps_its_notes() -> None:
    now = iter(range(0, 1000, 20))
    table = FakeTable([flow(CLUSTER, 53, POD_A)])
    driver = cleaner(table, deadline=timedelta(seconds=10), monotonic=lambda: float(next(now)))
    driver.add({NAME: PlanChange(plan(pod(POD_A)), plan())}, CONTEXT)
    assert "too slow" in driver.run().problem
    assert driver.waiting == 1


def test_a_kernel_without_conntrack_netlink_is_reported_and_not_asked_again_for_the_same() -> None:
    table = FakeTable([])
    table.failure = NotSupported("list tracked flows: the kernel needs CONFIG_NF_CT_NETLINK")
    driver = cleaner(table)
    driver.add({NAME: PlanChange(plan(pod(POD_A)), plan())}, CONTEXT)
    assert "CONFIG_NF_CT_NETLINK" in driver.run().problem
    assert driver.waiting == 0


def test_a_bug_met_in_a_run_is_reported_and_later_runs_work() -> None:
    table = FakeTable([flow(CLUSTER, 53, POD_A)])
    table.failure = ZeroDivisionError()
    driver = cleaner(table)
    driver.add({NAME: PlanChange(plan(pod(POD_A)), plan())}, CONTEXT)
    assert "ZeroDivisionError" in driver.run().problem
    assert driver.waiting == 0
    table.failure = None
    driver.add({NAME: PlanChange(plan(pod(POD_A)), plan())}, CONTEXT)
    assert driver.run().deleted == 1


def test_an_endpoint_that_came_back_while_flows_were_listed_keeps_them() -> None:
    table = FakeTable([flow(CLUSTER, 53, POD_A)])
    driver = cleaner(table)
    driver.add({NAME: PlanChange(plan(pod(POD_A), pod(POD_B)), plan(pod(POD_B)))}, CONTEXT)
    back = PlanChange(plan(pod(POD_B)), plan(pod(POD_A), pod(POD_B)))
    table.after_dump = lambda: driver.add({NAME: back}, CONTEXT)
    assert driver.run().deleted == 0
    assert driver.waiting == 1
    assert driver.run().deleted == 0
    assert driver.waiting == 0


def test_accumulated_changes_union_what_was_and_take_the_latest_plan() -> None:
    first = unsettled_after(None, PlanChange(plan(pod(POD_A), addresses=(CLUSTER,), node_port=0), plan()))
    second = unsettled_after(first, PlanChange(plan(pod(POD_B), addresses=(EXTERNAL,), node_port=0), None))
    assert second == Unsettled(
        frozenset({(17, CLUSTER, 53), (17, EXTERNAL, 53)}), frozenset({POD_A, POD_B}), None
    )
