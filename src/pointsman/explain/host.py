"""What on the host, beside the proxy's own rules, keeps packets from a service port or changes them. Pure.

A `Journey` lists where packets pass netfilter on this host, with what is known of them there. A certain obstacle is an error;
one that depends on unknown properties of the packet is a warning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from pointsman.backends.contract import Mode
from pointsman.explain.checks import build_error, build_warning
from pointsman.explain.packets import Client, decide, is_masqueraded
from pointsman.explain.rule_walk import Packet, RuleResult, find_results, select_result
from pointsman.explain.view import FamilyView, View
from pointsman.kernel.nfnl import NFPROTO
from pointsman.machine import packet_filter as pf
from pointsman.machine.nft_matches import NAME_LENGTH
from pointsman.machine.packet_filter import Action, FilterChain, PacketField
from pointsman.model.addresses import Family, address_text
from pointsman.model.decision import ClientKind
from pointsman.model.endpoint import Endpoint
from pointsman.model.findings import Code, Finding, Severity
from pointsman.model.node_context import LocalDetector, LocalMode
from pointsman.model.plan import Frontend, FrontendKind, ServicePlan

if TYPE_CHECKING:
    from pointsman.kernel.rtnl import Route
    from pointsman.machine.host_facts import HostFacts

TRANSLATION = -100
"""The priority at which service proxies translate destinations."""
MAX_ENDPOINTS_FOLLOWED = 8
"""Through the rules of others, per frontend and client: those for further endpoints rarely differ."""
DROPS = frozenset((Action.DROP, Action.REJECT))
FORWARDING_SETTINGS = {Family.IPV4: "net.ipv4.ip_forward", Family.IPV6: "net.ipv6.conf.all.forwarding"}
_NEARLY_FULL = 0.9


# --- the way of a packet --------------------------------------------------------------------------------------


class Stage(msgspec.Struct, frozen=True):
    """A packet at one hook, before and after the proxy gave it its endpoint."""

    hook: str
    before: Packet
    after: Packet

    def select_packet(self, priority: int) -> Packet:
        return self.before if priority < TRANSLATION else self.after


class Journey(msgspec.Struct, frozen=True):
    """The first packet of a connection, from one client to one endpoint by one frontend."""

    client: Client
    frontend: Frontend
    endpoint: Endpoint
    stages: tuple[Stage, ...]
    """Empty where the rules of others are not followed."""
    local: bool
    """The endpoint is at an address of this node: nothing is forwarded."""


def build_journeys(
    view: View,
    family: FamilyView,
    host: HostFacts,
    plan: ServicePlan,
    asked: tuple[Frontend, ...],
    clients: tuple[Client, ...],
) -> Iterator[Journey]:
    """Yield every way that a connection asked about may take."""
    for frontend in asked:
        for client in clients:
            endpoints = decide(plan, frontend, client, family, view.mode).endpoints
            for number, endpoint in enumerate(endpoints):
                local = endpoint.address in family.node_addresses
                builder = _StageBuilder(family, host, plan, frontend, client, endpoint)
                stages = builder.build(local=local, by_input=view.mode.quirks.holds_addresses)
                followed = tuple(stages) if number < MAX_ENDPOINTS_FOLLOWED else ()
                yield Journey(client, frontend, endpoint, followed, local)


class _StageBuilder(NamedTuple):
    """What the stages of one journey are made from."""

    family: FamilyView
    host: HostFacts
    plan: ServicePlan
    frontend: Frontend
    client: Client
    endpoint: Endpoint

    def build(self, *, local: bool, by_input: bool) -> Iterator[Stage]:
        before, after = self._build_before(), self._build_after()
        yield Stage("output" if self.client.kind is ClientKind.NODE else "prerouting", before, after)
        if by_input:
            yield Stage("input", before, before)
            yield Stage("output", after, after)
        elif local:
            yield Stage("input", after, after)
            return
        elif self.client.kind is not ClientKind.NODE:
            yield Stage("forward", after, after)
        yield Stage("postrouting", after, after)

    def _list_known(self) -> dict[PacketField, tuple[bytes, bytes]]:
        protocol = bytes((self.plan.port.protocol.value,))
        family = bytes((NFPROTO[self.family.family],))
        known = {PacketField.FAMILY: (family, family), PacketField.PROTOCOL: (protocol, protocol)}
        source = self._find_source()
        if source is not None:
            known[PacketField.SOURCE] = source
        arriving = self.host.routes.get(self.client.address)
        if arriving is not None and arriving.interface and self.client.kind is not ClientKind.NODE:
            known[PacketField.IN_INTERFACE] = _encode_name(arriving.interface)
        return known

    def _find_source(self) -> tuple[bytes, bytes] | None:
        address, local = self.client.address, self.family.context.local
        if address:
            return address, address
        if self.client.kind is ClientKind.NODE:
            route = self.host.routes.get(self.endpoint.address)
            return (route.source, route.source) if route is not None and route.source else None
        if self.client.kind is ClientKind.POD and local.mode is LocalMode.CIDR and local.cidr is not None:
            cidr = local.cidr
            return cidr.network, cidr.last.to_bytes(len(cidr.network), "big")
        return None

    def _build_before(self) -> Packet:
        known = self._list_known()
        known[PacketField.DESTINATION_PORT] = _encode_port(self.frontend.port)
        if self.frontend.address:
            known[PacketField.DESTINATION] = (self.frontend.address, self.frontend.address)
        return Packet(known, {PacketField.CT_STATE: pf.NEW, PacketField.CT_STATUS: 0})

    def _build_after(self) -> Packet:
        known = self._list_known()
        known[PacketField.DESTINATION_PORT] = _encode_port(self.endpoint.port)
        known[PacketField.DESTINATION] = (self.endpoint.address, self.endpoint.address)
        route = self.host.routes.get(self.endpoint.address)
        if route is not None and route.interface:
            known[PacketField.OUT_INTERFACE] = _encode_name(route.interface)
        return Packet(
            known,
            {PacketField.CT_STATE: pf.NEW | pf.STATE_DNAT, PacketField.CT_STATUS: pf.STATUS_DNAT},
        )


def _encode_port(number: int) -> tuple[bytes, bytes]:
    packed = number.to_bytes(2, "big")
    return packed, packed


def _encode_name(interface: str) -> tuple[bytes, bytes]:
    padded = interface.encode().ljust(NAME_LENGTH, b"\0")
    return padded, padded


# --- obstacles --------------------------------------------------------------------------------------------------


def check_host(
    family: FamilyView, host: HostFacts, plan: ServicePlan, mode: Mode, journeys: tuple[Journey, ...]
) -> Iterator[Finding]:
    """Yield everything found on these ways, most decisive first."""
    yield from _check_forwarding(host, journeys)
    yield from _check_routes(host, journeys)
    yield from check_conntrack(host)
    yield from _check_reverse_path(host, journeys)
    yield from _check_foreign_rules(family, host, journeys)
    local = [way.endpoint.address for way in journeys if way.endpoint.local and not way.local]
    for finding in find_undetected_pods(family.context.local, sorted(set(local)), host.routes):
        yield msgspec.structs.replace(finding, severity=Severity.WARNING)
    if plan.resets_gone and mode.capabilities.resets_need_loose_tracking and host.conntrack_loose is False:
        yield build_warning(Code.RESET_GONE_NEEDS_LOOSE_TRACKING)


def _check_forwarding(host: HostFacts, journeys: Iterable[Journey]) -> Iterator[Finding]:
    forwarded = [way for way in journeys if way.client.kind is not ClientKind.NODE and not way.local]
    if not forwarded:
        return
    if host.forwarding is False:
        yield build_error(
            Code.FORWARDING_OFF,
            setting=FORWARDING_SETTINGS[host.family],
            family=host.family.value,
            clients=_name_clients(forwarded),
            endpoints=_name_endpoints(forwarded),
        )
    elif host.not_forwarding:
        yield build_warning(
            Code.INTERFACE_NOT_FORWARDING,
            interfaces=tuple(host.not_forwarding),
            interface=host.not_forwarding[0],
        )


def _check_routes(host: HostFacts, journeys: Iterable[Journey]) -> Iterator[Finding]:
    without: dict[str, dict[Endpoint, None]] = {}
    for way in journeys:
        route = host.routes.get(way.endpoint.address)
        if route is not None and route.error:
            without.setdefault(route.error, {})[way.endpoint] = None
    for reason, endpoints in without.items():
        yield build_error(
            Code.NO_ROUTE,
            endpoints=tuple(map(str, endpoints)),
            error=reason,
            address=address_text(next(iter(endpoints)).address),
        )


def check_conntrack(host: HostFacts) -> Iterator[Finding]:
    """Yield a finding when the connection tracking table is full, or nearly so."""
    count, limit = host.conntrack_count, host.conntrack_max
    if count is None or not limit:
        return
    if count >= limit:
        yield build_error(Code.CONNTRACK_FULL, count=count, max=limit)
    elif count >= limit * _NEARLY_FULL:
        yield build_warning(Code.CONNTRACK_NEARLY_FULL, count=count, max=limit)


def describe_detector(local: LocalDetector) -> str:
    """Return the setting that decides which packets come from local pods, with its value."""
    if local.mode is LocalMode.INTERFACE:
        return f"detectLocal.bridgeInterface {local.interface}"
    if local.mode is LocalMode.INTERFACE_PREFIX:
        return f"detectLocal.interfaceNamePrefix {local.interface}"
    return f"the range of local pods {local.cidr} (clusterCIDR, or the Node's with detectLocalMode NodeCIDR)"


def find_undetected_pods(
    local: LocalDetector, pods: Iterable[bytes], routes: Mapping[bytes, Route]
) -> Iterator[Finding]:
    """Yield the pods on this node whose packets are not recognised as those of local pods."""
    missed = [address_text(pod) for pod in pods if not _is_detected(local, pod, routes.get(pod))]
    if missed:
        yield build_error(Code.PODS_NOT_DETECTED, setting=describe_detector(local), pods=tuple(missed))


def _is_detected(local: LocalDetector, pod: bytes, route: Route | None) -> bool:
    """Return whether packets of the pod are recognised, as far as is known: they arrive where the route to it leads."""
    if local.mode is LocalMode.CIDR:
        return local.cidr is None or local.cidr.contains(pod)
    if local.mode is LocalMode.NONE or route is None or not route.interface:
        return True
    if local.mode is LocalMode.INTERFACE:
        return route.interface == local.interface
    return route.interface.startswith(local.interface)


def _check_reverse_path(host: HostFacts, journeys: Iterable[Journey]) -> Iterator[Finding]:
    """Yield named clients whose packets to a node port may arrive on an interface that no route back uses."""
    for client in dict.fromkeys(
        way.client for way in journeys if way.frontend.kind is FrontendKind.NODE_PORT
    ):
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
            yield build_warning(
                Code.STRICT_REVERSE_PATH,
                address=address_text(client.address),
                interfaces=tuple(others),
                interface=route.interface,
            )


def _check_foreign_rules(
    family: FamilyView, host: HostFacts, journeys: tuple[Journey, ...]
) -> Iterator[Finding]:
    """Yield what base chains of other programs do to these packets; one finding per chain and rule."""
    found: dict[tuple[Code, str, str, RuleResult], list[Journey]] = {}
    bases = [chain for chain in host.chains.values() if chain.hook]
    for way in journeys:
        for stage in way.stages:
            for chain in bases:
                if chain.hook == stage.hook:
                    for code, result in _find_effects(family, host, way, stage, chain):
                        found.setdefault((code, chain.table, chain.name, result), []).append(way)
    for (code, table, name, result), concerned in found.items():
        chain = host.chains[table, name]
        yield build_foreign_finding(code, chain, result, _name_clients(concerned), _name_endpoints(concerned))


def _find_effects(
    family: FamilyView, host: HostFacts, way: Journey, stage: Stage, chain: FilterChain
) -> Iterator[tuple[Code, RuleResult]]:
    results = find_results(chain, host.chains, stage.select_packet(chain.priority))
    dropped = select_result(results, DROPS)
    if dropped is not None:
        yield Code.FOREIGN_DROP if dropped.certain else Code.FOREIGN_MAY_DROP, dropped
    translates = chain.kind == "nat" and chain.priority <= TRANSLATION
    redirected = select_result(results, frozenset((Action.DESTINATION_NAT,))) if translates else None
    if redirected is not None:
        # Of two chains with one priority the older one comes first; the kernel does not tell which one that is.
        certain = redirected.certain and chain.priority < TRANSLATION
        yield Code.EARLIER_NAT, redirected._replace(certain=certain)
    untracked = select_result(results, frozenset((Action.UNTRACK,))) if chain.priority < TRANSLATION else None
    if untracked is not None:
        yield Code.NOT_TRACKED, untracked
    kept = stage.hook == "postrouting" and not is_masqueraded(way.frontend, way.client, family)
    masqueraded = select_result(results, frozenset((Action.SOURCE_NAT,))) if kept else None
    if masqueraded is not None:
        yield Code.FOREIGN_MASQUERADE, masqueraded


def build_foreign_finding(
    code: Code, chain: FilterChain, result: RuleResult, clients: tuple[str, ...], endpoints: tuple[str, ...]
) -> Finding:
    """Return what a base chain of another program does to packets of these clients to these endpoints."""
    make = build_error if result.certain and code is not Code.FOREIGN_MASQUERADE else build_warning
    return make(
        code,
        chain=chain.name,
        table=chain.table,
        hook=chain.hook,
        priority=chain.priority,
        rule=result.rule.text if result.rule is not None else "",
        policy=result.action.value,
        action=result.action.value,
        certain="yes" if result.certain else "",
        clients=clients,
        endpoints=endpoints,
        command=_list_command(chain),
    )


def _list_command(chain: FilterChain) -> str:
    owner, _, table = chain.table.partition(" ")
    if owner == "legacy":
        return f"iptables-legacy -t {table} -S {chain.name}"
    return f"nft list chain {chain.table} {chain.name}"


def _name_clients(journeys: Iterable[Journey]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(way.client.spec for way in journeys))


def _name_endpoints(journeys: Iterable[Journey]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(way.endpoint) for way in journeys))
