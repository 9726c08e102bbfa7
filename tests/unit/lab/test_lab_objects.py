from __future__ import annotations

from pointsman.lab.objects import Backend, LabService, backends, node_manifest
from pointsman.lab.proxy import configuration


def test_a_service_has_slices_of_both_families_with_its_ports_and_backends() -> None:
    service, first, second = LabService("web", 7, backends("pod1", "pod4")).manifests()
    assert service["spec"]["clusterIPs"] == ["10.96.1.7", "fd00:10:96::7"]
    assert [made["addressType"] for made in (first, second)] == ["IPv4", "IPv6"]
    assert [e["addresses"] for e in first["endpoints"]] == [["10.244.1.11"], ["10.244.2.14"]]
    assert [e["nodeName"] for e in first["endpoints"]] == ["n1", "n2"]
    assert first["metadata"]["labels"] == {"kubernetes.io/service-name": "web"}
    assert first["ports"][0]["name"] == service["spec"]["ports"][0]["name"]


def test_a_cluster_ip_service_has_no_outer_frontends() -> None:
    spec = LabService("web", 7).manifests()[0]["spec"]
    assert "externalTrafficPolicy" not in spec
    assert "externalIPs" not in spec
    assert "nodePort" not in spec["ports"][0]


def test_a_local_load_balancer_has_a_health_check_port_and_every_port_its_node_port() -> None:
    service = LabService("web", 7, type="LoadBalancer", external_policy="Local", ports=(80, 443))
    made = service.manifests()[0]
    assert made["spec"]["healthCheckNodePort"] == 32007
    assert [port["nodePort"] for port in made["spec"]["ports"]] == [30007, 30207]
    assert [entry["ip"] for entry in made["status"]["loadBalancer"]["ingress"]] == [
        "203.0.113.7",
        "fd00:203::7",
    ]


def test_conditions_hints_and_the_node_of_an_endpoint_are_as_said() -> None:
    bare = Backend("pod1", None, named_node=False).manifest(4)
    assert bare == {"addresses": ["10.244.1.11"]}
    hinted = Backend("pod1", zones=("zone-a",), nodes=("n1",)).manifest(6)
    assert hinted["hints"] == {"forZones": [{"name": "zone-a"}], "forNodes": [{"name": "n1"}]}
    assert hinted["conditions"] == {"ready": True}


def test_a_node_has_its_addresses_pod_ranges_and_zone() -> None:
    made = node_manifest("n1", zone="zone-z")
    assert made["metadata"]["labels"]["topology.kubernetes.io/zone"] == "zone-z"
    assert made["spec"]["podCIDRs"] == ["10.244.1.0/24", "fd00:10:244:1::/64"]


def test_configuration_changes_are_merged_into_their_section_and_none_removes() -> None:
    made = configuration("nftables", nftables={"masqueradeAll": True}, clusterCIDR=None)
    assert made["nftables"] == {"minSyncPeriod": "50ms", "masqueradeAll": True}
    assert "clusterCIDR" not in made
    assert made["mode"] == "nftables"
