from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.factory import endpoint_slice, service

from pointsman.model.addresses import Family, address_from_text, cidr_from_text, host_port_text
from pointsman.model.balancing import WEIGHTS_ANNOTATION
from pointsman.model.endpoint import Endpoint, EndpointState, shared_state
from pointsman.model.findings import Code, Finding
from pointsman.model.objects import TRIGGER_TIME_ANNOTATION, EndpointSlice, Service
from pointsman.model.service import Protocol, ServicePortName
from pointsman.model.slices import merge_endpoints
from pointsman.model.tracker import PortState, Tracker

WEB = ServicePortName("default", "web", "http", Protocol.TCP)


@pytest.fixture
def tracker() -> Tracker:
    return Tracker(Family.IPV4, "n1")


def test_a_service_with_endpoints_becomes_dirty_once(tracker: Tracker) -> None:
    assert tracker.upsert_service(service())
    assert tracker.upsert_slice(endpoint_slice("10.244.1.1"))
    assert len(tracker.pending_names) == 1
    (state,) = tracker.take().states.values()
    assert state is not None
    assert [str(e) for e in state.endpoints] == ["10.244.1.1:8080"]
    assert tracker.take().states == {}


def test_the_slice_may_come_first(tracker: Tracker) -> None:
    assert not tracker.upsert_slice(endpoint_slice("10.244.1.1"))
    assert tracker.upsert_service(service())
    state = tracker.take().states[WEB]
    assert state is not None
    assert len(state.endpoints) == 1


def test_an_update_without_effect_costs_nothing(tracker: Tracker) -> None:
    tracker.upsert_service(service())
    tracker.upsert_slice(endpoint_slice("10.244.1.1"))
    tracker.take()
    assert not tracker.upsert_service(service(metadata={"resourceVersion": "2", "annotations": {"a": "b"}}))
    assert not tracker.upsert_slice(endpoint_slice("10.244.1.1", metadata={"resourceVersion": "2"}))
    assert not tracker.pending_names
    assert tracker.take().states == {}


STAMPED = {"annotations": {TRIGGER_TIME_ANNOTATION: "2026-01-01T00:00:00Z"}}


def test_trigger_times_of_changes_that_are_none_here_count_as_in_kube_proxy(tracker: Tracker) -> None:
    tracker.upsert_service(service())
    tracker.upsert_slice(endpoint_slice("10.244.1.1"))
    tracker.take()
    assert tracker.upsert_slice(endpoint_slice("10.244.1.1", metadata=STAMPED))
    assert tracker.upsert_slice(
        endpoint_slice("10.244.1.1", name="api-a", service_name="api", metadata=STAMPED)
    )
    changes = tracker.take()
    assert changes.states == {}
    assert {key: len(times) for key, times in changes.trigger_times.items()} == {
        "default/web": 1,
        "default/api": 1,
    }


def test_trigger_times_of_merged_changes_count_each(tracker: Tracker) -> None:
    tracker.upsert_service(service())
    for address in ("10.244.1.1", "10.244.1.2", "10.244.1.1"):
        assert tracker.upsert_slice(endpoint_slice(address, metadata=STAMPED))
    assert len(tracker.take().trigger_times["default/web"]) == 3


def test_of_many_problems_of_one_object_some_are_told_and_the_rest_is_counted() -> None:
    """Whoever may annotate a Service, or write a slice, must not be able to keep every node busy with telling."""
    told: list[Finding] = []
    tracker = Tracker(Family.IPV4, "n1", on_finding=lambda _meta, finding: told.append(finding))
    bad = ",".join(f"a{number}" for number in range(8000))
    tracker.upsert_service(service(metadata={"annotations": {WEIGHTS_ANNOTATION: bad}}))
    assert len(told) == 21
    assert (told[-1].code, told[-1].parameters) == (Code.MORE_PROBLEMS, {"count": 981})
    told.clear()
    tracker.upsert_slice(endpoint_slice(*(f"bad-{number}" for number in range(1000))))
    assert (told[-1].code, told[-1].parameters) == (Code.MORE_PROBLEMS, {"count": 980})


