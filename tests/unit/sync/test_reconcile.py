import errno
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.factory import cidr, context, endpoint, endpoint_slice, service, service_port
from tests.fake.recording import RecordingBackend

from pointsman.errors import KernelError
from pointsman.model.addresses import Family
from pointsman.model.balancing import DEFAULT_BALANCING, BalancingRequest, Scheduler
from pointsman.model.endpoint import Endpoint
from pointsman.model.findings import Code, Finding
from pointsman.model.plan import ServicePlan
from pointsman.model.planning import plan_service_port
from pointsman.model.service import ServicePort
from pointsman.model.slots import MAX_EXTRA_ELEMENTS, assign_slots
from pointsman.model.tracker import Changes, PortState, Tracker
from pointsman.sync.reconcile import MAX_TRIGGER_TIMES, Reconciler, SyncFailed, Totals

WEB = service_port()
API = service_port("api", cluster_ip="10.96.0.11")


def changes(*ports: ServicePort) -> Changes:
    return Changes({port.name: PortState(port, (endpoint(),)) for port in ports})


@pytest.fixture
def backend() -> RecordingBackend:
    return RecordingBackend()


@pytest.fixture
def reconciler(backend: RecordingBackend) -> Reconciler:
    return Reconciler(backend)


def test_the_first_sync_is_full_and_later_ones_send_what_changed(
    reconciler: Reconciler, backend: RecordingBackend
) -> None:
    assert reconciler.sync(changes(WEB), context()).first
    outcome = reconciler.sync(changes(API), context())
    assert [(full, list(changed)) for full, changed in backend.requests] == [
        (True, [WEB.name]),
        (False, [API.name]),
    ]
    assert set(backend.programmed) == {WEB.name, API.name}
    assert not outcome.first
    assert [change.old for change in outcome.changes.values()] == [None]


def test_a_failed_sync_loses_nothing_and_the_next_is_full(
    reconciler: Reconciler, backend: RecordingBackend
) -> None:
    reconciler.sync(changes(WEB), context())
    backend.failures = [KernelError("no")]
    with pytest.raises(SyncFailed) as failed:
        reconciler.sync(
            Changes({API.name: PortState(API, ()), WEB.name: None}, {"default/api": (1.0,)}), context()
        )
    assert failed.value.unsynced == {API.name, WEB.name}
    outcome = reconciler.sync(Changes({}), context())
    assert outcome.report.full
    assert set(backend.programmed) == {API.name}
    assert outcome.trigger_times == {"default/api": [1.0]}
    assert outcome.changes[WEB.name].new is None
    assert outcome.changes[WEB.name].old is not None


def test_a_failure_says_what_the_kernel_said_and_whether_the_sync_was_a_full_one(
    reconciler: Reconciler, backend: RecordingBackend
) -> None:
    backend.failures = [KernelError("out of memory", errno.ENOMEM)]
    with pytest.raises(SyncFailed, match="out of memory") as full:
        reconciler.sync(changes(WEB), context())
    reconciler.sync(Changes({}), context())
    backend.failures = [KernelError("partial")]
    with pytest.raises(SyncFailed) as partial:
        reconciler.sync(changes(API), context())
    assert (full.value.full, partial.value.full) == (True, False)
    assert full.value.errno == errno.ENOMEM


def test_a_new_context_replans_everything(reconciler: Reconciler, backend: RecordingBackend) -> None:
    reconciler.sync(changes(WEB), context())
    outcome = reconciler.sync(Changes({}), context(masquerade_all=True))
    assert outcome.report.full
    assert outcome.changes == {}


def reasons(findings: Iterable[Finding]) -> list[tuple[str, str]]:
    return [(finding.object.name, finding.code.value) for finding in findings]


def test_a_contested_address_is_handed_over(reconciler: Reconciler, backend: RecordingBackend) -> None:
    old = service_port("old", cluster_ip="10.96.0.1", external_ips=("198.51.100.1",), created="2020")
    new = service_port("new", cluster_ip="10.96.0.2", external_ips=("198.51.100.1",), created="2021")
    assert reconciler.sync(changes(new), context()).findings == ()
    outcome = reconciler.sync(changes(old), context())
    assert backend.programmed[new.name].port.external_ips == ()
    assert reasons(outcome.findings) == [(str(new.name), "ContestedAddress")]
    reconciler.sync(Changes({old.name: None}), context())
    assert backend.programmed[new.name].port.external_ips == new.external_ips


