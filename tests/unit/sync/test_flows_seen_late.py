"""A packet that was on its way while rules changed is tracked a moment later, so flows are looked at twice."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tests.unit.sync.fake_table import FakeTable, cleaner
from tests.unit.sync.flow_making import (
    BALANCER,
    CLUSTER,
    CONTEXT,
    NAME,
    POD_A,
    POD_B,
    TCP_NAME,
    flow,
    plan,
    pod,
    syn,
)

from pointsman.model.balancing import BalancingRequest
from pointsman.model.service import Protocol, ServicePortName
from pointsman.sync.flow_cleaner import StaleFlowCleaner
from pointsman.sync.reconcile import PlanChange

PAUSE = 2.0


class Clock:
    """Stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def made(*entries: Any) -> tuple[FakeTable, StaleFlowCleaner, Clock]:
    table, clock = FakeTable(entries), Clock()
    return table, cleaner(table, second_check_delay=timedelta(seconds=PAUSE), monotonic=clock), clock


def test_a_flow_that_is_listed_only_later_goes_at_the_second_look() -> None:
    table, driver, clock = made()
    tcp = plan(pod(POD_A), name=TCP_NAME)
    driver.add({NAME: PlanChange(plan(), plan(pod(POD_A))), TCP_NAME: PlanChange(None, tcp)}, CONTEXT)
    assert driver.run().deleted == 0
    assert driver.waiting == 0
    assert driver.has_second_checks
    table.entries = [flow(CLUSTER, 53, None), syn(CLUSTER, 53), flow(CLUSTER, 53, POD_A, source_port=2)]
    clock.now += PAUSE
    assert driver.run().deleted == 2
    assert not driver.has_second_checks
    table.queries.clear()
    assert driver.run().seconds == 0
    assert table.queries == []


def test_a_look_that_comes_too_early_is_not_the_second_one() -> None:
    table, driver, clock = made()
    driver.add({NAME: PlanChange(plan(), plan(pod(POD_A)))}, CONTEXT)
    driver.run()
    clock.now += PAUSE / 2
    other = ServicePortName("a", "quic", "", Protocol.UDP)
    driver.add({other: PlanChange(None, plan(name=other, port=443, node_port=0))}, CONTEXT)
    driver.run()
    table.entries = [flow(CLUSTER, 53, None)]
    clock.now += PAUSE / 2
    assert driver.run().deleted == 1
    assert driver.has_second_checks, "that of the other"


def test_the_second_look_goes_by_the_plans_of_then() -> None:
    """Nobody translates a handshake any more where endpoints or the Service have gone."""
    for gone in (plan(name=TCP_NAME), None):
        table, driver, clock = made()
        driver.add({TCP_NAME: PlanChange(None, plan(pod(POD_A), name=TCP_NAME))}, CONTEXT)
        driver.run()
        driver.add({TCP_NAME: PlanChange(plan(pod(POD_A), name=TCP_NAME), gone)}, CONTEXT)
        table.entries = [syn(CLUSTER, 53)]
        clock.now += PAUSE
        driver.run()
        assert table.entries == [syn(CLUSTER, 53)]


def test_flows_of_the_one_who_got_an_address_meanwhile_are_spared() -> None:
    """Also when the former owner changes again, and so is looked at for longer."""
    table, driver, clock = made(flow(BALANCER, 53, POD_A))
    next_owner = ServicePortName("a", "next_owner", "", Protocol.UDP)
    first = plan(pod(POD_A))
    without = plan(pod(POD_A), addresses=(CLUSTER,))
    inherited = plan(pod(POD_A), name=next_owner, addresses=(b"\x0a\x60\0\x0c", BALANCER), node_port=0)
    driver.add({NAME: PlanChange(None, first)}, CONTEXT)
    driver.run()
    driver.add({NAME: PlanChange(first, without), next_owner: PlanChange(None, inherited)}, CONTEXT)
    driver.run()
    for _ in range(4):
        clock.now += PAUSE / 2
        after = plan(pod(POD_A), pod(POD_B), addresses=(CLUSTER,))
        driver.add({NAME: PlanChange(without, after)}, CONTEXT)
        without, after = after, without
        driver.run()
    assert table.entries == [flow(BALANCER, 53, POD_A)]


def test_connections_to_an_endpoint_that_came_back_meanwhile_are_not_reset() -> None:
    table, driver, clock = made()
    resetting: dict[str, Any] = {"name": TCP_NAME, "balancing": BalancingRequest(reset_gone=True)}
    before = plan(pod(POD_A), addresses=(CLUSTER,), **resetting)
    one, both = plan(pod(POD_B), **resetting), plan(pod(POD_A), pod(POD_B), **resetting)
    driver.add({TCP_NAME: PlanChange(before, one)}, CONTEXT)
    driver.run()
    driver.add({TCP_NAME: PlanChange(one, both)}, CONTEXT)
    table.entries = [syn(CLUSTER, 53, POD_A, replied=True)]
    clock.now += PAUSE
    driver.run()
    assert table.entries == [syn(CLUSTER, 53, POD_A, replied=True)]