def test_add_then_delete_before_a_sync_is_nothing(tracker: Tracker) -> None:
    tracker.upsert_service(service())
    tracker.delete_service("default/web")
    assert tracker.take().states == {}


def test_change_and_change_back_is_nothing(tracker: Tracker) -> None:
    tracker.upsert_service(service())
    tracker.upsert_slice(endpoint_slice("10.244.1.1"))
    tracker.take()
    tracker.upsert_slice(endpoint_slice("10.244.1.2"))
    tracker.upsert_slice(endpoint_slice("10.244.1.1"))
    assert tracker.take().states == {}


def test_a_deleted_service_is_handed_out_as_none_and_forgotten(tracker: Tracker) -> None:
    tracker.upsert_service(service())
    tracker.take()
    tracker.delete_service("default/web")
    assert tracker.take().states == {WEB: None}
    assert tracker.states == {}


def test_a_service_that_turns_headless_is_gone(tracker: Tracker) -> None:
    tracker.upsert_service(service())
    tracker.take()
    tracker.upsert_service(service(clusterIP="None"))
    assert tracker.take().states == {WEB: None}


def test_several_slices_are_merged_and_one_may_leave(tracker: Tracker) -> None:
    tracker.upsert_service(service())
    tracker.upsert_slice(endpoint_slice("10.244.1.1", name="a"))
    tracker.upsert_slice(endpoint_slice("10.244.1.2", "10.244.1.1", name="b"))
    assert [str(e) for e in tracker.states[WEB].endpoints] == ["10.244.1.1:8080", "10.244.1.2:8080"]
    tracker.delete_slice("default/b")
    assert [str(e) for e in tracker.states[WEB].endpoints] == ["10.244.1.1:8080"]


def test_slices_with_different_target_ports_are_merged(tracker: Tracker) -> None:
    tracker.upsert_service(service())
    tracker.upsert_slice(endpoint_slice("10.244.1.1", name="a"))
    other = [{"name": "http", "port": 9090, "protocol": "TCP"}]
    tracker.upsert_slice(endpoint_slice("10.244.1.1", name="b", ports=other))
    assert [str(e) for e in tracker.states[WEB].endpoints] == ["10.244.1.1:8080", "10.244.1.1:9090"]


def test_a_slice_that_moves_to_another_service_leaves_the_first(tracker: Tracker) -> None:
    tracker.upsert_service(service())
    tracker.upsert_service(service("api", clusterIP="10.96.0.11"))
    tracker.upsert_slice(endpoint_slice("10.244.1.1", name="a"))
    assert tracker.upsert_slice(endpoint_slice("10.244.1.1", name="a", service_name="api"))
    assert tracker.states[WEB].endpoints == ()
    assert len(tracker.states[ServicePortName("default", "api", "http", Protocol.TCP)].endpoints) == 1


@pytest.mark.parametrize(
    "foreign",
    [
        endpoint_slice("10.244.1.1", metadata={"labels": {}}),
        endpoint_slice("fd00::1", family="IPv6"),
    ],
)
def test_foreign_slices_are_ignored(tracker: Tracker, foreign: Any) -> None:
    tracker.upsert_service(service())
    assert not tracker.upsert_slice(foreign)
    assert tracker.states[WEB].endpoints == ()


def test_only_the_service_says_that_another_proxy_serves_it(tracker: Tracker) -> None:
    labels = {"kubernetes.io/service-name": "web", "service.kubernetes.io/service-proxy-name": "x"}
    tracker.upsert_service(service())
    assert tracker.upsert_slice(endpoint_slice("10.244.1.1", metadata={"labels": labels}))
    assert len(tracker.states[WEB].endpoints) == 1


def test_trigger_times_are_kept_for_changes_after_the_start() -> None:
    tracker = Tracker(Family.IPV4, "n1", started_at=1767225600.0)
    tracker.upsert_service(service())
    for number, text in enumerate(["2025-12-31T23:59:59Z", "2026-01-01T00:00:01.123456789Z", "yesterday"]):
        stamped = {"annotations": {TRIGGER_TIME_ANNOTATION: text}}
        tracker.upsert_slice(endpoint_slice(f"10.244.1.{number + 1}", metadata=stamped))
    times = tracker.take().trigger_times["default/web"]
    assert list(times) == pytest.approx([1767225601.123456])


