"""Random clusters that change step by step: every type, policy, port and endpoint state, a few Services at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from tests import factory
from tests.golden.scenario import Step

from pointsman.model.objects import EndpointSlice, Service

_NAMES = 6
_PROTOCOLS = ("TCP", "UDP", "SCTP")
_CONDITIONS: tuple[dict[str, bool], ...] = (
    {"ready": True},
    {"ready": True},
    {"ready": False, "serving": True, "terminating": True},
    {"ready": False},
)
_RANGES = ("10.1.0.0/16", "10.1.2.0/24", "172.30.0.0/24", "0.0.0.0/0", "2001:db8::/32", "fd00:30::/64")


def steps(random: Random, number: int) -> Iterator[Step]:
    """The first step has every Service, each further one differs by few."""
    services: dict[str, Service] = {}
    slices: dict[str, EndpointSlice] = {}
    zone = "zone-a"
    for step in range(number):
        for which in range(_NAMES) if step == 0 else random.sample(range(_NAMES), k=random.randint(1, 2)):
            key = f"default/s{which}"
            action = random.random()
            if step and action < 0.2:
                services.pop(key, None)
            elif step and action < 0.7:
                _replace_slices(random, which, slices)
            else:
                services[key] = _service(random, which)
                if action > 0.85 or step == 0:
                    _replace_slices(random, which, slices)
        if random.random() < 0.1:
            zone = random.choice(("zone-a", "zone-b", ""))
        addresses = [{"type": "InternalIP", "address": address} for address in ("172.30.0.10", "fd00:30::10")]
        node = factory.node(zone=zone, addresses=addresses)
        yield Step(
            f"step-{step}", Path(), dict(services), dict(slices), node, ("10.96.0.0/12", "fd00:10:96::/112")
        )


def _service(random: Random, which: int) -> Service:
    kind = random.choice(("ClusterIP", "NodePort", "LoadBalancer", "LoadBalancer"))
    ports = [
        {
            "name": f"p{number}",
            "port": random.choice((80, 443)) + number,
            "protocol": random.choice(_PROTOCOLS),
            "nodePort": 30000 + 10 * which + number if kind != "ClusterIP" else 0,
        }
        for number in range(random.randint(1, 3))
    ]
    spec: dict[str, Any] = {
        "type": kind,
        "clusterIP": f"10.96.0.{10 + which}",
        "clusterIPs": [f"10.96.0.{10 + which}", f"fd00:10:96::{10 + which}"],
        "ports": ports,
        "internalTrafficPolicy": random.choice(("Cluster", "Cluster", "Local")),
        "externalTrafficPolicy": random.choice(("Cluster", "Local")),
    }
    if random.random() < 0.3:
        spec["sessionAffinity"] = "ClientIP"
        spec["sessionAffinityConfig"] = {"clientIP": {"timeoutSeconds": random.choice((100, 200))}}
    if random.random() < 0.4:
        spec["externalIPs"] = [f"192.0.2.{10 + which}", f"2001:db8:2::{10 + which}"]
    if kind == "LoadBalancer":
        numbers = random.sample((10, 110), k=random.randint(0, 2))
        addresses = [f"203.0.113.{number + which}" for number in numbers] + [f"2001:db8:3::{which}"]
        spec["status"] = {"loadBalancer": {"ingress": [{"ip": address} for address in addresses]}}
        spec["loadBalancerSourceRanges"] = random.sample(_RANGES, k=random.randint(0, 3))
        spec["healthCheckNodePort"] = 32000 + which
    if random.random() < 0.4:
        seconds = random.choice((5, 9))
        spec["metadata"] = {
            "annotations": {
                "pointsman.dev/udp-timeout": f"{seconds}s",
                "pointsman.dev/tcp-established-timeout": f"{seconds}m",
            }
        }
    return factory.service(f"s{which}", **spec)


def _replace_slices(random: Random, which: int, slices: dict[str, EndpointSlice]) -> None:
    for family, prefix in (("IPv4", "10.244.{}."), ("IPv6", "fd00:10:244:{}::")):
        hinted = random.random() < 0.2
        for number in range(2):
            name = f"s{which}-{family.lower()}-{number}"
            if random.random() < 0.3:
                slices.pop(f"default/{name}", None)
                continue
            ports = [
                {"name": f"p{port}", "port": random.choice((8080, 9090)) + port, "protocol": protocol}
                for port in range(3)
                for protocol in _PROTOCOLS
            ]
            endpoints = [_endpoint(random, prefix, hinted) for _ in range(random.randint(0, 4))]
            slices[f"default/{name}"] = factory.endpoint_slice(
                *endpoints, name=name, service_name=f"s{which}", family=family, ports=ports
            )


def _endpoint(random: Random, prefix: str, hinted: bool) -> dict[str, Any]:
    node = random.randint(1, 2)
    return {
        "addresses": [prefix.format(node) + str(random.randint(1, 12))],
        "nodeName": f"n{node}",
        "conditions": random.choice(_CONDITIONS),
        "hints": {"forZones": [{"name": random.choice(("zone-a", "zone-b"))}]} if hinted else None,
    }
