"""The table of host checks: facts in, conditions out; what a network namespace of a test can make is in tests/process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tests import factory

from pointsman.backends import mode_named
from pointsman.conditions import Blocks, Condition
from pointsman.kernel.rtnl import Route
from pointsman.machine.host_facts import HostFacts
from pointsman.model.addresses import Family
from pointsman.model.balancing import DEFAULT_BALANCING, BalancingRequest
from pointsman.model.decision import ClientKind
from pointsman.model.node_context import LocalDetector, LocalMode
from pointsman.model.tracker import PortState
from pointsman.node.endpoint_groups import group_endpoints
from pointsman.node.host_conditions import FAMILY_CHECKS, MIN_REVERSE_PATH_DROPS, HostView

POD, OTHER = factory.packed("10.244.1.1"), factory.packed("10.244.1.2")
BRIDGED = {"cni0": (factory.cidr("10.244.1.0/24"),)}
FACTS = HostFacts(
    Family.IPV4,
    forwarding=True,
    routes={POD: Route(interface="cni0"), OTHER: Route(interface="cni0")},
    interface_addresses={factory.packed("192.168.1.10"): "eth0"},
    conntrack_count=10,
    conntrack_max=100,
    conntrack_loose=True,
)


def view(
    facts: dict[str, Any] | None = None,
    context: dict[str, Any] | None = None,
    port: dict[str, Any] | None = None,
    **fields: Any,
) -> HostView:
    """A node with two ready pods behind a Service, as it should be but for these fields."""
    endpoints = tuple(factory.endpoint(text, local=True, ready=True) for text in ("10.244.1.1", "10.244.1.2"))
    state = PortState(factory.service_port(**(port or {})), endpoints)
    made = factory.context(node_ips=(factory.packed("192.168.1.10"),), **(context or {}))
    groups = group_endpoints((state,), made.node_ips, DEFAULT_BALANCING)
    return HostView(
        made, mode_named("nftables"), msgspec.structs.replace(FACTS, **(facts or {})), groups, **fields
    )


def find(found: HostView) -> Iterator[Condition]:
    for check in FAMILY_CHECKS:
        yield from check(found)


@pytest.mark.parametrize(
    "fine",
    [
        view(),
        view({"conntrack_count": 89}),
        view({"forwarding": None, "not_forwarding": ("docker0",)}),
        view({"unfiltered_bridges": BRIDGED}, {"masquerade_all": True}),
        view({"unfiltered_bridges": {"cni0": (factory.cidr("10.244.1.1/32"),)}, "routes": {}}),
        view({"unfiltered_bridges": {"docker0": (factory.cidr("172.17.0.0/16"),)}}),
        view({"strict_reverse_path": frozenset(("eth0",))}),
        view(reverse_path_drops=MIN_REVERSE_PATH_DROPS),
        view({"conntrack_loose": False}),
        view(context={"local": LocalDetector(LocalMode.CIDR, factory.cidr("10.244.0.0/16"))}),
        view(context={"local": LocalDetector(LocalMode.INTERFACE, interface="cni0")}),
        view(context={"local": LocalDetector(LocalMode.INTERFACE_PREFIX, interface="cni")}),
    ],
)
def test_a_node_that_is_fine_has_no_condition(fine: HostView) -> None:
    assert list(find(fine)) == []


@pytest.mark.parametrize(
    ("found", "type_", "reason", "blocks"),
    [
        (view({"conntrack_count": 90}), "ConnectionTracking", "ConntrackNearlyFull", Blocks.NOTHING),
        (view({"conntrack_count": 100}), "ConnectionTracking", "ConntrackFull", Blocks.READINESS),
        (
            view({"forwarding": None, "not_forwarding": ("cni0",)}),
            "ForwardingIPv4",
            "InterfaceNotForwarding",
            Blocks.READINESS,
        ),
        (
            view({"unfiltered_bridges": BRIDGED}),
            "BridgeNetfilterIPv4",
            "BridgeBypassesRules",
            Blocks.SERVICES,
        ),
        (
            view({"strict_reverse_path": frozenset(("eth0",))}, reverse_path_drops=MIN_REVERSE_PATH_DROPS),
            "ReversePathIPv4",
            "ReversePathDrops",
            Blocks.NOTHING,
        ),
        (
            view({"conntrack_loose": False}, port={"balancing": BalancingRequest(reset_gone=True)}),
            "ResetGone",
            "ResetGoneNeedsLooseTracking",
            Blocks.NOTHING,
        ),
        (
            view(context={"local": LocalDetector(LocalMode.CIDR, factory.cidr("10.42.0.0/16"))}),
            "LocalDetectionIPv4",
            "PodsNotDetected",
            Blocks.NOTHING,
        ),
        (
            view(
                context={"local": LocalDetector(LocalMode.CIDR, factory.cidr("10.42.0.0/16"))},
                pod_ranges=(factory.cidr("10.244.1.0/24"),),
            ),
            "LocalDetectionIPv4",
            "PodRangeNotDetected",
            Blocks.NOTHING,
        ),
        (
            view(context={"local": LocalDetector(LocalMode.INTERFACE_PREFIX, interface="cali")}),
            "LocalDetectionIPv4",
            "PodsNotDetected",
            Blocks.NOTHING,
        ),
        (
            view({"routes": {POD: Route("no route leads there"), OTHER: Route(interface="cni0")}}),
            "PodRoutesIPv4",
            "NoRoute",
            Blocks.SERVICES,
        ),
        (
            view({"routes": dict.fromkeys((POD, OTHER), Route("no route leads there"))}),
            "PodRoutesIPv4",
            "NoRoute",
            Blocks.READINESS,
        ),
    ],
)
def test_a_fault_of_the_node_is_a_condition_with_a_remedy(
    found: HostView, type_: str, reason: str, blocks: Blocks
) -> None:
    (condition,) = find(found)
    assert (condition.type, condition.reason, condition.blocks) == (type_, reason, blocks)
    assert condition.message
    assert condition.remedy


def test_a_full_table_keeps_every_client_out() -> None:
    assert view({"conntrack_count": 100}).blocked == frozenset(ClientKind)
    assert view({"conntrack_count": 99}).blocked == frozenset()
