"""What on the host, beside the proxy's own rules, keeps packets from a service port or changes them. Pure.

Certain trouble is fatal; what depends on things that cannot be foreseen here is a remark that says where to look.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pointsman.explain.causes import listed
from pointsman.explain.journey import TRANSLATION, Journey, Stage
from pointsman.explain.packets import ClientKind, masqueraded
from pointsman.explain.report import Cause
from pointsman.explain.rule_walk import Fate, fates, judged
from pointsman.explain.view import FamilyView
from pointsman.machine.host_facts import HostFacts
from pointsman.machine.packet_filter import Action, FilterChain
from pointsman.model.addresses import Family, address_text
from pointsman.model.endpoint import Endpoint
from pointsman.model.plan import FrontendKind

_DROPS = frozenset((Action.DROP, Action.REJECT))
_FORWARD_SETTING = {Family.IPV4: "net.ipv4.ip_forward", Family.IPV6: "net.ipv6.conf.all.forwarding"}
_NEARLY_FULL = 0.95


def host_causes(family: FamilyView, host: HostFacts, ways: tuple[Journey, ...]) -> Iterator[Cause]:
    """Everything found on these ways, most decisive first."""
    yield from _forwarding(host, ways)
    yield from _routes(host, ways)
    yield from _conntrack(host)
    yield from _reverse_path(host, ways)
    yield from _foreign_rules(family, host, ways)


def _forwarding(host: HostFacts, ways: Iterable[Journey]) -> Iterator[Cause]:
    forwarded = [way for way in ways if way.client.kind is not ClientKind.NODE and not way.local]
    if not forwarded:
        return
    setting = _FORWARD_SETTING[host.family]
    if host.forwarding is False:
        clients = listed(dict.fromkeys(way.client.words for way in forwarded))
        yield Cause(
            "ForwardingOff",
            f"{setting} is 0: this node forwards no {host.family.value} packets, so nothing gets from {clients} "
            f"to {_endpoints(forwarded)}",
            f"sysctl -w {setting}=1, and in /etc/sysctl.d for the next boot; who set it to 0?",
        )
    elif host.not_forwarding:
        yield Cause(
            "InterfaceNotForwarding",
            f"packets that come in by {listed(host.not_forwarding)} are not forwarded (forwarding of that interface is 0)",
            f"if clients or endpoints are there: sysctl -w net.ipv4.conf.{host.not_forwarding[0]}.forwarding=1",
            fatal=False,
        )


def _routes(host: HostFacts, ways: Iterable[Journey]) -> Iterator[Cause]:
    without: dict[str, dict[Endpoint, None]] = {}
    for way in ways:
        route = host.routes.get(way.endpoint.address)
        if route is not None and route.error:
            without.setdefault(route.error, {})[way.endpoint] = None
    for error, endpoints in without.items():
        yield Cause(
            "NoRoute",
            f"this node has no way to {listed(map(str, endpoints))}: {error}",
            "the network plugin makes the routes to pods: is it running here, and does it know that node? ip route get "
            f"{address_text(next(iter(endpoints)).address)}",
        )


def _conntrack(host: HostFacts) -> Iterator[Cause]:
    count, most = host.conntrack_count, host.conntrack_max
    if count is None or not most:
        return
    evidence = f"{count} of {most} connections tracked (net.netfilter.nf_conntrack_count and _max)"
    advice = "raise net.netfilter.nf_conntrack_max (conntrack.maxPerCore in the configuration); conntrack -L shows whose they are"
    if count >= most:
        message = (
            f"the conntrack table is full: {evidence}; the kernel drops the first packet of new connections"
        )
        yield Cause("ConntrackFull", message, advice)
    elif count >= most * _NEARLY_FULL:
        yield Cause(
            "ConntrackNearlyFull", f"the conntrack table is nearly full: {evidence}", advice, fatal=False
        )


def _reverse_path(host: HostFacts, ways: Iterable[Journey]) -> Iterator[Cause]:
    """A named client whose packets to a node port may come in where no route leads back to it."""
    for client in dict.fromkeys(way.client for way in ways if way.frontend.kind is FrontendKind.NODE_PORT):
        route = host.routes.get(client.address)
        if route is None or route.error or route.local or client.kind is not ClientKind.OUTSIDE:
            continue
        others = sorted(
            {
                f"{interface} ({address_text(address)})"
                for address, interface in host.interface_addresses.items()
                if interface in host.strict_reverse_path and interface not in (route.interface, "lo")
            }
        )
        if others:
            yield Cause(
                "StrictReversePath",
                f"packets of {address_text(client.address)} that come in by {listed(others)} are dropped: rp_filter is 1 "
                f"there, and the route back leaves by {route.interface}",
                "use the node's address on that interface, or set rp_filter to 2 (loose)",
                fatal=False,
            )


def _foreign_rules(family: FamilyView, host: HostFacts, ways: tuple[Journey, ...]) -> Iterator[Cause]:
    """What base chains of others do to these packets; one cause per chain and rule."""
    found: dict[tuple[str, str, str, Fate], list[Journey]] = {}
    bases = [chain for chain in host.chains.values() if chain.hook]
    for way in ways:
        for stage in way.stages:
            for chain in bases:
                if chain.hook == stage.hook:
                    for code, fate in _deeds(family, host, way, stage, chain):
                        found.setdefault((code, chain.table, chain.name, fate), []).append(way)
    for (code, table, name, fate), concerned in found.items():
        yield _foreign_cause(code, host.chains[table, name], fate, concerned)


def _deeds(
    family: FamilyView, host: HostFacts, way: Journey, stage: Stage, chain: FilterChain
) -> Iterator[tuple[str, Fate]]:
    outcomes = fates(chain, host.chains, stage.at(chain.priority))
    dropped = judged(outcomes, _DROPS)
    if dropped is not None:
        yield "ForeignDrop", dropped
    translates = chain.kind == "nat" and chain.priority <= TRANSLATION
    taken = judged(outcomes, frozenset((Action.DESTINATION_NAT,))) if translates else None
    if taken is not None:
        # Of two chains with one priority the older one comes first, which the kernel does not tell.
        yield "EarlierNat", taken._replace(certain=taken.certain and chain.priority < TRANSLATION)
    untracked = judged(outcomes, frozenset((Action.UNTRACK,))) if chain.priority < TRANSLATION else None
    if untracked is not None:
        yield "NotTracked", untracked
    kept = not masqueraded(way.frontend, way.client, family)
    masked = (
        judged(outcomes, frozenset((Action.SOURCE_NAT,))) if stage.hook == "postrouting" and kept else None
    )
    if masked is not None:
        yield "ForeignMasquerade", masked


def _foreign_cause(code: str, chain: FilterChain, fate: Fate, ways: list[Journey]) -> Cause:
    clients = listed(dict.fromkeys(way.client.words for way in ways))
    where = f"chain {chain.name} of table {chain.table} ({chain.hook}, priority {chain.priority})"
    why = f"its rule `{fate.rule.text}`" if fate.rule is not None else f"its policy is {fate.action.value}"
    may = "" if fate.certain else "may "
    packets = f"packets from {clients} to {_endpoints(ways)}"
    look = _listing(chain)
    if code == "ForeignDrop":
        if fate.certain:
            verb = "rejects" if fate.action is Action.REJECT else "drops"
            return Cause(
                code,
                f"{where} {verb} {packets}: {why}",
                f"whoever made that table has to let them through: {look}",
            )
        advice = (
            f"what it depends on cannot be foreseen here: {look}, or follow a packet with `pointsman trace`"
        )
        return Cause("ForeignMayDrop", f"{where} may drop {packets}: {why}", advice, fatal=False)
    if code == "EarlierNat":
        message = (
            f"{where} {may}{'send' if may else 'sends'} {packets} elsewhere before the proxy sees them: {why}"
        )
        return Cause(
            code, message, f"only the first translation of a connection counts: {look}", fatal=fate.certain
        )
    if code == "NotTracked":
        message = f"{where} {may}{'take' if may else 'takes'} {packets} out of connection tracking: {why}"
        return Cause(code, message, f"without it nothing is translated: {look}", fatal=fate.certain)
    message = f"{where} {may}{'replace' if may else 'replaces'} the source address of {packets}: {why}"
    return Cause(code, message, f"the endpoint then does not see the client's address: {look}", fatal=False)


def _listing(chain: FilterChain) -> str:
    owner, _, table = chain.table.partition(" ")
    if owner == "legacy":
        return f"iptables-legacy -t {table} -S {chain.name}"
    return f"nft list chain {chain.table} {chain.name}"


def _endpoints(ways: Iterable[Journey]) -> str:
    return listed(dict.fromkeys(str(way.endpoint) for way in ways))
