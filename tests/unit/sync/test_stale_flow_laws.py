"""Laws of the decision which flows go, over random histories of plans and every flow that could exist beside them."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.sync.flow_making import (
    BALANCER,
    CLUSTER,
    CONTEXT,
    EXTERNAL,
    NODE,
    NODE_PORT,
    OTHER_HOST,
    OWN_ADDRESSES,
    POD_A,
    POD_B,
    flow,
    plan,
    pod,
)

from pointsman.kernel.tracked_flows import Flow
from pointsman.model.balancing import BalancingRequest
from pointsman.model.endpoint import Endpoint
from pointsman.model.plan import ServicePlan
from pointsman.model.service import Protocol, ServicePortName
from pointsman.sync.reconcile import PlanChange
from pointsman.sync.stale_flows import FlowCheck, PendingCheck, extend_check

PORT = 53
STRANGER = (b"\x0a\xf4\0\x63", 5353)
NAMES = {protocol: ServicePortName("a", "b", "", protocol) for protocol in Protocol}


@st.composite
def endpoints(draw: st.DrawFn) -> list[Endpoint]:
    """Up to three, one of them on the host network behind an address that may be an external IP."""
    chosen = draw(st.sets(st.sampled_from([POD_A, POD_B, (EXTERNAL, PORT)])))
    return [
        pod(
            backend,
            ready=draw(st.booleans()),
            serving=draw(st.booleans()),
            terminating=draw(st.booleans()),
            local=draw(st.booleans()),
        )
        for backend in sorted(chosen)
    ]


@st.composite
def plans(draw: st.DrawFn, protocol: Protocol, resetting: st.SearchStrategy[bool]) -> ServicePlan | None:
    if draw(st.integers(0, 5)) == 0:
        return None
    return plan(
        *draw(endpoints()),
        name=NAMES[protocol],
        addresses=draw(st.sampled_from([(CLUSTER,), (CLUSTER, EXTERNAL), (CLUSTER, EXTERNAL, BALANCER)])),
        node_port=draw(st.sampled_from([0, NODE_PORT])),
        port=draw(st.sampled_from([PORT, PORT + 1])),
        internal_local=draw(st.booleans()),
        external_local=draw(st.booleans()),
        balancing=BalancingRequest(reset_gone=draw(resetting)),
        keep_draining_udp=draw(st.booleans()),
    )


NEVER = st.just(value=False)


def histories(
    protocol: Protocol, resetting: st.SearchStrategy[bool] = NEVER
) -> st.SearchStrategy[list[ServicePlan | None]]:
    """What was in the kernel at the last check, and every plan since."""
    return st.lists(plans(protocol, resetting), min_size=2, max_size=5)


def every_flow(protocol: Protocol) -> list[Flow]:
    places = [(a, p) for a in (CLUSTER, EXTERNAL, BALANCER) for p in (PORT, PORT + 1)]
    places += [(a, p) for a in (NODE, OTHER_HOST) for p in (NODE_PORT, PORT)]
    return [
        flow(address, port, answering, protocol=protocol.value, replied=replied)
        for address, port in places
        for answering in (None, POD_A, POD_B, STRANGER)
        for replied in (False, True)
    ]


def doomed(history: list[ServicePlan | None], protocol: Protocol) -> set[Flow]:
    noted: PendingCheck | None = None
    for old, new in pairwise(history):
        if old != new:
            noted = extend_check(noted, PlanChange(old, new))
    name, latest = NAMES[protocol], history[-1]
    plans_now = {name: latest} if latest is not None else {}
    check = FlowCheck([(name, noted)] if noted else [], plans_now, CONTEXT, OWN_ADDRESSES)
    return set(check.find_stale(every_flow(protocol)))


def destinations(plan_now: ServicePlan | None) -> set[tuple[bytes, int]]:
    if plan_now is None:
        return set()
    return {(frontend.address or NODE, frontend.port) for frontend in plan_now.frontends}


def translating(plan_now: ServicePlan | None) -> set[tuple[bytes, int]]:
    """Where everybody's packets find an endpoint."""
    if plan_now is None:
        return set()
    return {
        (frontend.address or NODE, frontend.port)
        for frontend in plan_now.frontends
        if (plan_now.endpoints.local if frontend.local_policy else plan_now.endpoints.cluster)
    }


