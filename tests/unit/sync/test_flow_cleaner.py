"""How a run of the cleaner deals with time, failure and newer changes."""

from __future__ import annotations

import errno
from datetime import timedelta
from typing import Any

from tests.unit.sync.fake_table import FakeTable, cleaner
from tests.unit.sync.flow_making import (
    BALANCER,
    CLUSTER,
    CONTEXT,
    EXTERNAL,
    NAME,
    NODE_PORT,
    OWN_ADDRESSES,
    POD_A,
    POD_B,
    TCP_NAME,
    flow,
    plan,
    pod,
    syn,
)

from pointsman.errors import NotSupported, Rejected
from pointsman.model.balancing import BalancingRequest
from pointsman.model.service import Protocol, ServicePortName
from pointsman.obs.registry import Metrics
from pointsman.sync.reconcile import PlanChange


def test_a_run_deletes_what_is_stale_and_counts_it() -> None:
    metrics = Metrics("nftables")
    table = FakeTable([flow(CLUSTER, 53, POD_A), flow(CLUSTER, 53, POD_B, source_port=5000)])
    driver = cleaner(table, metrics)
    assert driver.add({NAME: PlanChange(plan(pod(POD_A), pod(POD_B)), plan(pod(POD_B)))}, CONTEXT)
    report = driver.run()
    assert (report.deleted, report.problem) == (1, "")
    assert table.entries == [flow(CLUSTER, 53, POD_B, source_port=5000)]
    assert driver.waiting == 0
    text = metrics.render().decode()
    assert 'kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family="IPv4"} 1.0' in text
    assert 'kubeproxy_conntrack_reconciler_sync_duration_seconds_count{ip_family="IPv4"} 1.0' in text


def test_changes_that_leave_nothing_stale_ask_the_kernel_nothing() -> None:
    table = FakeTable([flow(CLUSTER, 53, POD_A, protocol=6)])
    driver = cleaner(table)
    more = PlanChange(plan(pod(POD_A), name=TCP_NAME), plan(pod(POD_A), pod(POD_B), name=TCP_NAME))
    assert not driver.add({TCP_NAME: more}, CONTEXT)
    assert driver.run().deleted == 0
    assert table.queries == []


def test_every_service_port_can_be_checked_without_a_change() -> None:
    table = FakeTable([])
    driver = cleaner(table, second_check_delay=timedelta(0))
    tcp = plan(pod(POD_A), name=TCP_NAME)
    driver.add({NAME: PlanChange(None, plan(pod(POD_A))), TCP_NAME: PlanChange(None, tcp)}, CONTEXT)
    driver.run()
    slipped = [flow(CLUSTER, 53, None), syn(CLUSTER, 53)]
    kept = [flow(EXTERNAL, 53, POD_A), syn(EXTERNAL, 53, replied=True), syn(BALANCER, 53, POD_B)]
    table.entries = [*slipped, *kept]
    assert not driver.add({}, CONTEXT)
    assert driver.add_everything()
    assert driver.run().deleted == 2
    assert table.entries == kept
    driver.add({NAME: PlanChange(plan(pod(POD_A)), None)}, CONTEXT)
    driver.run()
    driver.run()
    table.queries.clear()
    driver.add_everything()
    driver.run()
    assert {query.protocol for query in table.queries} == {6}, "what is gone is not checked again"


def test_a_handshake_that_was_answered_while_flows_were_listed_is_spared() -> None:
    table = FakeTable([syn(CLUSTER, 53)])
    driver = cleaner(table)
    driver.add({TCP_NAME: PlanChange(None, plan(pod(POD_A), name=TCP_NAME))}, CONTEXT)

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


def test_a_run_past_its_deadline_deletes_nothing_and_keeps_its_checks() -> None:
    now = iter(range(0, 1000, 20))
    table = FakeTable([flow(CLUSTER, 53, POD_A)])
    driver = cleaner(table, timeout=timedelta(seconds=10), monotonic=lambda: float(next(now)))
    alone: dict[str, Any] = {"addresses": (CLUSTER,), "node_port": 0}
    driver.add({NAME: PlanChange(plan(pod(POD_A), **alone), plan(**alone))}, CONTEXT)
    report = driver.run()
    assert (report.deleted, report.problem, report.unfinished) == (0, "too slow", True)
    assert driver.waiting == 1


