"""The history: what becomes an event, what is merged, and that its size stays bounded whatever happens."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from tests import factory

from pointsman.backends.contract import PRESENT, Difference, SyncReport
from pointsman.conditions import Condition
from pointsman.model.addresses import Family
from pointsman.model.endpoint import Endpoint
from pointsman.model.history import EventKind, HistoryEvent
from pointsman.model.plan import ServicePlan
from pointsman.model.service import ServicePort
from pointsman.node.history import MAX_PER_SERVICE, MAX_SERVICES_PER_WINDOW, MERGE_SECONDS, History
from pointsman.node.service_changes import compare_service, find_states
from pointsman.sync.reconcile import PlanChange, SyncFailed, SyncOutcome, Totals
from pointsman.wording.history import describe_event

ONE, TWO, THREE = (factory.endpoint(f"10.244.1.{n}", pod=f"web-{n}") for n in (1, 2, 3))
WEB = factory.service_port("web")


def changed(
    old: Sequence[Endpoint] | None,
    new: Sequence[Endpoint] | None,
    port: ServicePort = WEB,
    new_port: ServicePort | None = None,
) -> PlanChange:
    """A change of the plan of one service port; None where it does not exist."""
    return PlanChange(
        None if old is None else factory.plan(port, *old),
        None if new is None else factory.plan(new_port or port, *new),
    )


def outcome(*changes: PlanChange, first: bool = False, **fields: object) -> SyncOutcome:
    plans = [one.new or one.old for one in changes]
    made: dict[str, object] = {
        "report": SyncReport(full=False),
        "changes": {
            plan.name: change for plan, change in zip(plans, changes, strict=True) if plan is not None
        },
        "trigger_times": {},
        "context": factory.context(),
        "seconds": 0.25,
        "first": first,
        "totals": Totals(3, 12),
    }
    return SyncOutcome(**{**made, **fields})  # type: ignore[arg-type]


class Recorded:
    """A history with a clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.history = History(lambda: self.now, call_soon=lambda call: call())

    def sync(self, *changes: PlanChange) -> None:
        self.history.on_synced(outcome(*changes))

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self.history.list_events()]

    @property
    def lines(self) -> list[str]:
        return [
            f"{event.service} {event.kind} {describe_event(event).message}".strip()
            for event in self.history.list_events()
        ]


def test_endpoints_that_come_go_and_change_readiness_are_one_event_with_their_names() -> None:
    recorded = Recorded()
    not_ready = factory.endpoint("10.244.1.2", pod="web-2", ready=False)
    leaving = factory.endpoint("10.244.1.4", terminating=True, ready=False)
    recorded.sync(
        changed(
            [ONE, TWO, factory.endpoint("10.244.1.4")], [factory.endpoint("10.244.1.9"), not_ready, leaving]
        )
    )
    assert recorded.lines == [
        (
            "default/web EndpointsChanged 1 added (10.244.1.9); 1 removed (10.244.1.1 web-1); "
            "1 became not ready (10.244.1.2 web-2); 1 began to terminate (10.244.1.4); usable 3 -> 1"
        )
    ]


def test_a_service_that_breaks_and_recovers_is_told_with_the_cause_at_its_own_time() -> None:
    recorded = Recorded()
    recorded.sync(changed([ONE, TWO], [ONE]))
    recorded.now += 1
    recorded.sync(changed([ONE], []))
    recorded.now += 1
    recorded.sync(changed([], [ONE]))
    recorded.now += 1
    recorded.sync(changed([ONE], [ONE, TWO]))
    assert recorded.kinds == ["EndpointsChanged", "ServiceDown", "ServiceHealthy", "EndpointsChanged"]
    assert [event.at for event in recorded.history.list_events()] == [1000, 1001, 1002, 1003]
    assert recorded.lines[1] == (
        "default/web ServiceDown no usable endpoint: 1 removed (10.244.1.1 web-1); usable 1 -> 0"
    )


