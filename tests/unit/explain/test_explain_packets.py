"""What explain says about packets equals what the proxy was seen to do with them."""

from __future__ import annotations

from typing import Any

import pytest
from tests import factory
from tests.unit.explain.explaining import NODE, asked, path_of, view_of

from pointsman.explain.view import View

HERE = {"addresses": ["10.244.1.5"], "nodeName": "n1"}
THERE = {"addresses": ["10.244.2.5"], "nodeName": "n2"}
KINDS = ("ClusterIP", "LoadBalancerIP", "ExternalIP", "NodePort")
EXTERNAL = KINDS[1:]


def balanced(*endpoints: dict[str, Any], mode: str = "nftables", view_args: Any = None, **spec: Any) -> View:
    """A Service with every kind of frontend."""
    service = factory.service(
        type="LoadBalancer",
        externalIPs=["198.51.100.1"],
        ports=[{"name": "http", "port": 80, "protocol": "TCP", "nodePort": 30080}],
        status={"loadBalancer": {"ingress": [{"ip": "203.0.113.1"}]}},
        **spec,
    )
    return view_of(service, factory.endpoint_slice(*endpoints), mode=mode, **(view_args or {}))


@pytest.mark.parametrize("mode", ["nftables", "iptables", "ipvs"])
@pytest.mark.parametrize(
    ("kind", "client", "kept"),
    [
        ("ClusterIP", "pod", True),
        ("ClusterIP", "node", False),
        ("ClusterIP", "outside", False),
        *[(kind, client, False) for kind in EXTERNAL for client in ("pod", "node", "outside")],
    ],
)
def test_source_with_policy_cluster(mode: str, kind: str, client: str, kept: bool) -> None:
    path = path_of(balanced(HERE, THERE, mode=mode), "web", kind, client)
    assert path.answered
    assert len(path.endpoints) == 2
    assert path.source.startswith("kept") is kept


@pytest.mark.parametrize("mode", ["nftables", "iptables"])
@pytest.mark.parametrize(
    ("client", "endpoints", "source"),
    [("pod", 2, "kept"), ("node", 2, "becomes"), ("outside", 1, "kept")],
)
@pytest.mark.parametrize("kind", EXTERNAL)
def test_policy_local_short_circuits_pods_and_the_node(
    mode: str, kind: str, client: str, endpoints: int, source: str
) -> None:
    view = balanced(HERE, THERE, mode=mode, externalTrafficPolicy="Local")
    path = path_of(view, "web", kind, client)
    assert len(path.endpoints) == endpoints
    assert path.source.startswith(source)


def test_policy_local_in_ipvs_mode_has_no_short_circuit_while_there_are_local_endpoints() -> None:
    view = balanced(HERE, THERE, mode="ipvs", externalTrafficPolicy="Local")
    for client in ("pod", "node", "outside"):
        assert path_of(view, "web", "LoadBalancerIP", client).endpoints == ("10.244.1.5:8080",)
    assert "203.0.113.1" in path_of(view, "web", "LoadBalancerIP", "node").source
    remote = balanced(THERE, mode="ipvs", externalTrafficPolicy="Local")
    assert path_of(remote, "web", "NodePort", "pod").answered
    assert "past this node" in path_of(remote, "web", "NodePort", "outside").result


@pytest.mark.parametrize("mode", ["nftables", "iptables"])
def test_policy_local_without_local_endpoints_is_silence_and_without_any_a_refusal(mode: str) -> None:
    remote = balanced(THERE, mode=mode, externalTrafficPolicy="Local")
    path = path_of(remote, "web", "LoadBalancerIP", "outside")
    assert not path.answered
    assert "silently dropped" in path.result
    none = balanced(mode=mode, externalTrafficPolicy="Local")
    assert "refused" in path_of(none, "web", "LoadBalancerIP", "outside").result


@pytest.mark.parametrize(
    ("mode", "word"), [("nftables", "silently"), ("iptables", "silently"), ("ipvs", "refused")]
)
def test_internal_policy_local_with_remote_endpoints_only(mode: str, word: str) -> None:
    view = view_of(factory.service(internalTrafficPolicy="Local"), factory.endpoint_slice(THERE), mode=mode)
    assert word in path_of(view, "web", "ClusterIP", "pod").result


def test_without_endpoints_the_node_times_out_at_external_addresses_in_iptables_mode_only() -> None:
    assert "times out" in path_of(balanced(mode="iptables"), "web", "ExternalIP", "node").result
    assert "refused" in path_of(balanced(mode="nftables"), "web", "ExternalIP", "node").result
    assert "refused" in path_of(balanced(mode="iptables"), "web", "NodePort", "node").result


