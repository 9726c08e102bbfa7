"""What Services ask for by annotations, and what planning makes of it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.factory import context, endpoint, endpoint_slice, plan, service, service_port

from pointsman.model.addresses import Family
from pointsman.model.balancing import (
    MAX_WEIGHTS,
    NO_REQUEST,
    BalancingDefaults,
    BalancingPlan,
    BalancingRequest,
    Capabilities,
    Scheduler,
    compute_slow_start_seconds,
)
from pointsman.model.decision import EndpointReason
from pointsman.model.endpoint import Endpoint
from pointsman.model.findings import Finding, Severity
from pointsman.model.service import Protocol, ServicePort
from pointsman.model.service_parsing import parse_service_ports
from pointsman.model.slices import parse_slice_endpoints
from pointsman.model.slots import assign_slots
from pointsman.model.topology import find_endpoint_reason
from pointsman.wording.findings import render_message


def asked(annotations: dict[str, str], **spec: Any) -> tuple[ServicePort, list[Finding]]:
    named = {f"pointsman.dev/{name}": value for name, value in annotations.items()}
    ports, findings, _ = parse_service_ports(service(metadata={"annotations": named}, **spec), Family.IPV4)
    (port,) = ports.values()
    return port, findings


def shares(*endpoints: Endpoint, port: ServicePort, **balancing: Any) -> BalancingPlan | None:
    return plan(port, *endpoints, node_context=context(balancing=BalancingDefaults(**balancing))).balancing


A = endpoint("10.244.1.1", zone="a", node="n1", pod="web-0")
B = endpoint("10.244.1.2", zone="b", node="n2", pod="web-1")


def test_a_service_without_annotations_asks_for_nothing_and_is_balanced_evenly() -> None:
    port, findings = asked({})
    assert (port.service.balancing, findings) == (NO_REQUEST, [])
    assert plan(port, A, B).balancing is None


@pytest.mark.parametrize(
    ("word", "scheduler"),
    [
        ("random", Scheduler.RANDOM),
        ("weighted", Scheduler.WEIGHTED),
        ("source-hash", Scheduler.SOURCE_HASH),
        ("source-port-hash", Scheduler.SOURCE_PORT_HASH),
        ("least-connections", Scheduler.LEAST_CONNECTIONS),
        ("rr", Scheduler.RANDOM),
        ("wrr", Scheduler.WEIGHTED),
        ("lc", Scheduler.LEAST_CONNECTIONS),
        ("sh", Scheduler.SOURCE_HASH),
        ("mh", Scheduler.SOURCE_PORT_HASH),
        ("sed", Scheduler.IPVS_ONLY),
    ],
)
def test_our_words_and_those_of_ipvs_are_understood(word: str, scheduler: Scheduler) -> None:
    port, findings = asked({"scheduler": word})
    assert (port.service.balancing.scheduler, port.service.balancing.requested_name, findings) == (
        scheduler,
        word,
        [],
    )


@pytest.mark.parametrize(
    ("annotation", "value", "words"),
    [
        (
            "scheduler",
            "fastest",
            "pointsman.dev/scheduler: 'fastest' is ignored; expected one of random, weighted",
        ),
        ("slow-start", "soon", "pointsman.dev/slow-start: 'soon' is ignored; expected a time of at most 1 h"),
        ("slow-start", "61m", "a time of at most 1 h"),
        (
            "weights",
            "zone/a=3,rack/7=1",
            "pointsman.dev/weights: 'rack/7=1' is ignored; expected entries zone/NAME",
        ),
        ("weights", "zone/a=1001", "N from 0 to 1000"),
        (
            "reset-gone",
            "yes",
            'pointsman.dev/reset-gone: \'yes\' is ignored; expected "true" or "false"',
        ),
        (
            "hash-slots",
            "63",
            "pointsman.dev/hash-slots: '63' is ignored; expected a number from 64 to 65536",
        ),
    ],
)
def test_a_bad_value_is_reported_with_what_would_be_good_and_counts_as_not_given(
    annotation: str, value: str, words: str
) -> None:
    port, findings = asked({annotation: value})
    assert [finding.code.value for finding in findings] == ["BadAnnotation"]
    assert words in render_message(findings[0])
    assert port.service.balancing in (NO_REQUEST, BalancingRequest(weights={("zone", "a"): 3}))


@pytest.mark.parametrize(
    ("annotation", "default", "resets"),
    [
        ({}, False, False),
        ({}, True, True),
        ({"reset-gone": "true"}, False, True),
        ({"reset-gone": "false"}, True, False),
        ({"reset-gone": "perhaps"}, True, True),
    ],
)
def test_the_service_decides_about_resets_and_else_the_configuration(
    annotation: dict[str, str], default: bool, resets: bool
) -> None:
    port, _ = asked(annotation)
    node = context(balancing=BalancingDefaults(reset_gone=default))
    assert plan(port, A, node_context=node).resets_gone is resets


def test_only_tcp_can_be_reset() -> None:
    port = service_port(protocol=Protocol.UDP, balancing=BalancingRequest(reset_gone=True))
    assert not plan(port, A).resets_gone


def test_more_weights_than_a_slice_has_endpoints_are_told_once_and_left_out() -> None:
    entries = [f"pod/web-{number}=2" for number in range(20 * MAX_WEIGHTS)]
    port, (finding,) = asked({"weights": ",".join(entries)})
    assert len(port.service.balancing.weights) == MAX_WEIGHTS
    assert "'pod/web-1000=2,pod/web-1001=2," in render_message(finding)
    assert "at most 1000 entries" in render_message(finding)
    assert len(render_message(finding)) < 500


def test_weights_by_pod_beat_those_by_node_and_those_beat_zones() -> None:
    port, findings = asked({"weights": "zone/a=3, zone/b=5, node/n2=7, pod/web-0=2"})
    assert findings == []
    balance = shares(A, B, port=port)
    assert balance is not None
    assert (balance.scheduler, balance.weight(A), balance.weight(B)) == (Scheduler.WEIGHTED, 2, 7)


def test_equal_weights_are_no_weights() -> None:
    port, _ = asked({"weights": "zone/a=3,zone/b=3"})
    assert shares(A, B, port=port) is None


def test_random_asked_for_by_name_ignores_weights() -> None:
    port, _ = asked({"scheduler": "random", "weights": "zone/a=3,zone/b=0"})
    made = plan(port, A, B)
    assert (made.balancing, made.endpoints.cluster) == (None, (A, B))


def test_a_slice_may_weigh_its_endpoints_itself_and_wins_over_the_service() -> None:
    made = endpoint_slice(
        {"addresses": ["10.244.1.1"], "zone": "a", "targetRef": {"kind": "Pod", "name": "web-0"}},
        {"addresses": ["10.244.1.2"], "zone": "b"},
        metadata={"annotations": {"pointsman.dev/weights": "pod/web-0=9,4"}},
    )
    found, findings = parse_slice_endpoints(made, Family.IPV4, "n1")
    (endpoints,) = found.values()
    assert findings == []
    assert [(e.pod, e.state.weight) for e in endpoints] == [("web-0", 9), ("", 4)]
    port, _ = asked({"weights": "zone/a=1,zone/b=100"})
    balance = shares(*endpoints, port=port)
    assert balance is not None
    assert [balance.weight(e) for e in endpoints] == [9, 4]


def test_a_bad_weight_of_a_slice_is_reported() -> None:
    made = endpoint_slice("10.244.1.1", metadata={"annotations": {"pointsman.dev/weights": "many"}})
    found, findings = parse_slice_endpoints(made, Family.IPV4, "n1")
    assert [finding.code.value for finding in findings] == ["BadAnnotation"]
    assert [e.state.weight for endpoints in found.values() for e in endpoints] == [-1]


def test_an_endpoint_of_weight_0_gets_no_new_connections_and_explain_says_so() -> None:
    port, _ = asked({"weights": "zone/b=0"})
    made = plan(port, A, B)
    assert (made.endpoints.cluster, made.endpoints.reachable, made.endpoints.all) == ((A,), (A,), (A, B))
    assert find_endpoint_reason(made, B, local_policy=False) == (False, EndpointReason.NO_WEIGHT)


def test_a_service_whose_endpoints_all_weigh_0_is_not_taken_down_by_it() -> None:
    port, _ = asked({"weights": "0"})
    assert plan(port, A, B).endpoints.cluster == (A, B)


def test_a_mode_that_lacks_a_scheduler_says_so_and_uses_weights_where_it_can() -> None:
    can = frozenset((Scheduler.RANDOM, Scheduler.WEIGHTED))
    port, _ = asked({"scheduler": "source-hash", "weights": "zone/a=3"})
    made = plan(
        port,
        A,
        B,
        node_context=context(balancing=BalancingDefaults(capabilities=Capabilities(schedulers=can))),
    )
    assert [finding.code.value for finding in made.findings] == ["SchedulerNotPossible"]
    assert "source-hash is not available in this proxy mode; weighted is used" in render_message(
        made.findings[0]
    )
    assert made.balancing is not None
    assert made.scheduler == "weighted"


def test_a_scheduler_that_only_ipvs_has_is_refused_elsewhere() -> None:
    port, _ = asked({"scheduler": "sed"})
    assert "sed is not available in this proxy mode; random is used" in render_message(
        plan(port, A).findings[0]
    )


def test_a_mode_that_cannot_start_endpoints_slowly_says_so() -> None:
    port, _ = asked({"slow-start": "30s"})
    made = plan(port, A, B, node_context=context(balancing=BalancingDefaults(capabilities=Capabilities())))
    assert [finding.code.value for finding in made.findings] == ["SlowStartNotPossible"]
    assert plan(port, A, B).findings == ()


UDP_SECONDS, TCP_SECONDS = {"udp-timeout": "5s"}, {"tcp-established-timeout": "2h"}


@pytest.mark.parametrize(
    ("annotations", "protocol", "number", "seconds"),
    [
        ({}, "UDP", 80, 0),
        ({}, "UDP", 53, 7),
        ({}, "TCP", 53, 0),
        (UDP_SECONDS, "UDP", 53, 5),
        (UDP_SECONDS, "UDP", 80, 5),
        (UDP_SECONDS, "TCP", 80, 0),
        (TCP_SECONDS, "TCP", 80, 7200),
        (UDP_SECONDS | TCP_SECONDS, "SCTP", 80, 0),
    ],
)
def test_a_flow_timeout_is_that_of_the_protocol_and_dns_has_a_default(
    annotations: dict[str, str], protocol: str, number: int, seconds: int
) -> None:
    port, _ = asked(annotations, ports=[{"port": number, "protocol": protocol}])
    made = plan(port, A, node_context=context(balancing=BalancingDefaults(dns_timeout=7)))
    assert (made.flow_timeout, made.findings) == (seconds, ())


def test_a_mode_without_flow_timeouts_says_so() -> None:
    port, _ = asked(UDP_SECONDS, ports=[{"port": 53, "protocol": "UDP"}])
    defaults = BalancingDefaults(dns_timeout=7, capabilities=Capabilities())
    made = plan(port, A, node_context=context(balancing=defaults))
    assert [finding.code.value for finding in made.findings] == ["FlowTimeoutNotPossible"]
    assert made.flow_timeout == 0


def test_session_affinity_leaves_the_port_out_of_the_hash() -> None:
    port, _ = asked({"scheduler": "source-port-hash"}, sessionAffinity="ClientIP")
    made = plan(port, A, B)
    assert (made.scheduler, [finding.code.value for finding in made.findings]) == (
        "source-hash",
        ["PortNotHashed"],
    )


def test_the_configuration_decides_for_services_that_say_nothing() -> None:
    balance = shares(A, B, port=service_port(), scheduler=Scheduler.SOURCE_HASH, seed=7, hash_slots=128)
    assert balance == BalancingPlan(Scheduler.SOURCE_HASH, {}, seed=7, hash_slots=128)
    port, _ = asked({"scheduler": "random"})
    assert shares(A, B, port=port, scheduler=Scheduler.SOURCE_HASH) is None


def test_slow_start_comes_from_the_service_then_the_configuration_and_never_with_a_hash() -> None:
    port, _ = asked({"slow-start": "2m"})
    assert compute_slow_start_seconds(port.service.balancing, BalancingDefaults(slow_start=30)) == 120
    assert compute_slow_start_seconds(NO_REQUEST, BalancingDefaults(slow_start=30)) == 30
    assert (
        compute_slow_start_seconds(port.service.balancing, BalancingDefaults(capabilities=Capabilities()))
        == 0
    )
    hashed, findings = asked({"slow-start": "30s", "scheduler": "source-hash"})
    assert compute_slow_start_seconds(hashed.service.balancing, BalancingDefaults()) == 0
    assert [finding.code.value for finding in findings] == ["SlowStartIgnored"]


def many(count: int) -> tuple[Endpoint, ...]:
    return tuple(
        endpoint(f"10.{244 + number // 65536}.{number // 256 % 256}.{number % 256}")
        for number in range(count)
    )


def test_a_service_with_too_many_endpoints_is_not_hashed_and_says_what_to_do() -> None:
    port, _ = asked({"scheduler": "source-hash"})
    made = plan(port, *many(3000))
    assert made.balancing is None
    (finding,) = made.findings
    assert (finding.code.value, finding.severity) == ("TooManyToHash", Severity.NOTICE)
    assert "at most 2048 endpoints" in render_message(finding)
    assert "random is used" in render_message(finding)
    assert plan(port, *many(3001)).findings == made.findings, "told once, not with every endpoint that comes"
    assert plan(port, *many(2048)).scheduler == "source-hash"


def test_too_many_endpoints_keep_their_weights() -> None:
    port, _ = asked({"scheduler": "source-hash", "weights": "pod/big=3"})
    made = plan(port, *many(3000), endpoint("10.1.1.1", pod="big"))
    assert made.scheduler == "weighted"


def test_a_configured_hash_has_the_same_limit() -> None:
    node = context(balancing=BalancingDefaults(Scheduler.SOURCE_PORT_HASH))
    made = plan(service_port(), *many(3000), node_context=node)
    assert [finding.code.value for finding in made.findings] == ["TooManyToHash"]


def test_a_mode_whose_kernel_fills_the_table_has_no_limit() -> None:
    port, _ = asked({"scheduler": "source-hash"})
    made = plan(
        port,
        *many(3000),
        node_context=context(
            balancing=BalancingDefaults(capabilities=Capabilities(schedulers=frozenset(Scheduler)))
        ),
    )
    assert (made.scheduler, made.findings) == ("source-hash", ())


def test_the_ports_of_a_service_share_what_hashing_may_cost() -> None:
    """A hundred ports, each with a port of its own at the pods, so that no two tables are the same."""
    entries = [{"name": f"p{number}", "port": number} for number in range(1, 101)]
    annotations = {"pointsman.dev/scheduler": "source-hash", "pointsman.dev/hash-slots": "65536"}
    ports, _, _ = parse_service_ports(
        service(metadata={"annotations": annotations}, ports=entries), Family.IPV4
    )
    made = [plan(port, *many(100)) for port in ports.values()]
    slots = sum(len(assign_slots(one.endpoints.cluster, one.balancing)) for one in made)
    assert {one.scheduler for one in made} == {"source-hash"}
    assert slots * 100 <= 1 << 23
    assert plan(next(iter(ports.values())), *many(300)).scheduler == "", "many ports times many endpoints"


def test_frontends_share_what_the_kernel_may_hold_for_a_service() -> None:
    addresses = [f"192.0.2.{number}" for number in range(1, 100)]
    port = service_port(
        external_ips=addresses, balancing=BalancingRequest(Scheduler.SOURCE_HASH, hash_slots=65536)
    )
    made = plan(port, A, B)
    assert len(assign_slots(made.endpoints.cluster, made.balancing)) * 100 <= 1 << 18
