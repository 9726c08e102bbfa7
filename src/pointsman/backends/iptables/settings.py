"""What node, configuration and kernel contribute to the text of the rules, as one value that can be compared."""

from __future__ import annotations

import functools

import msgspec

from pointsman.backends.netfilter import spelling
from pointsman.model.addresses import Family
from pointsman.model.node_context import LocalDetector, LocalMode, NodeContext

INVALID_COUNTER = "ct_state_invalid_dropped_pkts"
LOCALHOST_COUNTER = "localhost_nps_accepted_pkts"


class KernelFacts(msgspec.Struct, frozen=True, gc=False):
    """Properties of this host's kernel and programs."""

    counters: frozenset[str] = frozenset()
    """nfacct counters that exist."""
    tcp_be_liberal: bool = False
    random_fully: bool = True


class Settings(msgspec.Struct, frozen=True, gc=False):
    """Everything that rules are made from, except the services."""

    family: Family
    context: NodeContext
    facts: KernelFacts
    localhost_node_ports: bool
    """Node ports answer on 127.0.0.1: configured, IPv4, and loopback is among the node port addresses."""

    @property
    def mark(self) -> str:
        return hex(self.context.masquerade_mark)

    @property
    def counts_localhost(self) -> bool:
        return self.localhost_node_ports and LOCALHOST_COUNTER in self.facts.counters

    @property
    def detects_local(self) -> bool:
        return self.context.local.mode is not LocalMode.NONE


def build_settings(context: NodeContext, facts: KernelFacts, *, localhost_node_ports: bool) -> Settings:
    """Return the settings of one family; `localhost_node_ports` is the configured value."""
    return Settings(
        family=context.family,
        context=context,
        facts=facts,
        localhost_node_ports=(
            localhost_node_ports and context.family is Family.IPV4 and context.node_port_addresses.loopback
        ),
    )


@functools.lru_cache(maxsize=8)
def match_local(detector: LocalDetector) -> tuple[str, str]:
    """Return the match "comes from a local pod" as options for source and interface; one of them is empty."""
    if detector.mode is LocalMode.CIDR:
        return f"-s {detector.cidr} ", ""
    if detector.mode is LocalMode.NONE:
        return "", ""
    suffix = "+" if detector.mode is LocalMode.INTERFACE_PREFIX else ""
    return "", f"-i {spelling.interface(detector.interface)}{suffix} "
