"""Objects in files get what an API server would have given them, or are refused as it would have done."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.harness.kube_objects import endpoint_slice, service, service_cidr

from pointsman.model.objects import EndpointSlice, KubeObject, Service
from pointsman.source.documents import parse
from pointsman.wording.findings import render_finding


def load(document: dict[str, Any]) -> tuple[list[KubeObject], list[str]]:
    parsed = parse(json.dumps(document).encode(), "f.json")
    return parsed.objects, [render_finding(finding) for finding in parsed.findings]


def loaded_service(document: dict[str, Any]) -> Service:
    objects, problems = load(document)
    assert problems == []
    assert isinstance(objects[0], Service)
    return objects[0]


def test_a_sparse_service_is_completed() -> None:
    item = loaded_service(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web"},
            "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}], "sessionAffinity": "ClientIP"},
        }
    )
    assert item.metadata.key == "default/web"
    assert item.spec.cluster_ips == ["10.96.0.1"]
    assert item.spec.ip_families == ["IPv4"]
    assert item.spec.internal_traffic_policy == "Cluster"
    assert item.spec.external_traffic_policy is None
    assert item.spec.ports is not None
    assert (item.spec.ports[0].protocol, item.spec.ports[0].target_port) == ("TCP", 80)
    config = item.spec.session_affinity_config
    assert config is not None
    assert config.client_ip is not None
    assert config.client_ip.timeout_seconds == 10800


def test_cluster_ip_comes_from_cluster_ips() -> None:
    document = service("web", clusterIPs=["fd00::1", "10.96.0.1"])
    del document["spec"]["clusterIP"]
    item = loaded_service(document)
    assert item.spec.cluster_ip == "fd00::1"
    assert item.spec.ip_families == ["IPv6", "IPv4"]


@pytest.mark.parametrize("extra", [{"type": "LoadBalancer"}, {"externalIPs": ["192.0.2.1"]}])
def test_external_policy_defaults_to_cluster_where_it_applies(extra: dict[str, Any]) -> None:
    assert loaded_service(service("web", **extra)).spec.external_traffic_policy == "Cluster"


def test_headless_and_external_name_services_need_no_address() -> None:
    assert loaded_service(service("headless", "None", ports=[])).spec.cluster_ip == "None"
    bare = service("elsewhere", type="ExternalName")
    del bare["spec"]["clusterIP"], bare["spec"]["clusterIPs"], bare["spec"]["ports"]
    assert loaded_service(bare).spec.type == "ExternalName"


TWO_PORTS = [{"port": 80, "name": "a"}, {"port": 81}]
SAME_NAME = [{"port": 80, "name": "a"}, {"port": 81, "name": "a"}]
SAME_PORT = [{"port": 80, "name": "a"}, {"port": 80, "name": "b"}]


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"clusterIP": "", "clusterIPs": None}, "spec.clusterIP: required"),
        ({"clusterIP": "10.96.0.300", "clusterIPs": None}, "spec.clusterIPs[0]"),
        ({"clusterIP": "10.96.0.1"}, "spec.clusterIPs[0]: must be the same"),
        ({"clusterIPs": ["10.96.0.10", "10.96.0.11"]}, "spec.clusterIPs: at most one per IP family"),
        ({"ipFamilies": ["IPv6"]}, "spec.ipFamilies"),
        ({"type": "Proxy"}, "spec.type"),
        ({"ports": []}, "spec.ports: required"),
        ({"ports": [{"port": 0}]}, "spec.ports[0].port"),
        ({"ports": [{"port": 70000}]}, "spec.ports[0].port"),
        ({"ports": [{"port": 80, "nodePort": -1}]}, "spec.ports[0].nodePort"),
        ({"ports": [{"port": 80, "targetPort": 65536}]}, "spec.ports[0].targetPort"),
        ({"ports": [{"port": 80, "protocol": "ICMP"}]}, "spec.ports[0].protocol"),
        ({"ports": [{"port": "80"}]}, "spec.ports[0].port: Expected `int`"),
        ({"ports": TWO_PORTS}, "spec.ports[1].name: required"),
        ({"ports": SAME_NAME}, "spec.ports[1].name: 'a' is used twice"),
        ({"ports": SAME_PORT}, "spec.ports[1]: TCP port 80 is used twice"),
        ({"sessionAffinity": "Cookie"}, "spec.sessionAffinity"),
        (
            {"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 90000}}},
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
        ),
        ({"internalTrafficPolicy": "Zone"}, "spec.internalTrafficPolicy"),
        ({"externalTrafficPolicy": "Local"}, "spec.externalTrafficPolicy: only with"),
        ({"type": "NodePort", "externalTrafficPolicy": "local"}, "spec.externalTrafficPolicy: 'local'"),
    ],
)
def test_bad_services_are_refused_by_field(spec: dict[str, Any], field: str) -> None:
    objects, problems = load(service("web", **spec))
    assert objects == []
    assert f"f.json: Service default/web: {field}" in problems[0]


def test_all_problems_of_an_object_are_reported_at_once() -> None:
    _, problems = load(service("web", "", type="Proxy", ports=[{"port": 0}]))
    assert len(problems) == 3


def test_node_port_that_nobody_allocated_is_pointed_out_but_used() -> None:
    objects, problems = load(service("web", type="NodePort"))
    assert len(objects) == 1
    assert "spec.ports[0].nodePort: not set" in problems[0]


def test_a_sparse_slice_is_completed() -> None:
    document = endpoint_slice("web-1", "10.1.0.1")
    document["ports"] = [{"port": 8080}]
    del document["metadata"]["namespace"]
    objects, problems = load(document)
    assert problems == []
    assert isinstance(objects[0], EndpointSlice)
    assert objects[0].metadata.key == "default/web-1"
    assert objects[0].ports is not None
    assert (objects[0].ports[0].name, objects[0].ports[0].protocol) == ("", "TCP")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"addressType": "IPv5"}, "addressType"),
        ({"addressType": "IPv6"}, "endpoints[0].addresses[0]: '10.1.0.1' is not an IPv6 address"),
        ({"endpoints": [{"addresses": []}]}, "endpoints[0].addresses: required"),
        ({"endpoints": [{"addresses": ["10.1.0"]}]}, "endpoints[0].addresses[0]"),
        ({"endpoints": [{"addresses": "10.1.0.1"}]}, "endpoints[0].addresses: Expected `array"),
        ({"ports": [{"port": 0}]}, "ports[0].port"),
        ({"ports": [{"port": 1}, {"port": 2}]}, "ports[1].name: '' is used twice"),
        ({"ports": [{"port": 1, "protocol": "tcp"}]}, "ports[0].protocol"),
        ({"metadata": {"name": "web-1"}}, "metadata.labels[kubernetes.io/service-name]: required"),
        ({"metadata": {"namespace": "shop"}}, "metadata.name: required"),
    ],
)
def test_bad_slices_are_refused_by_field(change: dict[str, Any], field: str) -> None:
    objects, problems = load(endpoint_slice("web-1", "10.1.0.1") | change)
    assert objects == []
    assert field in problems[0]


def test_sloppy_addresses_of_old_objects_are_accepted() -> None:
    assert load(endpoint_slice("web-1", "010.001.0.1"))[1] == []
    assert loaded_service(service("web", "010.96.0.1")).spec.ip_families == ["IPv4"]


def test_service_cidr_must_hold_ranges() -> None:
    assert load(service_cidr("kubernetes", "10.96.0.0/12"))[1] == []
    assert "spec.cidrs[1]" in load(service_cidr("kubernetes", "10.96.0.0/12", "10.96.0.0"))[1][0]
