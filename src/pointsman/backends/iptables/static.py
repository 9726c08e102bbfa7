"""What does not depend on any service: settings, jumps from the built-in chains, and the frame around the services. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from pointsman.backends.netfilter import names
from pointsman.backends.netfilter.names import FILTER, MANGLE, NAT
from pointsman.backends.netfilter.rule_text import (
    Jump,
    build_forward_rules,
    build_masquerade_rules,
    format_host,
    match_comment,
)
from pointsman.model.addresses import Family, is_loopback
from pointsman.model.node_context import LocalMode, NodeContext

INVALID_COUNTER = "ct_state_invalid_dropped_pkts"
LOCALHOST_COUNTER = "localhost_nps_accepted_pkts"

FILTER_CHAINS = (
    names.SERVICES,
    names.EXTERNAL_SERVICES,
    names.FORWARD,
    names.NODE_PORTS,
    names.PROXY_FIREWALL,
)
NAT_CHAINS = (names.SERVICES, names.NODE_PORTS, names.POSTROUTING, names.MARK_MASQUERADE)
CANARY_TABLES = (MANGLE, NAT, FILTER)
CHAINS = {
    MANGLE: (names.CANARY,),
    FILTER: (*FILTER_CHAINS, names.CANARY),
    NAT: (*NAT_CHAINS, names.CANARY),
}
"""Chains that exist without any service, except the one that belongs to the kubelet as well."""
CANARY_RULE = f"-A {names.CANARY} {match_comment('deleted when this table is flushed')}"
"""Flushing a table empties its chains but keeps them, so only a missing rule shows it. Not in mangle, where other proxies
delete this chain without flushing it first."""

_NODE_PORTS_LAST = "kubernetes service nodeports; NOTE: this must be the last rule in this chain"
_NEW = ("-m", "conntrack", "--ctstate", "NEW")


JUMPS = (
    Jump(FILTER, "INPUT", names.EXTERNAL_SERVICES, "kubernetes externally-visible service portals", _NEW),
    Jump(FILTER, "FORWARD", names.EXTERNAL_SERVICES, "kubernetes externally-visible service portals", _NEW),
    Jump(FILTER, "INPUT", names.NODE_PORTS, "kubernetes health check service ports"),
    Jump(FILTER, "FORWARD", names.SERVICES, "kubernetes service portals", _NEW),
    Jump(FILTER, "OUTPUT", names.SERVICES, "kubernetes service portals", _NEW),
    Jump(FILTER, "FORWARD", names.FORWARD, "kubernetes forwarding rules"),
    Jump(FILTER, "INPUT", names.PROXY_FIREWALL, "kubernetes load balancer firewall", _NEW),
    Jump(FILTER, "OUTPUT", names.PROXY_FIREWALL, "kubernetes load balancer firewall", _NEW),
    Jump(FILTER, "FORWARD", names.PROXY_FIREWALL, "kubernetes load balancer firewall", _NEW),
    Jump(NAT, "OUTPUT", names.SERVICES, "kubernetes service portals"),
    Jump(NAT, "PREROUTING", names.SERVICES, "kubernetes service portals"),
    Jump(NAT, "POSTROUTING", names.POSTROUTING, "kubernetes postrouting rules"),
    Jump(FILTER, "INPUT", names.KUBELET_FIREWALL),
    Jump(FILTER, "OUTPUT", names.KUBELET_FIREWALL),
)
"""In the order in which they are inserted at the top: the last one ends up first."""


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


def list_frame_chains(table: str, settings: Settings) -> list[str]:
    """Return the chains of a table that this mode owns and that no service writes to."""
    if table == NAT:
        return [names.POSTROUTING, names.MARK_MASQUERADE, names.CANARY]
    guarded = [names.KUBELET_FIREWALL] if settings.localhost_node_ports else []
    return [names.FORWARD, names.CANARY, *guarded]


def build_frame_rules(table: str, settings: Settings) -> list[str]:
    """Return the rules in those chains."""
    rules = build_nat_rules(settings) if table == NAT else build_filter_rules(settings)
    return [*rules, CANARY_RULE]


def build_localnet_guard() -> str:
    """Return the rule that protects services on 127.0.0.1 from neighbours, which route_localnet would let in (CVE-2020-8558)."""
    return (
        f"-A {names.KUBELET_FIREWALL} ! -s 127.0.0.0/8 -d 127.0.0.0/8"
        f" {match_comment('block incoming localnet connections')}"
        " -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP"
    )


def build_filter_rules(settings: Settings) -> Iterator[str]:
    """Yield the rules of table filter outside the chains that services write to."""
    if settings.localhost_node_ports:
        yield build_localnet_guard()
    if not settings.facts.tcp_be_liberal:
        counted = INVALID_COUNTER in settings.facts.counters
        counter = f"-m nfacct --nfacct-name {INVALID_COUNTER} " if counted else ""
        yield f"-A {names.FORWARD} -m conntrack --ctstate INVALID {counter}-j DROP"
    yield from build_forward_rules(settings.mark)


def build_nat_rules(settings: Settings) -> Iterator[str]:
    """Yield the rules of table nat outside the chains that services write to."""
    yield from build_masquerade_rules(settings.mark, random_fully=settings.facts.random_fully)


def build_node_port_jumps(settings: Settings) -> Iterator[str]:
    """Yield the last rules of nat KUBE-SERVICES: packets to the node itself may be for a node port."""
    comment = match_comment(_NODE_PORTS_LAST)
    where = settings.context.node_port_addresses
    if where.match_all:
        except_loopback = ""
        if settings.family is Family.IPV6:
            except_loopback = "! -d ::1/128 "
        elif not settings.localhost_node_ports:
            except_loopback = "! -d 127.0.0.0/8 "
        yield f"-A {names.SERVICES} {except_loopback}{comment} -m addrtype --dst-type LOCAL -j {names.NODE_PORTS}"
        return
    for address in where.addresses:
        if is_loopback(address) and not settings.localhost_node_ports:
            continue
        yield f"-A {names.SERVICES} -d {format_host(address)} {comment} -j {names.NODE_PORTS}"


def count_rules(settings: Settings) -> dict[str, int]:
    """Return the number of rules that do not depend on any service, by table and without canaries."""
    nat = (*build_nat_rules(settings), *build_node_port_jumps(settings))
    return {FILTER: len(list(build_filter_rules(settings))), NAT: len(nat)}
