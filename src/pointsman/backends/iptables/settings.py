"""What node, configuration and kernel contribute to the text of the rules, as one comparable value."""

from __future__ import annotations

import functools

import msgspec

from pointsman.backends.netfilter import spelling
from pointsman.model.addresses import Family
from pointsman.model.node_context import LocalDetector, LocalMode, NodeContext

INVALID_COUNTER = "ct_state_invalid_dropped_pkts"
LOCALHOST_COUNTER = "localhost_nps_accepted_pkts"
LARGE_CLUSTER_ENDPOINTS = 1000
"""Above this many endpoints their rules carry no comments, as upstream: they are half of the text."""


class KernelFacts(msgspec.Struct, frozen=True, gc=False):
    """What was found out about this host's kernel and tools."""

    counters: frozenset[str] = frozenset()
    """nfacct counters that exist."""
    tcp_be_liberal: bool = False
    random_fully: bool = True


class Settings(msgspec.Struct, frozen=True, gc=False):
    """Everything but the services that rules are made from."""

    family: Family
    context: NodeContext
    facts: KernelFacts
    localhost_node_ports: bool
    """Node ports answer on 127.0.0.1: asked for, IPv4, and loopback is among the node port addresses."""

    @property
    def mark(self) -> str:
        return hex(self.context.masquerade_mark)

    @property
    def counts_localhost(self) -> bool:
        return self.localhost_node_ports and LOCALHOST_COUNTER in self.facts.counters

    @property
    def detects_local(self) -> bool:
        return self.context.local.mode is not LocalMode.NONE


def settings_of(context: NodeContext, facts: KernelFacts, *, localhost_node_ports: bool) -> Settings:
    """Settings of one family; `localhost_node_ports` is the configuration's wish."""
    return Settings(
        family=context.family,
        context=context,
        facts=facts,
        localhost_node_ports=(
            localhost_node_ports and context.family is Family.IPV4 and context.node_port_addresses.loopback
        ),
    )


@functools.lru_cache(maxsize=8)
def from_local(detector: LocalDetector) -> tuple[str, str]:
    """The match "comes from a local pod" as source and interface words; one of them is empty."""
    if detector.mode is LocalMode.CIDR:
        return f"-s {detector.cidr} ", ""
    if detector.mode is LocalMode.NONE:
        return "", ""
    suffix = "+" if detector.mode is LocalMode.INTERFACE_PREFIX else ""
    return "", f"-i {spelling.interface(detector.interface)}{suffix} "
