from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factory import endpoint, endpoint_slice

from pointsman.model.addresses import Family
from pointsman.model.endpoint import Endpoint
from pointsman.model.objects import EndpointSlice
from pointsman.model.service import Protocol
from pointsman.model.slices import MAX_ENDPOINT_PORTS, merge_endpoints, parse_slice_endpoints

HTTP = ("http", Protocol.TCP)


def endpoints(made: EndpointSlice, family: Family = Family.IPV4) -> tuple[Endpoint, ...]:
    found, findings = parse_slice_endpoints(made, family, "n1")
    assert findings == []
    return found.get(HTTP, ())


def test_endpoints_are_ordered_by_their_text() -> None:
    made = endpoint_slice("10.244.2.1", "10.244.2.10", "10.244.1.9")
    assert [str(e) for e in endpoints(made)] == ["10.244.1.9:8080", "10.244.2.10:8080", "10.244.2.1:8080"]


@pytest.mark.parametrize(
    ("conditions", "ready", "serving", "terminating"),
    [
        (None, True, True, False),
        ({}, True, True, False),
        ({"ready": False}, False, True, False),
        ({"ready": False, "terminating": True}, False, True, True),
        ({"ready": True, "serving": False, "terminating": True}, True, False, True),
        ({"ready": False, "serving": False, "terminating": True}, False, False, True),
    ],
)
def test_absent_conditions_have_the_meaning_of_the_api(
    conditions: dict[str, bool] | None, ready: bool, serving: bool, terminating: bool
) -> None:
    (found,) = endpoints(endpoint_slice({"addresses": ["10.244.1.1"], "conditions": conditions}))
    assert (found.ready, found.serving, found.terminating) == (ready, serving, terminating)


def test_only_an_endpoint_of_this_node_is_local() -> None:
    made = endpoint_slice(
        {"addresses": ["10.244.1.1"], "nodeName": "n1"},
        {"addresses": ["10.244.1.2"], "nodeName": "n2"},
        {"addresses": ["10.244.1.3"]},
    )
    assert [e.local for e in endpoints(made)] == [True, False, False]


def test_only_the_first_address_counts() -> None:
    (found,) = endpoints(endpoint_slice({"addresses": ["10.244.1.1", "10.244.1.2"]}))
    assert str(found) == "10.244.1.1:8080"


def test_sloppy_addresses_are_decimal() -> None:
    (found,) = endpoints(endpoint_slice("010.244.001.01"))
    assert str(found) == "10.244.1.1:8080"


def test_fqdn_and_other_families_are_ignored() -> None:
    assert endpoints(endpoint_slice("example.com", family="FQDN")) == ()
    assert endpoints(endpoint_slice("fd00::1", family="IPv6")) == ()
    assert len(endpoints(endpoint_slice("fd00::1", family="IPv6"), Family.IPV6)) == 1


def test_hints_are_kept() -> None:
    hints = {"forZones": [{"name": "a"}, {"name": "b"}], "forNodes": [{"name": "n1"}]}
    (found,) = endpoints(endpoint_slice({"addresses": ["10.244.1.1"], "hints": hints}))
    assert (found.state.zone_hints, found.state.node_hints) == (("a", "b"), ("n1",))


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1", "ForbiddenEndpointAddress"),
        ("169.254.169.254", "ForbiddenEndpointAddress"),
        ("0.0.0.0", "ForbiddenEndpointAddress"),
        ("10.0.0.999", "BadEndpointAddress"),
        ("fd00::1", "WrongFamilyEndpoint"),
    ],
)
def test_unusable_addresses_are_left_out_and_named(address: str, reason: str) -> None:
    found, findings = parse_slice_endpoints(endpoint_slice(address, "10.244.1.1"), Family.IPV4, "n1")
    assert [str(e) for e in found[HTTP]] == ["10.244.1.1:8080"]
    assert [finding.code.value for finding in findings] == [reason]


@pytest.mark.parametrize(
    "port", [{"name": "http"}, {"name": "http", "port": 0}, {"name": "http", "port": 1, "protocol": "X"}]
)
def test_unusable_ports_are_left_out(port: dict[str, Any]) -> None:
    found, findings = parse_slice_endpoints(endpoint_slice("10.244.1.1", ports=[port]), Family.IPV4, "n1")
    assert found == {}
    assert [finding.code.value for finding in findings] == ["BadEndpointPort"]


def test_an_endpoint_without_addresses_is_reported() -> None:
    _, findings = parse_slice_endpoints(endpoint_slice({"addresses": []}), Family.IPV4, "n1")
    assert [finding.code.value for finding in findings] == ["EndpointWithoutAddress"]


def test_the_better_state_of_a_duplicate_wins_in_any_order() -> None:
    ready = endpoint(ready=True)
    draining = endpoint(ready=False, terminating=True)
    assert merge_endpoints([(ready,), (draining,)]) == merge_endpoints([(draining,), (ready,)]) == (ready,)


def test_a_new_pod_wins_over_a_leaving_one_with_its_address_even_before_it_is_ready() -> None:
    starting = endpoint(ready=False, serving=False)
    leaving = endpoint(ready=True, terminating=True)
    assert (
        merge_endpoints([(starting,), (leaving,)])
        == merge_endpoints([(leaving,), (starting,)])
        == (starting,)
    )


def test_a_duplicate_inside_one_slice_counts_once() -> None:
    assert len(endpoints(endpoint_slice("10.244.1.1", "10.244.1.1"))) == 1


_endpoints = st.lists(
    st.builds(
        endpoint,
        st.sampled_from(["10.244.1.1", "10.244.1.2", "10.244.1.10"]),
        st.sampled_from([80, 8080]),
        ready=st.booleans(),
        serving=st.booleans(),
        terminating=st.booleans(),
        local=st.booleans(),
    ),
    max_size=8,
)


@given(_endpoints, _endpoints)
def test_merging_does_not_depend_on_order(first: list[Endpoint], second: list[Endpoint]) -> None:
    one = merge_endpoints([tuple(first), tuple(second)])
    assert one == merge_endpoints([tuple(reversed(second)), tuple(reversed(first))])
    assert one == merge_endpoints([one])
    assert len({str(e) for e in one}) == len(one)


def test_a_slice_holds_no_more_endpoints_times_ports_than_a_node_can() -> None:
    addresses = [f"10.244.{number // 250}.{number % 250 + 1}" for number in range(1000)]
    ports = [{"name": f"p{number}", "port": number + 1} for number in range(20_000)]
    found, (finding,) = parse_slice_endpoints(endpoint_slice(*addresses, ports=ports), Family.IPV4, "n1")
    assert sum(map(len, found.values())) == MAX_ENDPOINT_PORTS
    assert finding.code.value == "TooManyEndpointPorts"
    assert finding.parameters == {"port": "p100", "endpoints": 1000, "limit": 100_000}
