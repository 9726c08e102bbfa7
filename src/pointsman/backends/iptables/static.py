"""The rules that do not depend on any service: jumps from the built-in chains, and the frame around the services. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from pointsman.backends.iptables.settings import INVALID_COUNTER, Settings
from pointsman.backends.netfilter import names, spelling
from pointsman.backends.netfilter.names import FILTER, MANGLE, NAT
from pointsman.backends.netfilter.tables import Jump
from pointsman.model.addresses import Family, is_loopback

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
CANARY_RULE = f"-A {names.CANARY} {spelling.comment('deleted when this table is flushed')}"
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


def frame_chains(table: str, settings: Settings) -> list[str]:
    """Return the chains of a table that are ours and that no service writes to."""
    if table == NAT:
        return [names.POSTROUTING, names.MARK_MASQUERADE, names.CANARY]
    guarded = [names.KUBELET_FIREWALL] if settings.localhost_node_ports else []
    return [names.FORWARD, names.CANARY, *guarded]


def frame_rules(table: str, settings: Settings) -> list[str]:
    """Return the rules in those chains."""
    rules = nat_rules(settings) if table == NAT else filter_rules(settings)
    return [*rules, CANARY_RULE]


def localnet_guard() -> str:
    """Return the rule that protects services on 127.0.0.1 from neighbours, which route_localnet would let in (CVE-2020-8558)."""
    return (
        f"-A {names.KUBELET_FIREWALL} ! -s 127.0.0.0/8 -d 127.0.0.0/8"
        f" {spelling.comment('block incoming localnet connections')}"
        " -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP"
    )


def filter_rules(settings: Settings) -> Iterator[str]:
    """Yield the rules of table filter outside the chains that services write to."""
    if settings.localhost_node_ports:
        yield localnet_guard()
    if not settings.facts.tcp_be_liberal:
        counted = INVALID_COUNTER in settings.facts.counters
        counter = f"-m nfacct --nfacct-name {INVALID_COUNTER} " if counted else ""
        yield f"-A {names.FORWARD} -m conntrack --ctstate INVALID {counter}-j DROP"
    mark = f"{settings.mark}/{settings.mark}"
    yield f"-A {names.FORWARD} {spelling.comment('kubernetes forwarding rules')} -m mark --mark {mark} -j ACCEPT"
    yield (
        f"-A {names.FORWARD} {spelling.comment('kubernetes forwarding conntrack rule')}"
        " -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
    )


def nat_rules(settings: Settings) -> Iterator[str]:
    """Yield the rules of table nat outside the chains that services write to."""
    mark = settings.mark
    yield f"-A {names.POSTROUTING} -m mark ! --mark {mark}/{mark} -j RETURN"
    # The mark is taken off so that a packet that passes the stack again (overlay networks) is left alone.
    yield f"-A {names.POSTROUTING} -j MARK --set-xmark {mark}/0x0"
    random = " --random-fully" if settings.facts.random_fully else ""
    yield (
        f"-A {names.POSTROUTING} {spelling.comment('kubernetes service traffic requiring SNAT')} -j MASQUERADE{random}"
    )
    yield f"-A {names.MARK_MASQUERADE} -j MARK --set-xmark {mark}/{mark}"


def node_port_jumps(settings: Settings) -> Iterator[str]:
    """Yield the last rules of nat KUBE-SERVICES: packets to the node itself may be for a node port."""
    comment = spelling.comment(_NODE_PORTS_LAST)
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
        yield f"-A {names.SERVICES} -d {spelling.host(address)} {comment} -j {names.NODE_PORTS}"


def count_rules(settings: Settings) -> dict[str, int]:
    """Return the number of rules that do not depend on any service, by table and without canaries."""
    nat = (*nat_rules(settings), *node_port_jumps(settings))
    return {FILTER: len(list(filter_rules(settings))), NAT: len(nat)}