def test_a_run_ends_soon_when_the_process_does() -> None:
    table = FakeTable([flow(CLUSTER, 53, POD_A)])
    driver = cleaner(table, is_stopping=lambda: True)
    driver.add({NAME: PlanChange(plan(pod(POD_A)), plan())}, CONTEXT)
    assert driver.run().deleted == 0
    assert len(table.queries) == 1


def test_a_kernel_that_ignores_filters_walks_over_its_flows_once_per_protocol() -> None:
    moved = [
        PlanChange(plan(pod(POD_A), port=port, node_port=0), plan(port=port, node_port=0))
        for port in range(53, 60)
    ]
    changes = {
        ServicePortName("a", f"dns{number}", "", Protocol.UDP): change for number, change in enumerate(moved)
    }
    flows = [flow(CLUSTER, port, POD_A) for port in range(53, 60)]
    for selects, looks in ((True, 7), (False, 2)):
        table = FakeTable(flows, selects=selects)
        driver = cleaner(table)
        driver.add(changes, CONTEXT)
        assert driver.run().deleted == len(flows)
        assert len(table.queries) == looks


def test_flows_that_cannot_be_deleted_are_told_of_and_not_tried_for_ever() -> None:
    kept, other = flow(CLUSTER, 53, POD_A), flow(CLUSTER, 53, POD_A, source_port=2)
    table = FakeTable([kept, other])
    table.undeletable = (kept,)
    driver = cleaner(table, second_check_delay=timedelta(0))
    driver.add({NAME: PlanChange(plan(pod(POD_A)), plan())}, CONTEXT)
    report = driver.run()
    assert (report.deleted, report.problem) == (1, "Device or resource busy")
    assert table.entries == [kept]
    assert driver.waiting == 0
    assert driver.run().problem
    assert not driver.has_second_checks


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


def test_connections_to_an_endpoint_that_came_back_after_a_failed_run_are_not_reset() -> None:
    table = FakeTable([syn(CLUSTER, 53, POD_A, replied=True)])
    driver = cleaner(table)
    resetting: dict[str, Any] = {"name": TCP_NAME, "balancing": BalancingRequest(reset_gone=True)}
    both, one = plan(pod(POD_A), pod(POD_B), **resetting), plan(pod(POD_B), **resetting)
    driver.add({TCP_NAME: PlanChange(None, both)}, CONTEXT)
    driver.run()
    table.failure = Rejected("busy")
    driver.add({TCP_NAME: PlanChange(both, one)}, CONTEXT)
    assert driver.run().problem
    table.failure = None
    driver.add({TCP_NAME: PlanChange(one, both)}, CONTEXT)
    driver.run()
    assert table.entries == [syn(CLUSTER, 53, POD_A, replied=True)]


def test_node_ports_are_checked_when_the_node_gains_an_address() -> None:
    """A floating address: a pod here spoke to it while it was elsewhere, and its flow knows no translation."""
    floating = b"\xc0\0\x02\x09"
    table = FakeTable([flow(floating, NODE_PORT, None), flow(CLUSTER, 54, None)])
    driver = cleaner(table)
    inner = ServicePortName("a", "inner", "", Protocol.UDP)
    plans = {NAME: plan(pod(POD_A)), inner: plan(pod(POD_A), name=inner, node_port=0, port=54)}
    driver.add({name: PlanChange(made, made) for name, made in plans.items()}, CONTEXT)
    driver.run()
    table.entries.append(flow(CLUSTER, 54, None, source_port=2))
    here = (*OWN_ADDRESSES, floating)
    assert driver.set_addresses(here)
    assert driver.waiting == 1
    driver.run()
    assert flow(floating, NODE_PORT, None) not in table.entries
    assert not driver.set_addresses(here)
    link_local = (*here, b"\xa9\xfe\0\1")
    assert not driver.set_addresses(link_local), "every new pod may bring one"
    assert not driver.set_addresses(OWN_ADDRESSES), "what left is nothing to look for"