def test_a_service_with_policy_local_that_loses_its_last_local_endpoint_is_partial() -> None:
    recorded = Recorded()
    edge = factory.service_port("edge", load_balancer_ips=("203.0.113.1",), external_local=True)
    here, there = (
        factory.endpoint("10.244.1.1", node="n1", local=True),
        factory.endpoint("10.244.2.1", node="n2"),
    )
    recorded.sync(changed([here, there], [there], edge))
    assert recorded.kinds == ["ServicePartial"]


def test_ports_and_settings_are_named() -> None:
    recorded = Recorded()
    https = factory.service_port("web", port_name="https")
    moved = factory.service_port("web", node_port=30080, external_local=True)
    here = factory.endpoint(local=True)
    recorded.sync(changed(None, [here], https), changed([here], [here], WEB, moved))
    recorded.sync(changed([here], None, https))
    assert recorded.lines == [
        "default/web PortsAdded ports added: https/TCP; 1 usable endpoints",
        "default/web ServiceChanged changed: externalTrafficPolicy, nodePort",
        "default/web PortsRemoved ports removed: https/TCP",
    ]


@pytest.mark.parametrize("change", [changed([ONE], [ONE.with_share(50)]), PlanChange(None, None)])
def test_adjusted_shares_are_no_event(change: PlanChange) -> None:
    assert list(compare_service([change])) == []


def test_ports_of_one_service_count_an_address_once() -> None:
    recorded = Recorded()
    https = factory.service_port("web", port_name="https")
    recorded.sync(changed([], [ONE]), changed([], [ONE], https))
    assert recorded.lines == [
        "default/web ServiceHealthy every frontend has a usable endpoint: 1 added (10.244.1.1 web-1); usable 0 -> 1"
    ]


def test_a_rollout_leaves_few_events_and_flushes_nothing_else() -> None:
    recorded = Recorded()
    recorded.history.on_sync_failed(Family.IPV4, SyncFailed("no memory", full=True), 1.0)
    recorded.sync(changed([ONE], [ONE, TWO], factory.service_port("other")))
    size = 500
    old, new = (
        [factory.endpoint(f"10.{net}.{n // 250}.{n % 250 + 1}") for n in range(size)] for net in (244, 245)
    )
    for step in range(0, size, 10):
        recorded.now += 1
        recorded.sync(changed([*new[:step], *old[step:]], [*new[: step + 10], *old[step + 10 :]]))
    events = [event for event in recorded.history.list_events() if event.service == "default/web"]
    assert len(events) == size / 10 / MERGE_SECONDS
    assert sum(int(str(event.parameters["added"])) for event in events) == size
    assert describe_event(events[0]).message.endswith("usable 500 -> 500")
    assert recorded.kinds[:3] == ["SyncFailed", "SyncRecovered", "EndpointsChanged"]


def test_one_flapping_service_does_not_flush_the_others() -> None:
    recorded = Recorded()
    recorded.sync(changed([ONE], [], factory.service_port("other")))
    for _ in range(10 * MAX_PER_SERVICE):
        recorded.now += MERGE_SECONDS
        recorded.sync(changed([ONE], []))
        recorded.sync(changed([], [ONE]))
    services = [event.service for event in recorded.history.list_events()]
    assert services[0] == "default/other"
    assert services.count("default/web") == MAX_PER_SERVICE


def test_of_many_services_that_change_at_once_the_rest_are_counted() -> None:
    recorded = Recorded()
    number = 4 * MAX_SERVICES_PER_WINDOW
    ports = [factory.service_port(f"s{n:03}", cluster_ip=f"10.96.1.{n + 1}") for n in range(number)]
    recorded.sync(*(changed([ONE], [ONE, TWO] if n % 4 else [], port) for n, port in enumerate(ports)))
    assert recorded.kinds.count("ServiceDown") == number / 4
    assert recorded.kinds.count("EndpointsChanged") == MAX_SERVICES_PER_WINDOW
    (rest,) = [event for event in recorded.history.list_events() if event.kind is EventKind.MANY_SERVICES]
    assert rest.parameters["changes"] == number * 3 / 4 - MAX_SERVICES_PER_WINDOW
    assert "100 more changes of Services, of default/s067, default/s069" in describe_event(rest).message


