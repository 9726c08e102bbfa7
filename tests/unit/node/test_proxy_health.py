"""The state behind /healthz and /livez, in virtual time."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from tests import factory

from pointsman.backends.contract import SyncReport
from pointsman.conditions import ConditionBoard
from pointsman.model.addresses import Family
from pointsman.model.objects import AUTOSCALER_TAINT, Meta, Node, NodeSpec, Taint
from pointsman.node.health import ProxyHealth, find_ineligibility
from pointsman.node.start import StartGate
from pointsman.serve.health import HealthView, format_rfc3339_nano
from pointsman.serve.messages import Response
from pointsman.sync.reconcile import SyncOutcome

SECOND = 1_000_000_000
NODE = Node(metadata=Meta(name="n"))


class Time:
    def __init__(self) -> None:
        self.wall = 1_700_000_000 * SECOND
        self.ticks = 5 * SECOND

    def step(self, seconds: float) -> None:
        self.wall += int(seconds * SECOND)
        self.ticks += int(seconds * SECOND)


@pytest.fixture
def clock() -> Time:
    return Time()


class Gate(StartGate):
    """Waits for what a test says."""

    missing = ""

    def __init__(self) -> None:
        super().__init__("n", needs_node=True)

    @property
    def waiting_for(self) -> str:
        return self.missing


class Health:
    """The health of a proxy, on a board, as probes see it."""

    def __init__(self, clock: Time) -> None:
        self.gate = Gate()
        self.state = ProxyHealth(30, self.gate, wall=lambda: clock.wall, monotonic=lambda: clock.ticks)
        self.state.node = NODE
        board = ConditionBoard()
        board.add_source("health", self.state.conditions)
        view = HealthView(board, self.state.last_updated, wall=lambda: clock.wall)
        self.healthz, self.livez, self.readyz = view.healthz, view.livez, view.readyz

    def sync(self, family: Family) -> None:
        outcome = SyncOutcome(SyncReport(full=True), {}, {}, factory.context(family), 0.1, first=True)
        self.state.on_synced(outcome)


@pytest.fixture
def health(clock: Time) -> Health:
    return Health(clock)


def body(answer: Response) -> dict[str, object]:
    found: dict[str, object] = json.loads(answer.body)
    return found


def test_a_starting_proxy_is_healthy_and_names_no_family(health: Health, clock: Time) -> None:
    clock.step(1000)
    health.state.on_queued(Family.IPV4)
    clock.step(59)
    answer = health.healthz()
    assert answer.status == 200
    assert list(body(answer)) == ["lastUpdated", "currentTime", "nodeEligible", "healthy"]


def test_a_family_whose_first_sync_never_succeeds_turns_unhealthy_on_both_probes(
    health: Health, clock: Time
) -> None:
    health.sync(Family.IPV4)
    health.state.on_queued(Family.IPV6)
    clock.step(60)
    for answer in (health.livez(), health.healthz()):
        assert answer.status == 503
        assert body(answer)["status"] == {
            "IPv4": {"lastUpdated": "2023-11-14T22:13:20Z", "healthy": True},
            "IPv6": {
                "lastUpdated": "0001-01-01T00:00:00Z",
                "healthy": False,
                "reason": "no sync has succeeded for 60 s",
            },
        }
    health.sync(Family.IPV6)
    assert health.livez().status == health.healthz().status == 200


def test_a_worker_that_does_not_come_back_turns_both_probes(health: Health, clock: Time) -> None:
    health.sync(Family.IPV4)
    health.state.on_worker_busy(Family.IPV4)
    clock.step(59)
    assert health.livez().status == 200
    clock.step(1)
    assert health.livez().status == health.healthz().status == 503
    assert b"the worker thread has not come back for 60 s" in health.livez().body
    health.state.on_worker_idle(Family.IPV4)
    assert health.livez().status == 200


def test_objects_that_never_arrive_turn_healthz_and_not_livez(clock: Time) -> None:
    health = Health(clock)
    health.gate.missing = "the first list of Service"
    clock.step(59)
    assert health.healthz().status == 200
    clock.step(1)
    assert health.healthz().status == 503
    assert body(health.healthz())["waitingFor"] == "the first list of Service"
    assert body(health.healthz())["healthy"] is False
    assert health.livez().status == 200
    assert body(health.livez())["healthy"] is True
    health.gate.missing = ""
    assert health.healthz().status == 200


def test_bodies_have_the_fields_of_kube_proxy_in_its_order(health: Health, clock: Time) -> None:
    health.sync(Family.IPV6)
    health.sync(Family.IPV4)
    clock.step(1.5)
    assert health.healthz().body == (
        b'{"lastUpdated":"2023-11-14T22:13:21.5Z","currentTime":"2023-11-14T22:13:21.5Z",'
        b'"nodeEligible":true,"healthy":true,"status":{'
        b'"IPv4":{"lastUpdated":"2023-11-14T22:13:20Z","healthy":true},'
        b'"IPv6":{"lastUpdated":"2023-11-14T22:13:20Z","healthy":true}}}'
    )
    assert b"nodeEligible" not in health.livez().body


def test_a_change_waiting_two_sync_periods_makes_its_family_unhealthy(health: Health, clock: Time) -> None:
    health.sync(Family.IPV4)
    health.sync(Family.IPV6)
    synced = clock.wall
    health.state.on_queued(Family.IPV4)
    clock.step(59.999)
    assert health.livez().status == 200
    clock.step(0.001)
    answer = health.livez()
    assert answer.status == 503
    document = body(answer)
    assert document["healthy"] is False
    assert document["lastUpdated"] == format_rfc3339_nano(synced)
    assert document["status"]["IPv4"]["healthy"] is False  # type: ignore[index]
    assert document["status"]["IPv6"]["healthy"] is True  # type: ignore[index]
    health.sync(Family.IPV4)
    assert health.livez().status == 200


def test_the_oldest_waiting_change_counts(health: Health, clock: Time) -> None:
    health.sync(Family.IPV4)
    health.state.on_queued(Family.IPV4)
    clock.step(59)
    health.state.on_queued(Family.IPV4)
    clock.step(1)
    assert health.healthz().status == 503


def test_a_jump_of_the_wall_clock_does_not_matter(health: Health, clock: Time) -> None:
    health.sync(Family.IPV4)
    health.state.on_queued(Family.IPV4)
    clock.wall += 3600 * SECOND
    assert health.healthz().status == 200
    clock.wall -= 7200 * SECOND
    clock.ticks += 60 * SECOND
    assert health.healthz().status == 503


def test_a_longer_sync_period_applies_at_once(health: Health, clock: Time) -> None:
    health.sync(Family.IPV4)
    health.state.on_queued(Family.IPV4)
    clock.step(60)
    assert health.healthz().status == 503
    health.state.sync_period = 31
    assert health.healthz().status == 200


@pytest.mark.parametrize(
    "node",
    [
        None,
        Node(metadata=Meta(name="n", deletion_timestamp="2026-01-01T00:00:00Z")),
        Node(metadata=Meta(name="n"), spec=NodeSpec(taints=[Taint(key=AUTOSCALER_TAINT)])),
    ],
    ids=["gone", "being deleted", "tainted by the autoscaler"],
)
def test_a_leaving_node_fails_healthz_but_not_livez(health: Health, node: Node | None) -> None:
    health.sync(Family.IPV4)
    health.state.node = node
    assert find_ineligibility(node)
    answer = health.healthz()
    assert answer.status == 503
    assert body(answer)["nodeEligible"] is False
    assert body(answer)["healthy"] is True
    assert health.livez().status == 200


def test_other_taints_do_not_matter() -> None:
    assert not find_ineligibility(Node(metadata=Meta(name="n"), spec=NodeSpec(taints=[Taint(key="other")])))


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (None, "0001-01-01T00:00:00Z"),
        (0, "1970-01-01T00:00:00Z"),
        (1_000_000_001, "1970-01-01T00:00:01.000000001Z"),
        (1_120_000_000, "1970-01-01T00:00:01.12Z"),
    ],
)
def test_times_print_as_in_go(moment: int | None, text: str) -> None:
    assert format_rfc3339_nano(moment) == text


def test_a_leaving_process_fails_healthz_but_not_livez(health: Health) -> None:
    health.sync(Family.IPV4)
    assert health.healthz().status == 200
    health.state.is_draining = True
    answer = health.healthz()
    assert answer.status == 503
    assert json.loads(answer.body)["leaving"] is True
    assert json.loads(answer.body)["healthy"] is True
    assert health.livez().status == 200
    assert not health.state.accepts_traffic


def hang(health: Health, clock: Time) -> None:
    health.state.on_worker_busy(Family.IPV4)
    clock.step(60)


def lag(health: Health, clock: Time) -> None:
    health.state.on_queued(Family.IPV4)
    clock.step(60)


def wait(health: Health, clock: Time) -> None:
    health.gate.missing = "the Node n1"
    clock.step(60)


def drain(health: Health, _clock: Time) -> None:
    health.state.is_draining = True


def lose_node(health: Health, _clock: Time) -> None:
    health.state.node = None


@pytest.mark.parametrize(
    ("happen", "line"),
    [
        (hang, "[-]SyncProgressIPv4 failed: the worker thread has not come back for 60 s"),
        (lag, "[-]SyncProgressIPv4 failed: no sync has succeeded for 60 s"),
        (wait, "[-]Started failed: waiting for the Node n1"),
        (drain, "[-]Running failed: the process is shutting down"),
        (lose_node, "[-]NodeEligible failed: the Node object does not exist or is not known yet"),
    ],
)
def test_whatever_makes_healthz_fail_makes_readyz_fail(
    health: Health, clock: Time, happen: Callable[[Health, Time], None], line: str
) -> None:
    health.sync(Family.IPV4)
    assert health.readyz().status == 200
    happen(health, clock)
    assert health.healthz().status == 503
    answer = health.readyz()
    assert answer.status == 503
    assert line in answer.body.decode().splitlines()


def test_readyz_has_a_line_for_every_condition_that_may_block_readiness(health: Health) -> None:
    health.sync(Family.IPV4)
    assert health.readyz().body == (
        b"[+]Started ok\n[+]SyncProgressIPv4 ok\n[+]NodeEligible ok\n[+]Running ok\nreadyz check passed\n"
    )
    health.gate.missing = "two\nlines"
    first, *_, last = health.readyz().body.decode().splitlines()
    assert (first, last) == ("[-]Started failed: waiting for two lines", "readyz check failed")
