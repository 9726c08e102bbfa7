"""What explain says about packets equals what the proxy was seen to do with them."""

from __future__ import annotations

from typing import Any

import pytest
from tests import factory
from tests.unit.explain.explaining import NODE, asked, path_of, view_of

from pointsman.explain.view import View
from pointsman.model.decision import ClientKind, DecisionReason, SourceAddress
from pointsman.model.findings import Code
from pointsman.model.plan import Outcome

HERE = {"addresses": ["10.244.1.5"], "nodeName": "n1"}
THERE = {"addresses": ["10.244.2.5"], "nodeName": "n2"}
KINDS = ("ClusterIP", "LoadBalancerIP", "ExternalIP", "NodePort")
EXTERNAL = KINDS[1:]
KEPT = (SourceAddress.KEPT, SourceAddress.KEPT_EXCEPT_HAIRPIN, SourceAddress.KEPT_ON_NODE)


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
    assert path.is_delivered
    assert len(path.endpoints) == 2
    assert (path.source in KEPT) is kept


@pytest.mark.parametrize("mode", ["nftables", "iptables"])
@pytest.mark.parametrize(
    ("client", "endpoints", "kept"),
    [("pod", 2, True), ("node", 2, False), ("outside", 1, True)],
)
@pytest.mark.parametrize("kind", EXTERNAL)
def test_policy_local_short_circuits_pods_and_the_node(
    mode: str, kind: str, client: str, endpoints: int, kept: bool
) -> None:
    view = balanced(HERE, THERE, mode=mode, externalTrafficPolicy="Local")
    path = path_of(view, "web", kind, client)
    assert len(path.endpoints) == endpoints
    assert (path.source in KEPT) is kept


def test_policy_local_in_ipvs_mode_has_no_short_circuit_while_there_are_local_endpoints() -> None:
    view = balanced(HERE, THERE, mode="ipvs", externalTrafficPolicy="Local")
    for client in ("pod", "node", "outside"):
        assert path_of(view, "web", "LoadBalancerIP", client).endpoints == ("10.244.1.5:8080",)
    assert path_of(view, "web", "LoadBalancerIP", "node").source is SourceAddress.FRONTEND
    remote = balanced(THERE, mode="ipvs", externalTrafficPolicy="Local")
    assert path_of(remote, "web", "NodePort", "pod").is_delivered
    bypassed = path_of(remote, "web", "NodePort", "outside")
    assert (bypassed.outcome, bypassed.reason) == (Outcome.DROPPED, DecisionReason.REPLIES_BYPASS_NODE)


@pytest.mark.parametrize("mode", ["nftables", "iptables"])
def test_policy_local_without_local_endpoints_is_silence_and_without_any_a_refusal(mode: str) -> None:
    remote = balanced(THERE, mode=mode, externalTrafficPolicy="Local")
    path = path_of(remote, "web", "LoadBalancerIP", "outside")
    assert (path.outcome, path.reason) == (Outcome.DROPPED, DecisionReason.NO_LOCAL_ENDPOINT)
    none = balanced(mode=mode, externalTrafficPolicy="Local")
    assert path_of(none, "web", "LoadBalancerIP", "outside").outcome is Outcome.REJECTED


@pytest.mark.parametrize(
    ("mode", "outcome"),
    [("nftables", Outcome.DROPPED), ("iptables", Outcome.DROPPED), ("ipvs", Outcome.REJECTED)],
)
def test_internal_policy_local_with_remote_endpoints_only(mode: str, outcome: Outcome) -> None:
    view = view_of(factory.service(internalTrafficPolicy="Local"), factory.endpoint_slice(THERE), mode=mode)
    assert path_of(view, "web", "ClusterIP", "pod").outcome is outcome


def test_without_endpoints_the_node_times_out_at_external_addresses_in_iptables_mode_only() -> None:
    left = path_of(balanced(mode="iptables"), "web", "ExternalIP", "node")
    assert (left.outcome, left.reason) == (Outcome.DROPPED, DecisionReason.LEAVES_NODE)
    assert path_of(balanced(mode="nftables"), "web", "ExternalIP", "node").outcome is Outcome.REJECTED
    assert path_of(balanced(mode="iptables"), "web", "NodePort", "node").outcome is Outcome.REJECTED


def test_without_local_detection_cluster_ip_traffic_keeps_its_source_and_pods_lose_the_short_circuit() -> (
    None
):
    view = balanced(HERE, THERE, externalTrafficPolicy="Local", view_args={"cluster_cidr": ""})
    for client in ("pod", "node", "outside"):
        assert path_of(view, "web", "ClusterIP", client).source in KEPT
    assert len(path_of(view, "web", "NodePort", "pod").endpoints) == 1
    assert len(path_of(view, "web", "NodePort", "node").endpoints) == 2