def test_an_address_of_the_service_range_is_lent_until_a_service_has_it_as_its_cluster_ip(
    reconciler: Reconciler, backend: RecordingBackend
) -> None:
    there = context(service_cidrs=(cidr("10.96.0.0/12"),))
    borrower = service_port("borrower", cluster_ip="10.96.0.20", external_ips=("10.96.0.77",), created="2020")
    owner = service_port("owner", port=443, cluster_ip="10.96.0.77", created="2021")
    outcome = reconciler.sync(changes(borrower), there)
    assert backend.programmed[borrower.name].port.external_ips == borrower.external_ips
    assert reasons(outcome.findings) == [(str(borrower.name), "AddressInServiceRange")]
    assert reconciler.sync(changes(WEB), there).findings == ()
    outcome = reconciler.sync(changes(owner), there)
    assert backend.programmed[borrower.name].port.external_ips == ()
    assert reasons(outcome.findings) == [(str(borrower.name), "AddressIsClusterIP")]
    outcome = reconciler.sync(Changes({owner.name: None}), there)
    assert backend.programmed[borrower.name].port.external_ips == borrower.external_ips
    assert reasons(outcome.findings) == [(str(borrower.name), "AddressInServiceRange")]


def test_a_clash_of_cluster_ips_serves_the_older_one_and_is_told_once(
    reconciler: Reconciler, backend: RecordingBackend
) -> None:
    twin = service_port("twin", created="2030")
    outcome = reconciler.sync(changes(WEB, twin), context())
    assert set(backend.programmed) == {WEB.name}
    assert reasons(outcome.findings) == [(str(twin.name), "ContestedClusterIP")]
    assert reconciler.sync(Changes({}), context(masquerade_all=True)).findings == ()
    reconciler.sync(Changes({WEB.name: None}), context())
    assert set(backend.programmed) == {twin.name}
    assert reasons(reconciler.sync(changes(WEB), context()).findings) == [
        (str(twin.name), "ContestedClusterIP")
    ]


def test_an_object_that_cannot_be_planned_harms_only_itself(backend: RecordingBackend) -> None:
    def breaks_on_api(port: ServicePort, *rest: Any, **options: Any) -> ServicePlan | Finding:
        if port.name == API.name:
            raise ZeroDivisionError
        return plan_service_port(port, *rest, **options)

    outcome = Reconciler(backend, plan=breaks_on_api).sync(changes(WEB, API), context())
    assert set(backend.programmed) == {WEB.name}
    assert reasons(outcome.findings) == [(str(API.name), "InternalError")]


def test_what_the_kernel_refused_is_told_once_for_each_reason(
    reconciler: Reconciler, backend: RecordingBackend
) -> None:
    refused: list[str] = []
    for why, changed in (("EINVAL", WEB), ("EINVAL", API), ("ENOENT", API)):
        backend.refuse = {WEB.name: why}
        outcome = reconciler.sync(changes(changed), context())
        refused += [str(finding.parameters["reason"]) for finding in outcome.findings]
    assert refused == ["EINVAL", "ENOENT"]


def test_what_a_failed_sync_refused_is_told_with_the_failure_and_not_again(
    reconciler: Reconciler, backend: RecordingBackend
) -> None:
    twin = service_port("twin", created="2030")
    backend.failures = [KernelError("no")]
    with pytest.raises(SyncFailed) as failed:
        reconciler.sync(changes(WEB, twin), context())
    assert reasons(failed.value.findings) == [(str(twin.name), "ContestedClusterIP")]
    assert reconciler.sync(Changes({}), context()).findings == ()


def test_the_outcome_counts_what_is_planned(reconciler: Reconciler) -> None:
    lonely = service_port(internal_local=True, external_local=True, node_port=30080)
    assert reconciler.sync(changes(lonely), context()).totals == Totals(1, 1, 1, 1)
    here = PortState(lonely, (endpoint(local=True), endpoint("10.244.1.2")))
    assert reconciler.sync(Changes({lonely.name: here, API.name: PortState(API, ())}), context()).totals == (
        Totals(2, 2)
    )
    assert reconciler.sync(Changes({lonely.name: None, API.name: None}), context()).totals == Totals()


@pytest.mark.parametrize(("count_services", "counted"), [(False, 2), (True, 1)])
def test_ports_without_local_endpoints_are_counted_singly_or_by_service(
    backend: RecordingBackend, count_services: bool, counted: int
) -> None:
    ports = [
        service_port(port_name=name, port=port, internal_local=True) for name, port in (("a", 1), ("b", 2))
    ]
    reconciler = Reconciler(backend, count_services=count_services)
    assert reconciler.sync(changes(*ports), context()).totals.without_local_internal == counted
    gone = Changes({ports[0].name: None})
    assert reconciler.sync(gone, context()).totals.without_local_internal == 1
    gone = Changes({ports[1].name: None})
    assert reconciler.sync(gone, context()).totals.without_local_internal == 0


