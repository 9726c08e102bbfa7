"""The likely cause is named when a Service does not answer."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests import factory
from tests.unit.explain.explaining import NODE, asked, codes, only_port, view_of

from pointsman.backends.contract import Difference
from pointsman.explain.service_port import Explanation, KernelState
from pointsman.model.findings import Finding
from pointsman.model.objects import KubeObject
from pointsman.model.service import Protocol, ServicePortName

REMOTE = {"addresses": ["10.244.2.5"], "nodeName": "n2"}


def cause(explanation: Explanation, code: str) -> Finding:
    every = [*explanation.findings, *(entry for port in explanation.ports for entry in port.findings)]
    (found,) = [entry for entry in every if entry.code == code]
    return found


def balancer(**spec: Any) -> KubeObject:
    return factory.service(
        **{
            "type": "LoadBalancer",
            "ports": [{"name": "http", "port": 80, "protocol": "TCP", "nodePort": 30080}],
            "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.1"}]}},
            **spec,
        }
    )


def test_a_service_that_answers_has_no_cause() -> None:
    explanation = asked(view_of(factory.service(), factory.endpoint_slice("10.244.1.5", REMOTE)), "web")
    assert explanation.is_healthy
    assert codes(explanation) == set()
    uses = {entry.address: entry.uses[0] for entry in only_port(explanation).endpoints}
    assert all(use.used and use.reason == "Ready" for use in uses.values())


def test_not_ready_endpoints_are_listed_with_their_nodes() -> None:
    waiting = {"addresses": ["10.244.2.7"], "nodeName": "n2", "conditions": {"ready": False}}
    explanation = asked(view_of(factory.service(), factory.endpoint_slice(waiting)), "web")
    assert not explanation.is_healthy
    assert "10.244.2.7:8080 on n2 (not ready)" in cause(explanation, "NoReadyEndpoints").message


def test_no_slice_at_all() -> None:
    explanation = asked(view_of(factory.service()), "web")
    assert "kubernetes.io/service-name=web" in cause(explanation, "NoEndpointSlices").remedy


def test_slices_without_endpoints() -> None:
    explanation = asked(view_of(factory.service(), factory.endpoint_slice()), "web")
    assert "default/web-a" in cause(explanation, "EmptyEndpointSlices").message


def test_port_names_that_differ_between_service_and_slices() -> None:
    other = factory.endpoint_slice("10.244.1.5", ports=[{"name": "web", "port": 8080}])
    message = cause(asked(view_of(factory.service(), other), "web"), "PortNameMismatch").message
    assert "'http'/TCP" in message
    assert "'web'/TCP" in message


def test_policy_local_and_none_here_names_the_nodes_that_have_one() -> None:
    view = view_of(balancer(externalTrafficPolicy="Local"), factory.endpoint_slice(REMOTE))
    found = cause(asked(view, "web"), "NoLocalEndpoint")
    assert "they run on n2" in found.message
    assert "externalTrafficPolicy" in found.message
    assert asked(view, "web", "pod").is_healthy
    assert not asked(view, "web", "outside").is_healthy


@pytest.mark.parametrize("theirs", ["N1", "n1.example.org"])
def test_node_name_mismatch_is_recognised(theirs: str) -> None:
    here = {"addresses": ["10.244.1.5"], "nodeName": theirs}
    view = view_of(factory.service(internalTrafficPolicy="Local"), factory.endpoint_slice(here))
    explanation = asked(view, "web")
    assert f"--hostname-override={theirs}" in cause(explanation, "NodeNameMismatch").remedy
    assert "NoLocalEndpoint" not in codes(explanation)


def test_source_ranges_that_exclude_the_client() -> None:
    view = view_of(balancer(loadBalancerSourceRanges=["192.0.2.0/24"]), factory.endpoint_slice("10.244.1.5"))
    assert "192.0.2.0/24" in cause(asked(view, "203.0.113.1:80", "9.9.9.9"), "SourceRanges").message
    assert asked(view, "203.0.113.1:80", "192.0.2.9").is_healthy


def test_node_ports_outside_node_port_addresses() -> None:
    view = view_of(balancer(), factory.endpoint_slice("10.244.1.5"))
    assert asked(view, "192.168.1.10:30080").is_healthy
    found = cause(asked(view, "192.168.1.11:30080"), "NodePortAddresses")
    assert "192.168.1.10" in found.message
    assert "loopback" in cause(asked(view, "127.0.0.1:30080"), "NodePortAddresses").message
    everywhere = view_of(balancer(), factory.endpoint_slice("10.244.1.5"), mode="iptables")
    assert asked(everywhere, "192.168.1.11:30080").is_healthy
    assert asked(everywhere, "127.0.0.1:30080").is_healthy


def test_load_balancer_addresses_left_to_the_balancer() -> None:
    proxied = balancer(status={"loadBalancer": {"ingress": [{"ip": "203.0.113.1", "ipMode": "Proxy"}]}})
    view = view_of(proxied, factory.endpoint_slice("10.244.1.5"))
    assert "IPModeProxy" in codes(asked(view, "203.0.113.1:80"))
    assert not cause(asked(view, "web"), "IPModeProxy").is_error
    spelled_long = balancer(
        status={"loadBalancer": {"ingress": [{"ip": "2001:db8:0:0::1", "ipMode": "Proxy"}]}}
    )
    assert "IPModeProxy" in codes(asked(view_of(spelled_long), "[2001:db8::1]:80"))
    pending = view_of(balancer(status={}), factory.endpoint_slice("10.244.1.5"))
    assert "NoLoadBalancerAddress" in codes(asked(pending, "web"))


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ({"clusterIP": "None"}, "Headless"),
        ({"type": "ExternalName", "clusterIP": ""}, "ExternalName"),
        ({"metadata": {"labels": {"service.kubernetes.io/service-proxy-name": "x"}}}, "OtherProxy"),
    ],
)
def test_services_that_are_not_for_this_proxy(spec: dict[str, Any], code: str) -> None:
    explanation = asked(view_of(factory.service(**spec)), "web")
    assert not explanation.is_healthy
    assert cause(explanation, code).object.key == "default/web"
    assert cause(explanation, code).remedy


def test_a_difference_of_a_service_with_nearly_the_same_long_name_is_not_ours() -> None:
    ours, theirs = ("s" * 62 + letter for letter in "ab")
    view = view_of(
        factory.service(ours, namespace="n" * 63),
        factory.service(theirs, namespace="n" * 63, clusterIP="10.96.0.11"),
    )
    missing = Difference(
        "map endpoints", "10.244.1.5 . 80", "", ServicePortName("n" * 63, theirs, "http", Protocol.TCP)
    )
    families = [msgspec.structs.replace(family, differences=(missing,)) for family in view.families]
    view = msgspec.structs.replace(view, families=tuple(families))
    assert only_port(asked(view, f"{'n' * 63}/{ours}")).kernel.state is KernelState.PRESENT
    assert only_port(asked(view, f"{'n' * 63}/{theirs}")).kernel.state is KernelState.MISSING


def test_an_address_lost_to_an_older_service() -> None:
    older = factory.service("old", externalIPs=["198.51.100.1"], metadata={"creationTimestamp": "2020"})
    newer = factory.service(
        "new",
        clusterIP="10.96.0.11",
        externalIPs=["198.51.100.1"],
        metadata={"creationTimestamp": "2021"},
    )
    view = view_of(older, newer, factory.endpoint_slice("10.244.1.5", service_name="old"))
    assert "default/old" in cause(asked(view, "new"), "ContestedAddress").message
    assert only_port(asked(view, "198.51.100.1:80")).service == "default/old"


def test_an_address_of_the_service_range_answers_and_is_warned_of() -> None:
    web = factory.service(externalIPs=["10.96.0.77"])
    objects = (web, factory.endpoint_slice("10.244.1.5"), factory.service_cidr("10.96.0.0/12"))
    explanation = asked(view_of(*objects), "10.96.0.77:80")
    assert explanation.is_healthy
    assert not cause(explanation, "AddressInServiceRange").is_error
    owner = factory.service("owner", clusterIP="10.96.0.77", ports=[{"port": 443}])
    taken = asked(view_of(*objects, owner), "10.96.0.77:80")
    assert not taken.is_healthy
    assert "default/owner" in cause(taken, "AddressIsClusterIP").message


def test_an_address_is_not_contested_because_a_longer_one_is() -> None:
    older = factory.service("old", externalIPs=["198.51.100.12"], metadata={"creationTimestamp": "2020"})
    newer = factory.service(
        "new",
        clusterIP="10.96.0.11",
        externalIPs=["198.51.100.1", "198.51.100.12"],
        metadata={"creationTimestamp": "2021"},
    )
    view = view_of(older, newer)
    assert "ContestedAddress" not in codes(asked(view, "198.51.100.1:80/udp"))
    assert "default/old" in cause(asked(view, "198.51.100.12:80/udp"), "ContestedAddress").message


def test_a_cluster_ip_that_another_service_has() -> None:
    view = view_of(
        factory.service("old", metadata={"creationTimestamp": "2020"}),
        factory.service("new", metadata={"creationTimestamp": "2021"}),
    )
    assert "default/old" in cause(asked(view, "new"), "ContestedClusterIP").message


def test_forbidden_addresses_are_reported() -> None:
    view = view_of(factory.service(externalIPs=["127.0.0.1"]), factory.endpoint_slice("10.244.1.5"))
    assert "127.0.0.1" in cause(asked(view, "web"), "ForbiddenAddress").message


def test_hints_that_are_ignored_and_hints_that_count() -> None:
    def hinted(address: str, zone: str) -> dict[str, Any]:
        return {"addresses": [address], "nodeName": "n2", "hints": {"forZones": [{"name": zone}]}}

    ignored = view_of(factory.service(), factory.endpoint_slice(hinted("10.244.2.5", "zone-b")))
    assert "zone-a" in cause(asked(ignored, "web"), "HintsIgnored").message
    counted = view_of(
        factory.service(),
        factory.endpoint_slice(hinted("10.244.2.5", "zone-b"), hinted("10.244.2.6", "zone-a")),
    )
    port = only_port(asked(counted, "web"))
    assert (port.topology, port.topology_target) == ("PreferSameZone", "zone-a")
    assert [entry.uses[0].used for entry in port.endpoints] == [False, True]


def test_unknown_services_get_suggestions() -> None:
    view = view_of(factory.service("frontend", namespace="shop"))
    assert "shop/frontend" in cause(asked(view, "fronted"), "NoSuchService").remedy
    assert asked(view, "frontend").ports[0].service == "shop/frontend"
    assert "'https'" in cause(asked(view, "frontend:https"), "NoSuchPort").message


@pytest.mark.parametrize(
    ("mode", "words"),
    [("nftables", "are rejected"), ("iptables", "bypass this proxy"), ("ipvs", "are rejected")],
)
def test_wrong_port_of_a_cluster_ip(mode: str, words: str) -> None:
    view = view_of(factory.service(), factory.endpoint_slice("10.244.1.5"), mode=mode)
    assert words in cause(asked(view, "10.96.0.10:81"), "WrongPort").message


def test_addresses_without_a_service() -> None:
    from pointsman.model.objects import Meta, ServiceCIDR, ServiceCIDRSpec

    ranges = ServiceCIDR(Meta(name="kubernetes"), ServiceCIDRSpec(["10.96.0.0/16"]))
    view = view_of(NODE, ranges, factory.service(), factory.endpoint_slice("10.244.1.5"))
    assert "dropped" in cause(asked(view, "10.96.7.7:80"), "NoServiceAtAddress").message
    assert "NotAServiceAddress" in codes(asked(view, "192.0.2.1:80"))
    assert "EndpointUsed" in codes(asked(view, "10.244.1.5:8080"))
    assert "NodeAddress" in codes(asked(view, "192.168.1.10:22"))
    assert "NoSuchNodePort" in codes(asked(view, ":31000"))
    assert "NoServiceAtAddress" in codes(asked(view, "10.96.7.7"))


def test_node_ports_that_answer_nowhere_because_the_primary_address_is_not_on_the_node() -> None:
    outside = factory.node("n1", addresses=[{"type": "Hostname", "address": "n1"}])
    view = view_of(
        outside, balancer(), factory.endpoint_slice("10.244.1.5"), node_port_addresses=("203.0.113.0/24",)
    )
    explanation = asked(view, ":30080", "outside")
    assert not explanation.is_healthy
    assert "NoNodePortAddress" in codes(explanation)


@pytest.mark.parametrize(
    ("mode", "advice"),
    [
        ("nftables", "in nftables mode the default is the node's primary address"),
        ("iptables", "without nodePortAddresses, node ports are served at every address of this node"),
        ("ipvs", "without nodePortAddresses, node ports are served at every address of this node"),
    ],
)
def test_node_ports_that_answer_nowhere_come_with_the_default_of_the_mode(mode: str, advice: str) -> None:
    view = view_of(
        balancer(),
        factory.endpoint_slice("10.244.1.5"),
        mode=mode,
        node_port_addresses=("203.0.113.0/24",),
    )
    assert advice in cause(asked(view, ":30080"), "NoNodePortAddress").remedy
