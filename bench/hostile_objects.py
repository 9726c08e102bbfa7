"""Objects that any tenant of a cluster may create and that cost a proxy as much as possible.

Every object fits into the 1.5 MiB that an API server stores, and passes its validation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from tests.harness.kube_objects import endpoint_slice, node_object, service

KubeDict = dict[str, Any]
_LIMIT = 63
"""Characters of the name of an object, a namespace or a label value."""


class Scenario(msgspec.Struct, frozen=True):
    """Objects that are created at once, and what then happens to them."""

    title: str
    objects: Callable[[], Sequence[KubeDict]]
    updates: Callable[[], Sequence[KubeDict]] = tuple
    """The objects of all updates, sent as fast as possible after those that are created."""


def _ports(count: int, **fields: object) -> list[KubeDict]:
    return [
        {"name": f"p{number}", "port": number, "protocol": "TCP", "targetPort": 8080, **fields}
        for number in range(1, count + 1)
    ]


def _ranges(count: int) -> list[str]:
    return [f"20.{number >> 8 & 255}.{number & 255}.0/24" for number in range(count)]


def _address(base: int, number: int) -> str:
    return f"{base}.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"


def _slices(name: str, ports: int, slices: int, endpoints: int, **fields: object) -> list[KubeDict]:
    made = []
    for number in range(slices):
        addresses = [_address(11, number * endpoints + index) for index in range(endpoints)]
        item = endpoint_slice(f"{name}-{number}", *addresses, service_name=name, node="n2")
        own = [{"name": f"p{port}", "port": 8080, "protocol": "TCP"} for port in range(1, ports + 1)]
        made.append(item | {"ports": own} | fields)
    return made


def _restricted(ports: int, ranges: int, label: str = "") -> KubeDict:
    made = service(
        "hostile",
        "10.96.1.1",
        type="LoadBalancer",
        ports=_ports(ports),
        loadBalancerSourceRanges=_ranges(ranges),
    )
    made["metadata"]["labels"] = {"turn": label}
    return made


def _hashed(count: int, ports: int, endpoints: int) -> Iterator[KubeDict]:
    annotations = {"pointsman.dev/scheduler": "source-hash", "pointsman.dev/hash-slots": "65536"}
    for number in range(count):
        name = f"hashed-{number}"
        yield service(
            name,
            _address(10, (96 << 16) + 0x1000 + number),
            ports=_ports(ports),
            metadata={"annotations": annotations},
        )
        yield from _slices(name, ports, 1, endpoints)


def _contenders(count: int) -> Iterator[KubeDict]:
    for number in range(count):
        yield service(f"contender-{number}", _address(10, (97 << 16) + 1 + number), externalIPs=["192.0.2.1"])


def _named_at_limits(count: int) -> Iterator[KubeDict]:
    for number in range(count):
        name = f"{number:04d}".rjust(_LIMIT, "n")
        long = {f"{'k' * 200}.example/{key:03d}".rjust(_LIMIT + 200, "k"): "v" * _LIMIT for key in range(100)}
        port = {"name": "p" * _LIMIT, "port": 80, "protocol": "TCP", "targetPort": "t" * 15}
        namespace = "s" * _LIMIT
        yield service(
            name,
            _address(10, (98 << 16) + 1 + number),
            namespace=namespace,
            ports=[port],
            metadata={"labels": long, "annotations": dict.fromkeys(long, "a" * 200)},
        )
        yield endpoint_slice(
            f"{name}-1",
            _address(11, number),
            service_name=name,
            namespace=namespace,
            port_name="p" * _LIMIT,
            node="n" * 253,
        )


def _large_node(turn: int) -> KubeDict:
    addresses = [_address(172, (30 << 16) + 10), *(_address(172, (31 << 16) + n) for n in range(1000))]
    labels = {f"label-{number}": f"value-{turn}" for number in range(1000)}
    return node_object(*addresses, "fd00:30::10", metadata={"labels": labels, "annotations": labels})


SCENARIOS: Mapping[str, Scenario] = {
    "ranges": Scenario("3,000 ports x 3,000 source ranges", lambda: [_restricted(3000, 3000)]),
    "ranges-updated": Scenario(
        "500 ports x 500 source ranges, 20 changes of a label",
        lambda: [_restricted(500, 500)],
        lambda: [_restricted(500, 500, f"{turn}") for turn in range(20)],
    ),
    "ranges-served": Scenario(
        "100 ports x 1,000 source ranges at a load balancer address",
        lambda: [
            _restricted(100, 1000) | {"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.9"}]}}},
            *_slices("hostile", 100, 1, 10),
        ],
    ),
    "hash-ports": Scenario("12 Services, 4 ports, 65,536 hash slots", lambda: list(_hashed(12, 4, 10))),
    "hash-services": Scenario("100 Services, 65,536 hash slots", lambda: list(_hashed(100, 1, 10))),
    "hash-changed": Scenario(
        "40 Services, 65,536 hash slots, one endpoint of each changes",
        lambda: list(_hashed(40, 1, 10)),
        lambda: [item for n in range(40) for item in _slices(f"hashed-{n}", 1, 1, 9)],
    ),
    "slices": Scenario(
        "60 ports, 400 slices of 10",
        lambda: [service("hostile", "10.96.1.1", ports=_ports(60)), *_slices("hostile", 60, 400, 10)],
    ),
    "contenders": Scenario("10,000 Services, one external IP", lambda: list(_contenders(10_000))),
    "ports": Scenario(
        "10,000 ports, 10 endpoints",
        lambda: [service("hostile", "10.96.1.1", ports=_ports(10_000)), *_slices("hostile", 10_000, 1, 10)],
    ),
    "external-ips": Scenario(
        "100 ports x 300 external IPs, 10 endpoints",
        lambda: [
            service(
                "hostile",
                "10.96.1.1",
                ports=_ports(100),
                externalIPs=[_address(192, (168 << 16) + number) for number in range(300)],
            ),
            *_slices("hostile", 100, 1, 10),
        ],
    ),
    "frontends": Scenario(
        "1,000 ports x 300 external IPs, 2 endpoints",
        lambda: [
            service(
                "hostile",
                "10.96.1.1",
                ports=_ports(1000),
                externalIPs=[_address(192, (168 << 16) + number) for number in range(300)],
            ),
            *_slices("hostile", 1000, 1, 2),
        ],
    ),
    "names": Scenario("1,000 Services, names and labels at limits", lambda: list(_named_at_limits(1000))),
    "node": Scenario(
        "Node with 1,000 addresses and labels, 20 changes",
        tuple,
        lambda: [_large_node(turn) for turn in range(20)],
    ),
}