def test_a_deleted_slice_takes_its_pending_trigger_times_along() -> None:
    tracker = Tracker(Family.IPV4, "n1", started_at=0.0)
    tracker.upsert_service(service())
    stamped = {"annotations": {TRIGGER_TIME_ANNOTATION: "2026-01-01T00:00:00Z"}}
    annotated = endpoint_slice("10.244.1.1", metadata=stamped)
    tracker.upsert_slice(annotated)
    tracker.delete_slice(annotated.metadata.key)
    assert tracker.take().trigger_times == {}


def test_problems_name_the_object() -> None:
    seen: list[tuple[str, str, str]] = []

    def note(_meta: Any, finding: Finding) -> None:
        seen.append((finding.object.kind, finding.object.key, finding.code.value))

    tracker = Tracker(Family.IPV4, "n1", on_finding=note)
    tracker.upsert_service(service(externalIPs=["x"]))
    tracker.upsert_slice(endpoint_slice("127.0.0.1"))
    assert seen == [
        ("Service", "default/web", "BadAddress"),
        ("EndpointSlice", "default/web-a", "ForbiddenEndpointAddress"),
    ]


def test_health_counts_ready_local_endpoints_only(tracker: Tracker) -> None:
    tracker.upsert_service(
        service(type="LoadBalancer", externalTrafficPolicy="Local", healthCheckNodePort=30999)
    )
    draining = {
        "addresses": ["10.244.1.2"],
        "nodeName": "n1",
        "conditions": {"ready": False, "terminating": True},
    }
    tracker.upsert_slice(
        endpoint_slice("10.244.1.1", draining, {"addresses": ["10.244.2.1"], "nodeName": "n2"})
    )
    assert [(port.service.health_check_node_port, count) for port, count in tracker.count_local_ready()] == [
        (30999, 1)
    ]


def test_health_counts_an_address_once_whatever_ports_lead_there(tracker: Tracker) -> None:
    names = ("http", "metrics")
    tracker.upsert_service(
        service(
            type="LoadBalancer",
            externalTrafficPolicy="Local",
            healthCheckNodePort=30999,
            ports=[{"name": name, "port": 80 + at, "protocol": "TCP"} for at, name in enumerate(names)],
        )
    )
    http = [{"name": "http", "port": number, "protocol": "TCP"} for number in (8080, 8081)]
    metrics = [{"name": "metrics", "port": 9090, "protocol": "TCP"}]
    tracker.upsert_slice(endpoint_slice("10.244.1.1", "10.244.1.2", name="web-a", ports=http))
    tracker.upsert_slice(endpoint_slice("10.244.1.2", "10.244.1.3", name="web-b", ports=metrics))
    assert [count for _, count in tracker.count_local_ready()] == [3]


@pytest.mark.parametrize(
    ("kind", "policy"), [("LoadBalancer", "Cluster"), ("NodePort", "Local"), ("ClusterIP", "Local")]
)
def test_only_balancers_with_policy_local_have_a_health_check_port(
    tracker: Tracker, kind: str, policy: str
) -> None:
    tracker.upsert_service(service(type=kind, externalTrafficPolicy=policy, healthCheckNodePort=30999))
    assert list(tracker.count_local_ready()) == []


def test_a_restarted_tracker_hands_out_everything(tracker: Tracker) -> None:
    tracker.upsert_service(service())
    tracker.upsert_slice(endpoint_slice("10.244.1.1"))
    before = dict(tracker.take().states)
    tracker.restart()
    assert tracker.take().states == before