def test_without_local_detection_cluster_ip_traffic_keeps_its_source_and_pods_lose_the_short_circuit() -> (
    None
):
    view = balanced(HERE, THERE, externalTrafficPolicy="Local", view_args={"cluster_cidr": ""})
    for client in ("pod", "node", "outside"):
        assert path_of(view, "web", "ClusterIP", client).source.startswith("kept")
    assert len(path_of(view, "web", "NodePort", "pod").endpoints) == 1
    assert len(path_of(view, "web", "NodePort", "node").endpoints) == 2


def test_hairpin_and_endpoints_on_the_node_itself_are_named() -> None:
    view = balanced(HERE, THERE)
    assert "reaching itself" in path_of(view, "web", "ClusterIP", "10.244.1.5").source
    assert path_of(view, "web", "ClusterIP", "10.244.1.9").source == "kept"
    itself = {"addresses": ["192.168.1.10"], "nodeName": "n1"}
    assert path_of(balanced(itself), "web", "NodePort", "outside").source.startswith("kept")
    assert "this node itself: kept" in path_of(balanced(itself, THERE), "web", "NodePort", "outside").source


def test_source_ranges_apply_to_the_load_balancer_address_only() -> None:
    view = balanced(HERE, loadBalancerSourceRanges=["192.0.2.0/24"])
    denied = path_of(view, "web", "LoadBalancerIP", "9.9.9.9")
    assert (denied.answered, denied.restricted) == (False, True)
    assert path_of(view, "web", "LoadBalancerIP", "192.0.2.7").answered
    assert path_of(view, "web", "NodePort", "9.9.9.9").answered
    assert path_of(view, "web", "ExternalIP", "9.9.9.9").answered
    assert not path_of(view, "web", "LoadBalancerIP", "node").answered
    own = balanced(HERE, loadBalancerSourceRanges=["192.168.1.0/24"])
    assert path_of(own, "web", "LoadBalancerIP", "node").answered


EVERYWHERE = {"annotations": {"pointsman.dev/source-ranges": "all"}}


@pytest.mark.parametrize("mode", ["nftables", "iptables"])
def test_source_ranges_apply_to_every_external_frontend_where_asked(mode: str) -> None:
    view = balanced(HERE, mode=mode, loadBalancerSourceRanges=["192.0.2.0/24"], metadata=EVERYWHERE)
    for kind in ("LoadBalancerIP", "ExternalIP", "NodePort"):
        denied = path_of(view, "web", kind, "9.9.9.9")
        assert (denied.answered, denied.restricted) == (False, True)
        assert path_of(view, "web", kind, "192.0.2.7").answered
        assert not path_of(view, "web", kind, "node").answered
    assert path_of(view, "web", "ClusterIP", "9.9.9.9").answered
    (cause,) = [c for c in asked(view, "web", "9.9.9.9").ports[0].causes if c.code == "SourceRanges"]
    assert cause.message.startswith("every frontend but the cluster IP drops")
    assert cause.advice.endswith("; the cluster IP is not restricted")


def test_a_mode_that_cannot_guard_node_ports_says_so() -> None:
    view = balanced(HERE, mode="ipvs", loadBalancerSourceRanges=["192.0.2.0/24"], metadata=EVERYWHERE)
    assert path_of(view, "web", "NodePort", "9.9.9.9").answered
    causes = {cause.code: cause for cause in asked(view, "web").ports[0].causes}
    assert "load balancer addresses only" in causes["SourceRangesNotPossible"].message


@pytest.mark.parametrize("mode", ["nftables", "iptables", "ipvs"])
def test_unreadable_source_ranges_close_the_load_balancer_address(mode: str) -> None:
    view = balanced(HERE, mode=mode, loadBalancerSourceRanges=["10.0.0.0/33"])
    for client in ("9.9.9.9", "10.0.0.1", "node"):
        assert not path_of(view, "web", "LoadBalancerIP", client).answered
    assert path_of(view, "web", "NodePort", "9.9.9.9").answered


def test_clients_are_told_apart_by_their_address() -> None:
    view = balanced(HERE, THERE)
    assert "this node itself" in path_of(view, "web", "ClusterIP", "192.168.1.10").client
    assert "pod" in path_of(view, "web", "ClusterIP", "10.244.7.7").client
    assert "external client" in path_of(view, "web", "ClusterIP", "8.8.8.8").client
    by_interface = view_of(
        factory.service(),
        factory.endpoint_slice(HERE),
        NODE,
        detect_local_mode="BridgeInterface",
        cluster_cidr="",
    )
    assert "(a pod)" in path_of(by_interface, "web", "ClusterIP", "10.244.1.5").client


def test_masquerade_all_masquerades_pods_at_cluster_ips_too() -> None:
    from pointsman.config.types import NFTables

    view = balanced(HERE, THERE, view_args={"nftables": NFTables(masquerade_all=True)})
    assert path_of(view, "web", "ClusterIP", "pod").source.startswith("becomes")