def test_hairpin_and_endpoints_on_the_node_itself_are_named() -> None:
    view = balanced(HERE, THERE)
    hairpin = path_of(view, "web", "ClusterIP", "10.244.1.5")
    assert hairpin.source is SourceAddress.KEPT_EXCEPT_HAIRPIN
    assert path_of(view, "web", "ClusterIP", "10.244.1.9").source is SourceAddress.KEPT
    itself = {"addresses": ["192.168.1.10"], "nodeName": "n1"}
    assert path_of(balanced(itself), "web", "NodePort", "outside").source is SourceAddress.KEPT_ON_NODE
    mixed = path_of(balanced(itself, THERE), "web", "NodePort", "outside")
    assert mixed.source is SourceAddress.MASQUERADED_EXCEPT_NODE


def test_source_ranges_apply_to_the_load_balancer_address_only() -> None:
    view = balanced(HERE, loadBalancerSourceRanges=["192.0.2.0/24"])
    denied = path_of(view, "web", "LoadBalancerIP", "9.9.9.9")
    assert (denied.is_delivered, denied.is_restricted) == (False, True)
    assert path_of(view, "web", "LoadBalancerIP", "192.0.2.7").is_delivered
    assert path_of(view, "web", "NodePort", "9.9.9.9").is_delivered
    assert path_of(view, "web", "ExternalIP", "9.9.9.9").is_delivered
    assert not path_of(view, "web", "LoadBalancerIP", "node").is_delivered
    own = balanced(HERE, loadBalancerSourceRanges=["192.168.1.0/24"])
    assert path_of(own, "web", "LoadBalancerIP", "node").is_delivered


EVERYWHERE = {"annotations": {"pointsman.dev/source-ranges": "all"}}


@pytest.mark.parametrize("mode", ["nftables", "iptables"])
def test_source_ranges_apply_to_every_external_frontend_where_asked(mode: str) -> None:
    view = balanced(HERE, mode=mode, loadBalancerSourceRanges=["192.0.2.0/24"], metadata=EVERYWHERE)
    for kind in ("LoadBalancerIP", "ExternalIP", "NodePort"):
        denied = path_of(view, "web", kind, "9.9.9.9")
        assert (denied.is_delivered, denied.is_restricted) == (False, True)
        assert path_of(view, "web", kind, "192.0.2.7").is_delivered
        assert not path_of(view, "web", kind, "node").is_delivered
    assert path_of(view, "web", "ClusterIP", "9.9.9.9").is_delivered
    (cause,) = [c for c in asked(view, "web", "9.9.9.9").ports[0].findings if c.code == "SourceRanges"]
    assert cause.message.startswith("every frontend but the cluster IP drops")
    assert cause.remedy.endswith("; the cluster IP is not restricted")


def test_a_mode_that_cannot_guard_node_ports_says_so() -> None:
    view = balanced(HERE, mode="ipvs", loadBalancerSourceRanges=["192.0.2.0/24"], metadata=EVERYWHERE)
    assert path_of(view, "web", "NodePort", "9.9.9.9").is_delivered
    causes = {cause.code: cause for cause in asked(view, "web").ports[0].findings}
    assert "load balancer addresses only" in causes[Code.SOURCE_RANGES_NOT_POSSIBLE].message


@pytest.mark.parametrize("mode", ["nftables", "iptables", "ipvs"])
def test_unreadable_source_ranges_close_the_load_balancer_address(mode: str) -> None:
    view = balanced(HERE, mode=mode, loadBalancerSourceRanges=["10.0.0.0/33"])
    for client in ("9.9.9.9", "10.0.0.1", "node"):
        assert not path_of(view, "web", "LoadBalancerIP", client).is_delivered
    assert path_of(view, "web", "NodePort", "9.9.9.9").is_delivered


def test_clients_are_told_apart_by_their_address() -> None:
    view = balanced(HERE, THERE)
    assert path_of(view, "web", "ClusterIP", "192.168.1.10").client is ClientKind.NODE
    assert path_of(view, "web", "ClusterIP", "10.244.7.7").client is ClientKind.POD
    assert path_of(view, "web", "ClusterIP", "8.8.8.8").client is ClientKind.OUTSIDE
    by_interface = view_of(
        factory.service(),
        factory.endpoint_slice(HERE),
        NODE,
        detect_local_mode="BridgeInterface",
        cluster_cidr="",
    )
    assert path_of(by_interface, "web", "ClusterIP", "10.244.1.5").client is ClientKind.POD


def test_masquerade_all_masquerades_pods_at_cluster_ips_too() -> None:
    from pointsman.config.types import NFTables

    view = balanced(HERE, THERE, view_args={"nftables": NFTables(masquerade_all=True)})
    assert path_of(view, "web", "ClusterIP", "pod").source is SourceAddress.MASQUERADED