def to(entry: Flow) -> tuple[bytes, int]:
    return entry.destination, entry.destination_port


def by(entry: Flow) -> tuple[bytes, int]:
    return entry.reply_source, entry.reply_source_port


@given(histories(Protocol.TCP))
def test_tcp_flows_go_only_unanswered_untranslated_and_at_frontends_of_ours(
    history: list[ServicePlan | None],
) -> None:
    for entry in doomed(history, Protocol.TCP):
        assert not entry.replied
        assert by(entry) == to(entry)
        assert to(entry) in destinations(history[-1])


@given(histories(Protocol.TCP))
def test_every_lost_handshake_at_a_frontend_that_came_into_service_goes(
    history: list[ServicePlan | None],
) -> None:
    came = {
        place
        for place in translating(history[-1])
        if any(place not in translating(earlier) for earlier in history[:-1])
    }
    serving = {e.identity for e in history[-1].endpoints.all if e.serving} if history[-1] else set()
    lost = {
        entry
        for entry in every_flow(Protocol.TCP)
        if to(entry) in came and by(entry) == to(entry) and not entry.replied and by(entry) not in serving
    }
    assert lost <= doomed(history, Protocol.TCP)


def listed(plan_then: ServicePlan | None) -> set[tuple[bytes, int]]:
    """Endpoints in any state."""
    return {e.identity for e in plan_then.endpoints.all} if plan_then else set()


@given(histories(Protocol.TCP, st.booleans()))
def test_translated_tcp_flows_go_only_where_asked_and_when_their_endpoint_has_left_every_slice(
    history: list[ServicePlan | None],
) -> None:
    latest = history[-1]
    once = set().union(*(listed(plan_then) for plan_then in history))
    for entry in doomed(history, Protocol.TCP):
        if entry.translated:
            assert latest is not None
            assert latest.resets_gone
            assert by(entry) in once - listed(latest)
            assert to(entry) in destinations(latest)


@given(histories(Protocol.TCP, st.just(value=True)))
def test_where_asked_every_tcp_flow_of_an_endpoint_that_left_goes(history: list[ServicePlan | None]) -> None:
    before, latest = history[-2:]
    left = listed(before) - listed(latest)
    wanted = {
        entry
        for entry in every_flow(Protocol.TCP)
        if entry.translated and by(entry) in left and to(entry) in destinations(latest)
    }
    assert wanted <= doomed(history, Protocol.TCP)


@given(histories(Protocol.UDP, st.booleans()))
def test_after_any_change_udp_flows_at_a_served_frontend_are_those_on_serving_or_kept_endpoints(
    history: list[ServicePlan | None],
) -> None:
    if all(plan_then == history[-1] for plan_then in history):
        return
    latest = history[-1]
    keeps = latest is not None and latest.port.service.keep_draining_udp
    kept = (
        {e.identity for e in latest.endpoints.all if e.serving or (keeps and e.terminating)} if latest else ()
    )
    gone = doomed(history, Protocol.UDP)
    for entry in every_flow(Protocol.UDP):
        if to(entry) in translating(latest):
            assert (entry in gone) == (by(entry) not in kept), entry


@given(histories(Protocol.UDP))
def test_udp_flows_go_only_at_what_is_or_was_a_frontend(history: list[ServicePlan | None]) -> None:
    ours = set().union(*(destinations(plan_then) for plan_then in history))
    assert {to(entry) for entry in doomed(history, Protocol.UDP)} <= ours


@given(histories(Protocol.SCTP, st.booleans()))
def test_sctp_flows_never_go(history: list[ServicePlan | None]) -> None:
    assert not doomed(history, Protocol.SCTP)
