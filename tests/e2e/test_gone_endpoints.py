"""Connections to pods that vanished: reset with the next packet where the Service asks for it, left alone elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import msgspec
import pytest
from tests.harness import lab as harness
from tests.harness.flows import Flow
from tests.harness.waiting import wait_until
from tests.harness.world import FAMILIES, World, answers, running

from pointsman.lab.objects import Backend, LabService, backends
from pointsman.lab.probe import LONG_TIMEOUT_SECONDS

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(bool(harness.missing_privilege()), reason=harness.missing_privilege()),
    pytest.mark.skipif(bool(harness.REFERENCE), reason="kube-proxy leaves TCP flows as they are"),
]

RESET_GONE = {"pointsman.dev/reset-gone": "true"}
ASKS = LabService("asks", 1, backends("pod1"), type="LoadBalancer", external=True, annotations=RESET_GONE)
DOES_NOT = LabService("does-not", 2, backends("pod1"), type="LoadBalancer", external=True)
LOCAL = LabService(
    *("local", 3, backends("pod1", "pod4")),
    type="LoadBalancer",
    external_policy="Local",
    annotations=RESET_GONE,
)
PLACES = ("cluster", "lb", "external", "nodeport")
VANISH = "table inet vanished { chain i { type filter hook input priority 0; policy drop; }; chain o { type filter hook output priority 0; policy drop; }; }"


@pytest.fixture(scope="module", params=harness.MODES)
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running(tmp_path_factory.mktemp("gone"), request.param) as made:
        yield made


@contextlib.contextmanager
def vanished(world: World, host: str) -> Iterator[None]:
    """Nothing comes from there any more, not even a reset."""
    world.cluster[host].run(("nft", "-f", "-"), VANISH)
    try:
        yield
    finally:
        world.cluster[host].run(("nft", "delete", "table", "inet", "vanished"))


def only(service: LabService, *hosts: str | Backend) -> LabService:
    made = tuple(Backend(host) if isinstance(host, str) else host for host in hosts)
    return msgspec.structs.replace(service, backends=made)


@contextlib.contextmanager
def patient_flows(
    world: World, service: LabService, *places: str, hosts: tuple[str, ...]
) -> Iterator[dict[str, Flow]]:
    """Open connections that wait long for an answer: what is sent again meanwhile counts as the next packet, too."""
    with contextlib.ExitStack() as stack:
        made = {}
        for host in hosts:
            for to in places:
                for family in FAMILIES:
                    flow = Flow(world.cluster, world.probe(host, service, to, family), LONG_TIMEOUT_SECONDS)
                    stack.callback(flow.close)
                    made[f"{host}-{to}-v{family}"] = flow
        yield made


def test_only_where_asked_a_client_of_a_vanished_pod_is_reset(world: World) -> None:
    world.proxy.apply([ASKS, DOES_NOT])
    hosts = ("client", "pod3", "n1")
    with (
        patient_flows(world, ASKS, *PLACES, hosts=hosts) as reset,
        world.flows("client", DOES_NOT, *PLACES) as left,
    ):
        assert set(answers({**reset, **left}).values()) == {"pod1"}
        with vanished(world, "pod1"):
            world.proxy.apply([only(ASKS, "pod4"), only(DOES_NOT, "pod4")])
            assert set(answers(reset).values()) == {"refused"}
            assert set(answers(left).values()) == {"timed out"}
        assert wait_until(lambda: set(answers(left).values()), lambda seen: seen == {"pod1"}) == {"pod1"}


def test_without_an_endpoint_left_the_answer_is_a_reset(world: World) -> None:
    world.proxy.apply([ASKS])
    with patient_flows(world, ASKS, *PLACES, hosts=("client", "pod3", "n1")) as reset:
        assert set(answers(reset).values()) == {"pod1"}
        with vanished(world, "pod1"):
            world.proxy.apply([only(ASKS)])
            assert set(answers(reset).values()) == {"refused"}
        assert world.answerers("client", ASKS, "lb", 2) == {"refused"}


def test_where_policy_local_leaves_no_endpoint_here_only_open_connections_are_reset(world: World) -> None:
    world.proxy.apply([LOCAL])
    with patient_flows(world, LOCAL, "lb", "nodeport", hosts=("client",)) as reset:
        assert set(answers(reset).values()) == {"pod1"}
        with vanished(world, "pod1"):
            world.proxy.apply([only(LOCAL, "pod4")])
            assert set(answers(reset).values()) == {"refused"}
        assert world.is_dropped("client", LOCAL, "lb"), "balancers look elsewhere"
        assert world.is_dropped("client", LOCAL, "nodeport")


def test_a_pod_that_ends_gracefully_keeps_its_connections(world: World) -> None:
    """What else was to be reset with the same change is the sign that flows were looked through."""
    other = LabService("other", 4, backends("pod2"), annotations=RESET_GONE)

    def apply(*hosts: str | Backend) -> None:
        """Endpoints of the Service, with the other one losing its only endpoint at the same time."""
        world.proxy.apply([before[-1], other])
        with patient_flows(world, other, "cluster", hosts=("client",)) as reset, vanished(world, "pod2"):
            before.append(only(ASKS, *hosts))
            world.proxy.apply([before[-1], only(other, "pod5")])
            assert set(answers(reset).values()) == {"refused"}

    before = [ASKS]
    world.proxy.apply(before)
    with world.flows("client", ASKS, *PLACES) as ending:
        for state in (
            {"ready": False},
            {"ready": False, "serving": True, "terminating": True},
            {"ready": False, "serving": False, "terminating": True},
        ):
            apply(Backend("pod1", state), "pod4")
            assert set(answers(ending).values()) == {"pod1"}, state
    with world.flows("client", ASKS, *PLACES) as staying:
        assert set(answers(staying).values()) == {"pod4"}
        apply("pod4")
        assert set(answers(staying).values()) == {"pod4"}