def test_churn_of_every_service_keeps_the_history_within_its_bound() -> None:
    recorded = Recorded()
    recorded.history.on_drift(Family.IPV4, Difference("table kube-proxy", PRESENT), 0.0)
    ports = [factory.service_port(f"s{n}", cluster_ip=f"10.96.1.{n + 1}") for n in range(120)]
    rounds = [
        [changed([ONE], [[TWO], []][(second + n) % 2], port) for n, port in enumerate(ports)]
        for second in range(2)
    ]
    for number in range(30):
        recorded.now += MERGE_SECONDS
        recorded.sync(*rounds[number % 2])
    events = recorded.history.list_events()
    assert len(events) <= 1000
    assert events[0].kind is EventKind.RULES_RESTORED
    assert len(msgspec.json.encode([describe_event(event) for event in events])) < 500 * len(events)


def test_failures_and_repairs_are_told_once_with_their_number() -> None:
    recorded = Recorded()
    for _ in range(3):
        recorded.history.on_sync_failed(Family.IPV4, SyncFailed("no memory", full=True), 1.0)
        recorded.now += 60
    recorded.history.on_synced(outcome())
    recorded.history.on_drift(Family.IPV6, Difference("chain x", PRESENT), 0.0)
    assert recorded.lines == [
        "SyncFailed no memory (3 times)",
        "SyncRecovered after 3 failed syncs",
        "RulesRestored modified externally: chain x: deleted",
    ]
    assert [event.family for event in recorded.history.list_events()] == ["IPv4", "IPv4", "IPv6"]


def test_the_first_sync_is_one_event_whatever_it_wrote() -> None:
    recorded = Recorded()
    recorded.history.on_synced(outcome(changed(None, [ONE]), first=True))
    assert recorded.lines == ["FirstSync 3 service ports, 12 endpoints, in 250 ms"]


def test_transitions_of_conditions_are_told_unless_their_cause_was() -> None:
    recorded = Recorded()
    raised = Condition.false("OOMScore", "NotPermitted", "cannot set it", "use a priority class")
    recorded.history.on_condition(raised, raised.reason)
    recorded.history.on_condition(Condition.false("SyncIPv4", "SyncFailed", "no"), "SyncFailed")
    recorded.history.on_condition(Condition.true("OOMScore"), "NotPermitted")
    assert recorded.lines == [
        "ConditionRaised OOMScore: cannot set it: use a priority class",
        "ConditionCleared OOMScore: NotPermitted has ended",
    ]


def test_a_reader_gets_what_is_new_or_has_grown_since_a_revision() -> None:
    recorded = Recorded()
    recorded.sync(changed([ONE], [ONE, TWO]))
    recorded.sync(changed([ONE], [ONE, TWO], factory.service_port("other")))
    seen = recorded.history.revision
    recorded.now += 1
    recorded.sync(changed([ONE, TWO], [ONE, TWO, THREE]))
    new: list[HistoryEvent] = [one for one in recorded.history.list_events() if one.revision > seen]
    assert [(one.service, one.count, one.parameters["added"]) for one in new] == [("default/web", 2, 2)]
    assert History(lambda: recorded.now + 1).revision > recorded.history.revision


def test_states_are_the_worst_of_the_ports_that_stay() -> None:
    def plan(*endpoints: Endpoint) -> ServicePlan:
        return factory.plan(WEB, *endpoints)

    states = find_states(
        [PlanChange(plan(ONE), plan(ONE)), PlanChange(plan(ONE), plan()), PlanChange(None, plan())]
    )
    assert states is not None
    assert [state.value for state in states] == ["healthy", "down"]
    assert find_states([PlanChange(None, plan())]) is None
