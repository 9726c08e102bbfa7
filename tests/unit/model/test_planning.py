from typing import Any

import pytest
from tests.factory import cidr, context, endpoint, packed, plan, service_port

from pointsman.model.endpoint import Endpoint
from pointsman.model.findings import Severity
from pointsman.model.plan import FrontendKind, Outcome
from pointsman.model.planning import plan_service_port


def test_every_address_of_a_service_is_a_frontend() -> None:
    port = service_port(
        external_ips=("198.51.100.1",),
        load_balancer_ips=("203.0.113.1",),
        node_port=30080,
        source_ranges=(cidr("192.0.2.0/24"),),
    )
    frontends = plan(port, endpoint()).frontends
    assert [(f.kind, f.address, f.port) for f in frontends] == [
        (FrontendKind.CLUSTER_IP, packed("10.96.0.10"), 80),
        (FrontendKind.EXTERNAL_IP, packed("198.51.100.1"), 80),
        (FrontendKind.LOAD_BALANCER_IP, packed("203.0.113.1"), 80),
        (FrontendKind.NODE_PORT, b"", 30080),
    ]
    assert [f.source_ranges for f in frontends] == [(), (), (cidr("192.0.2.0/24"),), ()]


@pytest.mark.parametrize(
    ("fields", "endpoints", "internal", "external"),
    [
        ({}, [], Outcome.REJECTED, Outcome.REJECTED),
        ({}, [endpoint(ready=False)], Outcome.REJECTED, Outcome.REJECTED),
        ({}, [endpoint()], Outcome.DELIVERED, Outcome.DELIVERED),
        ({"external_local": True}, [endpoint()], Outcome.DELIVERED, Outcome.DROPPED),
        ({"external_local": True}, [endpoint(local=True)], Outcome.DELIVERED, Outcome.DELIVERED),
        ({"internal_local": True}, [endpoint()], Outcome.DROPPED, Outcome.DELIVERED),
        ({"internal_local": True, "external_local": True}, [endpoint()], Outcome.DROPPED, Outcome.DROPPED),
        ({"internal_local": True, "external_local": True}, [], Outcome.REJECTED, Outcome.REJECTED),
    ],
)
def test_outcomes(
    fields: dict[str, Any], endpoints: list[Endpoint], internal: Outcome, external: Outcome
) -> None:
    made = plan(service_port(node_port=30080, **fields), *endpoints)
    assert (made.internal_outcome, made.external_outcome) == (internal, external)
    assert [f.outcome for f in made.frontends] == [internal, external]


def test_external_addresses_inside_the_service_range_are_served_with_a_warning() -> None:
    port = service_port(external_ips=("10.96.0.77", "198.51.100.1"), load_balancer_ips=("10.96.0.78",))
    made = plan(port, node_context=context(service_cidrs=(cidr("10.96.0.0/12"),)))
    assert made.port == port
    assert [
        (finding.code.value, finding.parameters["address"], finding.severity) for finding in made.findings
    ] == [
        ("AddressInServiceRange", "10.96.0.77", Severity.NOTICE),
        ("AddressInServiceRange", "10.96.0.78", Severity.NOTICE),
    ]


@pytest.mark.parametrize(
    ("fields", "warned"),
    [
        ({"load_balancer_ips": ("203.0.113.1",)}, True),
        ({"node_port": 30080, "ranges_everywhere": True}, True),
        ({"node_port": 30080}, False),
        ({"ranges_everywhere": True}, False),
    ],
)
def test_a_family_that_source_ranges_forget_is_served_with_a_warning(
    fields: dict[str, Any], warned: bool
) -> None:
    """As kube-proxy serves it: to everybody."""
    made = plan(service_port(ranges_of_other_family=True, **fields))
    assert all(frontend.source_ranges == () for frontend in made.frontends)
    told = [(finding.code.value, finding.severity) for finding in made.findings]
    assert told == ([("SourceRangesOfOtherFamily", Severity.NOTICE)] if warned else [])


def test_an_allow_list_keeps_the_service_range_to_cluster_ips() -> None:
    port = service_port(external_ips=("10.96.0.77", "198.51.100.1"))
    strict = context(service_cidrs=(cidr("10.96.0.0/12"),), external_allow=(cidr("198.51.100.0/24"),))
    made = plan(port, node_context=strict)
    assert made.port.external_ips == (packed("198.51.100.1"),)
    assert [finding.code.value for finding in made.findings] == ["AddressNotAllowed"]


def test_the_allow_list_limits_external_and_balancer_addresses() -> None:
    port = service_port(external_ips=("198.51.100.1",), load_balancer_ips=("203.0.113.1",))
    made = plan(port, node_context=context(external_allow=(cidr("203.0.113.0/24"),)))
    assert made.port.external_ips == ()
    assert made.port.load_balancer_ips == (packed("203.0.113.1"),)
    assert [finding.code.value for finding in made.findings] == ["AddressNotAllowed"]


def test_planning_is_deterministic() -> None:
    port, endpoints = service_port(node_port=30080), (endpoint(), endpoint("10.244.1.2"))
    assert plan_service_port(port, endpoints, context()) == plan_service_port(port, endpoints, context())