def test_slices_of_one_service_are_merged_once_per_take(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rollout changes hundreds of slices of one Service, and each of them has all ports."""
    merges: list[int] = []

    def merge(lists: list[tuple[Endpoint, ...]], texts: dict[bytes, str]) -> tuple[Endpoint, ...]:
        merges.append(len(lists))
        return merge_endpoints(lists, texts)

    monkeypatch.setattr("pointsman.model.tracker.merge_endpoints", merge)
    names = [f"p{at}" for at in range(5)]
    tracker.upsert_service(service(ports=[{"name": n, "port": 80 + at} for at, n in enumerate(names)]))
    ports = [{"name": n, "port": 8080 + at, "protocol": "TCP"} for at, n in enumerate(names)]
    for at in range(40):
        assert tracker.upsert_slice(endpoint_slice(f"10.244.1.{at}", name=f"web-{at}", ports=ports))
    assert merges == []
    changes = tracker.take()
    assert merges == [40] * 5
    assert {len(state.endpoints) for state in changes.states.values() if state is not None} == {40}
    tracker.take()
    assert len(merges) == 5


PORTS = [f"p{at}" for at in range(5)]


def _service_with_ports(**fields: Any) -> Service:
    return service(ports=[{"name": name, "port": 80 + at} for at, name in enumerate(PORTS)], **fields)


def _slices_with_ports(count: int) -> list[EndpointSlice]:
    ports = [{"name": name, "port": 8080 + at, "protocol": "TCP"} for at, name in enumerate(PORTS)]
    return [endpoint_slice(f"10.244.1.{at}", name=f"web-{at}", ports=ports) for at in range(count)]


def test_addresses_are_formatted_and_states_built_once_for_all_ports(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    formatted: list[bytes] = []
    built: list[object] = []

    def count_text(address: bytes, port: int | str) -> str:
        formatted.append(address)
        return host_port_text(address, port)

    def count_state(*fields: Any) -> EndpointState:
        built.append(fields)
        return shared_state(*fields)

    monkeypatch.setattr("pointsman.model.slices.host_port_text", count_text)
    monkeypatch.setattr("pointsman.model.slices.shared_state", count_state)
    tracker.upsert_service(_service_with_ports())
    for made in _slices_with_ports(40):
        tracker.upsert_slice(made)
    tracker.take()
    assert len(formatted) == len(built) == 40


def test_a_step_merges_a_limited_number_of_endpoints(tracker: Tracker) -> None:
    """One Service may have any number of ports and endpoints, and the event loop must not wait for all of them."""
    tracker.upsert_service(_service_with_ports())
    for made in _slices_with_ports(40):
        tracker.upsert_slice(made)
    steps = 1
    while tracker.merge_step(40):
        steps += 1
    assert steps == len(PORTS)
    assert not tracker.merge_step(40)
    states = tracker.take().states
    assert {len(state.endpoints) for state in states.values() if state is not None} == {40}


def test_a_service_that_changes_between_two_steps_is_merged_again(tracker: Tracker) -> None:
    tracker.upsert_service(_service_with_ports())
    first, second = _slices_with_ports(2)
    tracker.upsert_slice(first)
    assert tracker.merge_step(1)
    tracker.upsert_slice(second)
    assert tracker.merge_step(1)
    tracker.upsert_service(service())
    tracker.merge_step()
    assert [(name.port, state and len(state.endpoints)) for name, state in tracker.take().states.items()] == [
        ("http", 0)
    ]


def test_an_error_in_the_middle_of_merging_loses_nothing(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker.upsert_service(_service_with_ports())
    for made in _slices_with_ports(2):
        tracker.upsert_slice(made)
    assert tracker.merge_step(1)
    with monkeypatch.context() as broken:
        broken.setattr("pointsman.model.tracker.merge_endpoints", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            tracker.merge_step(1)
    assert len(tracker.take().states) == len(PORTS)


def test_ranges_and_addresses_are_parsed_once_per_service_and_not_again_without_a_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A Service may have thousands of ports and thousands of ranges."""
    parsed: list[str] = []

    def counting(parse: Callable[[str], Any]) -> Callable[[str], Any]:
        def count(text: str) -> Any:
            parsed.append(text)
            return parse(text)

        return count

    for name, parse in (("cidr_from_text", cidr_from_text), ("address_from_text", address_from_text)):
        monkeypatch.setattr(f"pointsman.model.service_parsing.{name}", counting(parse))
    ranges = [f"10.{number}.0.0/16" for number in range(20)] + ["bad"]
    external, ingress = ["198.51.100.1", "worse"], ["203.0.113.1"]

    def made(external: list[str], **metadata: Any) -> Service:
        return service(
            ports=[{"name": f"p{number}", "port": number} for number in range(1, 31)],
            externalIPs=external,
            loadBalancerSourceRanges=ranges,
            status={"loadBalancer": {"ingress": [{"ip": ip} for ip in ingress]}},
            metadata=metadata,
        )

    findings: list[str] = []
    watching = Tracker(
        Family.IPV4, "n1", on_finding=lambda _meta, finding: findings.append(finding.code.value)
    )
    assert watching.upsert_service(made(external))
    assert sorted(parsed) == sorted([*ranges, *external, *ingress, "10.96.0.10"])
    assert sorted(findings) == ["BadAddress", "BadSourceRange"]
    first, *others = (state.port for state in watching.states.values())
    assert all(port.service is first.service for port in others)
    parsed.clear()
    assert not watching.upsert_service(made(external, labels={"a": "b"}))
    assert parsed == ["10.96.0.10"]
    assert sorted(findings[2:]) == ["BadAddress", "BadSourceRange"]
    assert watching.upsert_service(made([]))
    assert {state.port.external_ips for state in watching.states.values()} == {()}


_names = st.sampled_from(["web", "api"])
_slice_names = st.sampled_from(["a", "b", "c"])
_addresses = st.lists(st.sampled_from(["10.244.1.1", "10.244.1.2", "10.244.2.1"]), max_size=3)


class TrackerAgainstRebuild(RuleBasedStateMachine):
    """Whatever the order of events, the tracker equals one built from the final objects, and what it hands
    out, applied in turn, gives the same picture."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = Tracker(Family.IPV4, "n1")
        self.services: dict[str, Any] = {}
        self.slices: dict[str, Any] = {}
        self.mirror: dict[ServicePortName, PortState] = {}

    @rule(name=_names, port=st.sampled_from([80, 81]), headless=st.booleans())
    def upsert_service(self, name: str, port: int, headless: bool) -> None:
        ip = "None" if headless else {"web": "10.96.0.10", "api": "10.96.0.11"}[name]
        made = service(name, clusterIP=ip, ports=[{"name": "http", "port": port}])
        self.services[name] = made
        self.tracker.upsert_service(made)

    @rule(name=_names)
    def delete_service(self, name: str) -> None:
        self.services.pop(name, None)
        self.tracker.delete_service(f"default/{name}")

    @rule(name=_slice_names, owner=_names, addresses=_addresses)
    def upsert_slice(self, name: str, owner: str, addresses: list[str]) -> None:
        made = endpoint_slice(*addresses, name=name, service_name=owner)
        self.slices[name] = made
        self.tracker.upsert_slice(made)

    @rule(name=_slice_names)
    def delete_slice(self, name: str) -> None:
        self.slices.pop(name, None)
        self.tracker.delete_slice(f"default/{name}")

    @rule(limit=st.integers(1, 30))
    def merge_step(self, limit: int) -> None:
        self.tracker.merge_step(limit)

    @rule()
    def take(self) -> None:
        for name, state in self.tracker.take().states.items():
            if state is None:
                del self.mirror[name]
            else:
                assert self.mirror.get(name) != state
                self.mirror[name] = state
        assert self.mirror == self.tracker.states

    @invariant()
    def equals_rebuild(self) -> None:
        fresh = Tracker(Family.IPV4, "n1")
        for made in self.services.values():
            fresh.upsert_service(made)
        for made in self.slices.values():
            fresh.upsert_slice(made)
        assert fresh.states == self.tracker.states


TestTrackerAgainstRebuild = TrackerAgainstRebuild.TestCase
TestTrackerAgainstRebuild.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


class TrackerReadLate(TrackerAgainstRebuild):
    """The same where many events come before anything is read."""

    @rule()
    def equals_rebuild(self) -> None:
        super().equals_rebuild()


TestTrackerReadLate = TrackerReadLate.TestCase
TestTrackerReadLate.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