def test_a_snapshot_stays_as_it_was_taken(reconciler: Reconciler, backend: RecordingBackend) -> None:
    reconciler.sync(changes(WEB), context())
    backend.programmed.clear()
    taken = reconciler.snapshot()
    assert reconciler.snapshot().syncs == taken.syncs
    reconciler.sync(Changes({WEB.name: None}), context(), full=True)
    assert set(taken.plans) == {WEB.name}
    assert reconciler.snapshot().syncs != taken.syncs
    found = reconciler.prepare_comparison(taken, context()).differences()
    assert [difference.what for difference in found] == ["default/web:http"]


def test_a_successor_starts_from_the_states_it_is_given_and_removes_the_rest(
    reconciler: Reconciler, backend: RecordingBackend
) -> None:
    reconciler.sync(changes(WEB, API), context())
    successor = reconciler.build_successor()
    outcome = successor.sync(changes(WEB), context())
    assert set(backend.programmed) == {WEB.name}
    assert outcome.report.full
    assert not outcome.first
    assert {name: change.new for name, change in outcome.changes.items()} == {API.name: None}


def test_trigger_times_are_kept_in_order_while_syncs_fail_up_to_a_limit(
    reconciler: Reconciler, backend: RecordingBackend
) -> None:
    attempts = MAX_TRIGGER_TIMES + 10
    backend.failures = [KernelError("no")] * attempts
    for number in range(attempts):
        with pytest.raises(SyncFailed):
            reconciler.sync(Changes({}, {"default/web": (float(number),)}), context())
    outcome = reconciler.sync(Changes({}), context())
    assert outcome.trigger_times == {"default/web": [float(n) for n in range(MAX_TRIGGER_TIMES)]}


def test_a_service_port_whose_planning_failed_is_planned_again_by_the_next_sync(
    backend: RecordingBackend,
) -> None:
    failures = [RuntimeError("once")]

    def plan(*arguments: Any, **options: Any) -> ServicePlan | Finding:
        if failures:
            raise failures.pop()
        return plan_service_port(*arguments, **options)

    reconciler = Reconciler(backend, plan=plan)
    assert reconciler.sync(changes(WEB), context()).findings
    assert backend.programmed == {}
    reconciler.sync(Changes({}), context())
    assert set(backend.programmed) == {WEB.name}


def test_a_comparison_names_what_is_missing_among_what_it_is_about(
    reconciler: Reconciler, backend: RecordingBackend
) -> None:
    reconciler.sync(changes(WEB, API), context())
    taken = reconciler.snapshot()
    assert reconciler.prepare_comparison(taken, context()).differences() == []
    backend.programmed.clear()
    found = reconciler.prepare_comparison(taken, context(), [WEB.name]).differences()
    assert [difference.what for difference in found] == [str(WEB.name)]


