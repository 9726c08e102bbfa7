"""Objects as the oldest supported Kubernetes (1.25) has them: docs/compatibility.md names it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pointsman.cli.main import main

METADATA = {
    "namespace": "shop",
    "uid": "5f2d1f6e-3a0e-4c2e-9d3a-0f8f6f1a7b01",
    "resourceVersion": "812",
    "creationTimestamp": "2022-09-01T10:00:00Z",
}
SERVICE: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {**METADATA, "name": "web", "managedFields": [{"manager": "kubectl", "operation": "Update"}]},
    "spec": {
        "type": "LoadBalancer",
        "clusterIP": "10.96.0.20",
        "clusterIPs": ["10.96.0.20"],
        "ipFamilies": ["IPv4"],
        "ipFamilyPolicy": "SingleStack",
        "internalTrafficPolicy": "Cluster",
        "externalTrafficPolicy": "Cluster",
        "allocateLoadBalancerNodePorts": True,
        "sessionAffinity": "None",
        "selector": {"app": "web"},
        "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080, "nodePort": 30080}],
    },
    "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.7"}]}},
}
"""Without ipMode (1.29) and trafficDistribution (1.31)."""
SLICE: dict[str, Any] = {
    "apiVersion": "discovery.k8s.io/v1",
    "kind": "EndpointSlice",
    "metadata": {**METADATA, "name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
    "addressType": "IPv4",
    "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    "endpoints": [
        {
            "addresses": ["10.244.1.20"],
            "conditions": {"ready": True, "serving": True, "terminating": False},
            "nodeName": "n1",
            "zone": "z1",
            "targetRef": {"kind": "Pod", "namespace": "shop", "name": "web-7c9"},
        }
    ],
}
"""Without hints for nodes (1.33)."""


@pytest.mark.parametrize("mode", ["nftables", "iptables", "ipvs"])
def test_objects_of_an_old_server_are_served(
    mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for item in (SERVICE, SLICE):
        (tmp_path / f"{item['kind']}.json").write_text(json.dumps(item))
    assert main(["render", f"--proxy-mode={mode}", f"--manifests={tmp_path}", "--node=n1"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for text in ("10.96.0.20", "192.0.2.7", "10.244.1.20"):
        assert text in out
