from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.factory import context, endpoint, endpoint_slice, service, service_port

from pointsman.errors import KernelError
from pointsman.model.addresses import Family
from pointsman.model.plan import ServicePlan
from pointsman.model.planning import plan_service_port
from pointsman.model.problem import Problem
from pointsman.model.service import ServicePort, ServicePortName
from pointsman.model.tracker import Changes, PortState, Tracker
from pointsman.sync import reconcile
from pointsman.sync.reconcile import Reconciler
from pointsman.testing.recording import RecordingBackend

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
    with pytest.raises(KernelError):
        reconciler.sync(
            Changes({API.name: PortState(API, ()), WEB.name: None}, {"default/api": (1.0,)}), context()
        )
    assert reconciler.unsynced == 2
    outcome = reconciler.sync(Changes({}), context())
    assert outcome.report.full
    assert set(backend.programmed) == {API.name}
    assert outcome.trigger_times == {"default/api": (1.0,)}
    assert outcome.changes[WEB.name].new is None
    assert outcome.changes[WEB.name].old is not None


def test_an_error_says_whether_a_partial_sync_failed(
    reconciler: Reconciler, backend: RecordingBackend
) -> None:
    backend.failures = [KernelError("full")]
    with pytest.raises(KernelError) as full:
        reconciler.sync(changes(WEB), context())
    reconciler.sync(Changes({}), context())
    backend.failures = [KernelError("partial")]
    with pytest.raises(KernelError) as partial:
        reconciler.sync(changes(API), context())
    assert (full.value.partial, partial.value.partial) == (False, True)


def test_a_new_context_replans_everything(reconciler: Reconciler, backend: RecordingBackend) -> None:
    reconciler.sync(changes(WEB), context())
    outcome = reconciler.sync(Changes({}), context(masquerade_all=True))
    assert outcome.report.full
    assert outcome.changes == {}


def test_a_contested_address_is_handed_over(backend: RecordingBackend) -> None:
    refused: list[tuple[ServicePortName, Problem]] = []
    reconciler = Reconciler(backend, on_refused=lambda name, problem: refused.append((name, problem)))
    old = service_port("old", cluster_ip="10.96.0.1", external_ips=("198.51.100.1",), created="2020")
    new = service_port("new", cluster_ip="10.96.0.2", external_ips=("198.51.100.1",), created="2021")
    reconciler.sync(changes(new), context())
    reconciler.sync(changes(old), context())
    assert backend.programmed[new.name].port.external_ips == ()
    assert [(name, problem.reason) for name, problem in refused] == [(new.name, "ContestedAddress")]
    reconciler.sync(Changes({old.name: None}), context())
    assert backend.programmed[new.name].port.external_ips == new.external_ips


def test_a_clash_of_cluster_ips_serves_the_older_one(backend: RecordingBackend) -> None:
    refused: list[str] = []
    reconciler = Reconciler(backend, on_refused=lambda name, problem: refused.append(problem.reason))
    twin = service_port("twin", created="2030")
    reconciler.sync(changes(WEB, twin), context())
    assert set(backend.programmed) == {WEB.name}
    assert refused == ["ContestedClusterIP"]


def test_an_object_that_cannot_be_planned_harms_only_itself(
    backend: RecordingBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []
    real = plan_service_port

    def breaks_on_api(port: ServicePort, *rest: Any) -> ServicePlan | None:
        if port.name == API.name:
            raise ZeroDivisionError
        return real(port, *rest)

    monkeypatch.setattr(reconcile, "plan_service_port", breaks_on_api)
    reconciler = Reconciler(backend, on_refused=lambda name, problem: refused.append(problem.reason))
    reconciler.sync(changes(WEB, API), context())
    assert set(backend.programmed) == {WEB.name}
    assert refused == ["InternalError"]


def test_what_the_kernel_refused_is_reported(backend: RecordingBackend) -> None:
    refused: list[str] = []
    backend.refuse = {WEB.name: "EINVAL"}
    Reconciler(backend, on_refused=lambda name, problem: refused.append(problem.message)).sync(
        changes(WEB), context()
    )
    assert refused == ["EINVAL"]


def test_a_refusal_that_lasts_is_reported_once(backend: RecordingBackend) -> None:
    refused: list[str] = []
    backend.refuse = {WEB.name: "EINVAL"}
    reconciler = Reconciler(backend, on_refused=lambda name, problem: refused.append(problem.message))
    reconciler.sync(changes(WEB), context())
    reconciler.sync(changes(API), context())
    assert refused == ["EINVAL"]
    backend.refuse = {WEB.name: "ENOENT"}
    reconciler.sync(changes(), context())
    assert refused == ["EINVAL", "ENOENT"]


def test_missing_local_endpoints_are_counted(reconciler: Reconciler) -> None:
    lonely = service_port(internal_local=True, external_local=True, node_port=30080)
    reconciler.sync(changes(lonely), context())
    assert reconciler.without_local_internal == reconciler.without_local_external == {lonely.name}
    here = PortState(lonely, (endpoint(local=True),))
    reconciler.sync(Changes({lonely.name: here}), context())
    assert reconciler.without_local_internal == set()
    assert reconciler.endpoint_count == 1
    reconciler.sync(Changes({lonely.name: None}), context())
    assert reconciler.endpoint_count == 0


def test_a_complete_picture_removes_what_is_not_in_it(
    reconciler: Reconciler, backend: RecordingBackend
) -> None:
    reconciler.sync(changes(WEB, API), context())
    reconciler.sync(Changes({WEB.name: PortState(WEB, ())}, complete=True), context())
    assert set(backend.programmed) == {WEB.name}


def test_verify_names_what_is_missing(reconciler: Reconciler, backend: RecordingBackend) -> None:
    reconciler.sync(changes(WEB), context())
    assert reconciler.verify(context()) == []
    backend.programmed.clear()
    assert [difference.what for difference in reconciler.verify(context())] == ["default/web:http"]


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
        self.tracker.service_upserted(made)
        self.clean = False

    @rule(name=st.sampled_from(["a", "b", "c"]))
    def delete(self, name: str) -> None:
        self.tracker.service_deleted(f"default/{name}")
        self.clean = False

    @rule(
        name=st.sampled_from(["a", "b", "c"]),
        addresses=st.lists(st.sampled_from(["10.1.0.1", "10.1.0.2"]), max_size=2),
    )
    def endpoints(self, name: str, addresses: list[str]) -> None:
        self.tracker.slice_upserted(endpoint_slice(*addresses, name=name, service_name=name))
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