class FailuresLoseNothing(RuleBasedStateMachine):
    """Any mix of events, failures and syncs: after a successful sync the kernel equals a fresh full one."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = Tracker(Family.IPV4, "n1")
        self.backend = RecordingBackend()
        self.reconciler = Reconciler(self.backend)
        self.clean = True

    @rule(
        name=st.sampled_from(["a", "b", "c"]),
        ip=st.sampled_from(["10.96.0.1", "10.96.0.2"]),
        external=st.lists(st.sampled_from(["198.51.100.1", "198.51.100.2"]), max_size=1),
        created=st.sampled_from(["2020", "2021"]),
    )
    def upsert(self, name: str, ip: str, external: list[str], created: str) -> None:
        made = service(name, clusterIP=ip, externalIPs=external, metadata={"creationTimestamp": created})
        self.tracker.upsert_service(made)
        self.clean = False

    @rule(name=st.sampled_from(["a", "b", "c"]))
    def delete(self, name: str) -> None:
        self.tracker.delete_service(f"default/{name}")
        self.clean = False

    @rule(
        name=st.sampled_from(["a", "b", "c"]),
        addresses=st.lists(st.sampled_from(["10.1.0.1", "10.1.0.2"]), max_size=2),
    )
    def endpoints(self, name: str, addresses: list[str]) -> None:
        self.tracker.upsert_slice(endpoint_slice(*addresses, name=name, service_name=name))
        self.clean = False

    @rule(fails=st.booleans(), masquerade=st.booleans())
    def sync(self, fails: bool, masquerade: bool) -> None:
        self.backend.failures = [KernelError("no")] if fails else []
        try:
            self.reconciler.sync(self.tracker.take(), context(masquerade_all=masquerade))
        except KernelError:
            return
        self.clean = True

    @invariant()
    def kernel_is_right(self) -> None:
        if not self.clean:
            return
        fresh = RecordingBackend()
        Reconciler(fresh).sync(Changes(dict(self.tracker.states)), context())
        assert self.backend.programmed == fresh.programmed


TestFailuresLoseNothing = FailuresLoseNothing.TestCase
TestFailuresLoseNothing.settings = settings(max_examples=80, stateful_step_count=25, deadline=None)


def test_large_hash_tables_of_all_services_are_limited_together_and_the_others_are_named(
    reconciler: Reconciler, backend: RecordingBackend
) -> None:
    request = BalancingRequest(Scheduler.SOURCE_HASH, "source-hash", hash_slots=65536)
    ports = [
        service_port(f"s{n:02}", cluster_ip=f"10.96.1.{n}", balancing=request, created=f"{n:02}")
        for n in range(1, 31)
    ]
    two = (endpoint("10.244.1.1"), endpoint("10.244.1.2"))
    states = {port.name: PortState(port, two) for port in ports}
    outcome = reconciler.sync(Changes(states), context())
    slots = sum(
        len(assign_slots(plan.endpoints.cluster, plan.balancing)) for plan in backend.programmed.values()
    )
    assert slots <= MAX_EXTRA_ELEMENTS + 30 * DEFAULT_BALANCING.hash_slots
    limited = [finding for finding in outcome.findings if finding.code is Code.HASH_BUDGET_EXCEEDED]
    assert len(limited) == 22
    gone: Changes = Changes(dict.fromkeys([port.name for port in ports[:22]]))
    outcome = reconciler.sync(gone, context())
    while outcome.waiting:
        outcome = reconciler.sync(Changes({}), context())
    assert all(not plan.findings for plan in backend.programmed.values())


LARGE = BalancingRequest(Scheduler.SOURCE_HASH, "source-hash", hash_slots=65536)
TWO = (endpoint("10.244.1.1"), endpoint("10.244.1.2"))


def hashed(number: int, network: str = "192.0.2") -> ServicePort:
    return service_port(
        f"hashed-{number}",
        cluster_ip=f"10.96.2.{number}",
        balancing=LARGE,
        external_ips=(f"{network}.{number}",),
    )


def some_hashed(network: str = "192.0.2", endpoints: tuple[Endpoint, ...] = TWO) -> Changes:
    ports = [hashed(number, network) for number in range(1, 7)]
    times = {port.name.key: (1.0,) for port in ports}
    return Changes({port.name: PortState(port, endpoints) for port in ports}, times)


def test_services_with_large_hash_tables_follow_the_others_a_few_per_sync(
    reconciler: Reconciler, backend: RecordingBackend
) -> None:
    reconciler.sync(changes(WEB), context())
    large = some_hashed()
    outcome = reconciler.sync(
        Changes({**large.states, **changes(API).states}, large.trigger_times), context()
    )
    assert API.name in backend.programmed
    assert 2 < len(backend.programmed) < 8
    assert outcome.waiting | backend.programmed.keys() == {WEB.name, API.name, *large.states}
    assert outcome.trigger_times.keys() == {name.key for name in large.states if name in backend.programmed}
    assert reconciler.snapshot().unsynced == outcome.waiting
    meanwhile = reconciler.sync(Changes({API.name: None}), context())
    assert (set(meanwhile.changes), meanwhile.waiting) == ({API.name}, outcome.waiting)
    syncs = 0
    while outcome.waiting:
        outcome = reconciler.sync(Changes({}), context())
        assert not outcome.report.full
        assert outcome.trigger_times.keys() == {name.key for name in outcome.changes}
        syncs += 1
    assert syncs > 1
    assert backend.programmed.keys() == {WEB.name, *large.states}


def test_no_change_waits_that_gives_up_an_address(reconciler: Reconciler) -> None:
    reconciler.sync(some_hashed(), context())
    assert reconciler.sync(some_hashed("198.51.100"), context()).waiting == frozenset()
    moved = some_hashed("198.51.100", (*TWO, endpoint("10.244.1.3")))
    assert reconciler.sync(moved, context()).waiting


def test_a_waiting_service_that_is_deleted_waits_no_longer(
    reconciler: Reconciler, backend: RecordingBackend
) -> None:
    reconciler.sync(changes(WEB), context())
    gone = max(reconciler.sync(some_hashed(), context()).waiting)
    assert gone not in reconciler.sync(Changes({gone: None}), context()).waiting
    assert gone not in backend.programmed


def test_the_first_sync_and_one_in_a_new_context_fill_all_hash_tables(
    reconciler: Reconciler, backend: RecordingBackend
) -> None:
    assert reconciler.sync(some_hashed(), context()).waiting == frozenset()
    assert len(backend.programmed) == 6
    more = some_hashed(endpoints=(*TWO, endpoint("10.244.1.3")))
    assert reconciler.sync(more, context(masquerade_all=True)).waiting == frozenset()
