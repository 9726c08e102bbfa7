"""How a run of the cleaner deals with time, failure and newer changes."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Self

from tests.unit.sync.flow_making import (
    BALANCER,
    CLUSTER,
    EXTERNAL,
    NAME,
    POD_A,
    POD_B,
    SITUATION,
    TCP_NAME,
    flow,
    plan,
    pod,
    syn,
)

from pointsman.errors import NotSupported, Rejected
from pointsman.kernel.conntrack import DeadlinePassed
from pointsman.kernel.tracked_flows import Flow, FlowQuery, Wanted
from pointsman.model.addresses import Family
from pointsman.model.service import Protocol, ServicePortName
from pointsman.obs.registry import Metrics
from pointsman.sync.reconcile import PlanChange
from pointsman.sync.stale import StaleFlowCleaner


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
            and not (query.unreplied and entry.replied)
            and wanted(entry.destination, entry.destination_port, entry.reply_source, entry.reply_source_port)
        ]
        self.after_dump()
        return found

    def still_unreplied(self, flows: list[Flow]) -> list[Flow]:
        return [entry for entry in flows if entry in self.entries]

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
    assert driver.add({NAME: PlanChange(plan(pod(POD_A), pod(POD_B)), plan(pod(POD_B)))}, SITUATION)
    report = driver.run()
    assert (report.deleted, report.problem) == (1, "")
    assert table.entries == [flow(CLUSTER, 53, POD_B, source_port=5000)]
    assert driver.waiting == 0
    text = metrics.exposition().decode()
    assert 'kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family="IPv4"} 1.0' in text
    assert 'kubeproxy_conntrack_reconciler_sync_duration_seconds_count{ip_family="IPv4"} 1.0' in text


def test_changes_that_leave_nothing_stale_ask_the_kernel_nothing() -> None:
    table = FakeTable([flow(CLUSTER, 53, POD_A, protocol=6)])
    driver = cleaner(table)
    more = PlanChange(plan(pod(POD_A), name=TCP_NAME), plan(pod(POD_A), pod(POD_B), name=TCP_NAME))
    assert not driver.add({TCP_NAME: more}, SITUATION)
    assert driver.run().deleted == 0
    assert table.queries == []


def test_every_service_port_can_be_checked_without_a_change() -> None:
    table = FakeTable([])
    driver = cleaner(table)
    tcp = plan(pod(POD_A), name=TCP_NAME)
    driver.add({NAME: PlanChange(None, plan(pod(POD_A))), TCP_NAME: PlanChange(None, tcp)}, SITUATION)
    driver.run()
    slipped = [flow(CLUSTER, 53, None), syn(CLUSTER, 53)]
    kept = [flow(EXTERNAL, 53, POD_A), syn(EXTERNAL, 53, replied=True), syn(BALANCER, 53, POD_B)]
    table.entries = [*slipped, *kept]
    assert not driver.add({}, SITUATION)
    assert driver.add_everything()
    assert driver.run().deleted == 2
    assert table.entries == kept
    driver.add({NAME: PlanChange(plan(pod(POD_A)), None)}, SITUATION)
    driver.run()
    table.queries.clear()
    driver.add_everything()
    driver.run()
    assert {query.protocol for query in table.queries} == {6}, "what is gone is not checked again"


def test_a_handshake_that_was_answered_while_flows_were_listed_is_spared() -> None:
    table = FakeTable([syn(CLUSTER, 53)])
    driver = cleaner(table)
    driver.add({TCP_NAME: PlanChange(None, plan(pod(POD_A), name=TCP_NAME))}, SITUATION)

    def answered() -> None:
        table.entries = [syn(CLUSTER, 53, replied=True)]

    table.after_dump = answered
    assert driver.run().deleted == 0
    assert table.entries == [syn(CLUSTER, 53, replied=True)]


def test_after_a_restart_only_flows_without_a_serving_endpoint_go() -> None:
    other = ServicePortName("a", "quic", "", Protocol.UDP)
    kept = [flow(CLUSTER, 53, POD_B), flow(b"\x0a\x60\0\x0b", 443, POD_A)]
    table = FakeTable([flow(CLUSTER, 53, POD_A, source_port=1), *kept])
    driver = cleaner(table)
    unchanged = plan(pod(POD_A), name=other, addresses=(b"\x0a\x60\0\x0b",), node_port=0, port=443)
    driver.add({NAME: PlanChange(None, plan(pod(POD_B))), other: PlanChange(None, unchanged)}, SITUATION)
    assert driver.run().deleted == 1
    assert table.entries == kept


def test_a_failed_run_keeps_its_notes_and_the_next_one_knows_newer_changes() -> None:
    table = FakeTable([flow(CLUSTER, 53, POD_A), flow(CLUSTER, 53, POD_B, source_port=2)])
    table.failure = Rejected("no buffer space", errno.ENOBUFS)
    driver = cleaner(table)
    driver.add({NAME: PlanChange(plan(pod(POD_A)), plan())}, SITUATION)
    assert "no buffer space" in driver.run().problem
    assert driver.waiting == 1
    driver.add({NAME: PlanChange(plan(), plan(pod(POD_B)))}, SITUATION)
    table.failure = None
    assert driver.run().deleted == 1
    assert table.entries == [flow(CLUSTER, 53, POD_B, source_port=2)]


def test_frontends_lost_between_two_failed_runs_are_still_checked() -> None:
    table = FakeTable([flow(BALANCER, 53, POD_A)])
    table.failure = Rejected("busy")
    driver = cleaner(table)
    driver.add({NAME: PlanChange(None, plan(pod(POD_A)))}, SITUATION)
    driver.run()
    driver.add({NAME: PlanChange(plan(pod(POD_A)), None)}, SITUATION)
    table.failure = None
    assert driver.run().deleted == 1


def test_a_run_past_its_deadline_stops_and_keeps_its_notes() -> None:
    now = iter(range(0, 1000, 20))
    table = FakeTable([flow(CLUSTER, 53, POD_A)])
    driver = cleaner(table, deadline=timedelta(seconds=10), monotonic=lambda: float(next(now)))
    driver.add({NAME: PlanChange(plan(pod(POD_A)), plan())}, SITUATION)
    assert "too slow" in driver.run().problem
    assert driver.waiting == 1


def test_a_kernel_without_conntrack_netlink_is_reported_and_not_asked_again_for_the_same() -> None:
    table = FakeTable([])
    table.failure = NotSupported("list tracked flows: the kernel needs CONFIG_NF_CT_NETLINK")
    driver = cleaner(table)
    driver.add({NAME: PlanChange(plan(pod(POD_A)), plan())}, SITUATION)
    assert "CONFIG_NF_CT_NETLINK" in driver.run().problem
    assert driver.waiting == 0


def test_a_bug_met_in_a_run_is_reported_and_later_runs_work() -> None:
    table = FakeTable([flow(CLUSTER, 53, POD_A)])
    table.failure = ZeroDivisionError()
    driver = cleaner(table)
    driver.add({NAME: PlanChange(plan(pod(POD_A)), plan())}, SITUATION)
    assert "ZeroDivisionError" in driver.run().problem
    assert driver.waiting == 0
    table.failure = None
    driver.add({NAME: PlanChange(plan(pod(POD_A)), plan())}, SITUATION)
    assert driver.run().deleted == 1


def test_an_endpoint_that_came_back_while_flows_were_listed_keeps_them() -> None:
    table = FakeTable([flow(CLUSTER, 53, POD_A)])
    driver = cleaner(table)
    driver.add({NAME: PlanChange(plan(pod(POD_A), pod(POD_B)), plan(pod(POD_B)))}, SITUATION)
    back = PlanChange(plan(pod(POD_B)), plan(pod(POD_A), pod(POD_B)))
    table.after_dump = lambda: driver.add({NAME: back}, SITUATION)
    assert driver.run().deleted == 0
    assert driver.waiting == 1
    assert driver.run().deleted == 0
    assert driver.waiting == 0
