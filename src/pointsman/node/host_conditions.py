"""What on this host keeps packets of all Services from their endpoints, one function per condition. Pure.

`explain` checks the way of one Service; these checks look for what concerns every Service of an IP family. They reuse its facts,
its rule walk and its wording. A condition is raised only for what is certain: a chain that may accept some of these packets,
or a setting that concerns no known endpoint, is left to `explain`.

A further check is a function in `FAMILY_CHECKS`, with a row for its condition type in `wording/conditions.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec

from pointsman.backends.contract import Mode
from pointsman.conditions import Blocks, Condition
from pointsman.explain.checks import build_error
from pointsman.explain.host import (
    DROPS,
    FORWARDING_SETTINGS,
    build_foreign_finding,
    check_conntrack,
    describe_detector,
    find_undetected_pods,
)
from pointsman.explain.rule_walk import Packet, RuleResult, find_results, select_result
from pointsman.kernel.nfnl import NFPROTO
from pointsman.machine import packet_filter as pf
from pointsman.machine.host_facts import BRIDGE_CALLS, HostFacts
from pointsman.machine.nft_matches import NAME_LENGTH
from pointsman.machine.packet_filter import FilterChain, PacketField
from pointsman.model.addresses import Cidr, Family, address_text
from pointsman.model.decision import ClientKind
from pointsman.model.findings import Code, Finding
from pointsman.model.node_context import LocalMode, NodeContext
from pointsman.node.endpoint_groups import EndpointGroup, EndpointGroups
from pointsman.text import join_some
from pointsman.wording.findings import describe

REVERSE_PATH_SECONDS = 60
"""How long dropped packets count."""
MIN_REVERSE_PATH_DROPS = 3
"""A client that gets no reply repeats its first packet as often within a few seconds."""
FORWARDED_CLIENTS = (ClientKind.POD, ClientKind.OUTSIDE)
_CONNECTION_FIELDS = frozenset((PacketField.CT_STATE, PacketField.CT_STATUS, PacketField.FAMILY))
"""What a rule may match and still concern the first packet of every connection."""


class ForeignDrop(NamedTuple):
    """A base chain of another program that drops the first packet of every connection to these endpoints."""

    chain: FilterChain
    result: RuleResult
    clients: tuple[ClientKind, ...]
    groups: tuple[EndpointGroup, ...]


class HostView(msgspec.Struct, frozen=True):
    """One IP family of this host, as far as conditions need it."""

    context: NodeContext
    mode: Mode
    facts: HostFacts
    endpoints: EndpointGroups
    pod_ranges: tuple[Cidr, ...] = ()
    """Of the own Node."""
    reverse_path_drops: int = 0
    """Within the last `REVERSE_PATH_SECONDS`."""
    drops: tuple[ForeignDrop, ...] = ()

    @property
    def family(self) -> Family:
        return self.context.family

    @property
    def blocked(self) -> frozenset[ClientKind]:
        """Clients of which no connection to another host or pod gets through this node."""
        if any(finding.code is Code.CONNTRACK_FULL for finding in check_conntrack(self.facts)):
            return frozenset(ClientKind)
        found = {kind for drop in self.drops if drop.chain.hook != "input" for kind in drop.clients}
        return frozenset(found.union(FORWARDED_CLIENTS) if self.facts.forwarding is False else found)

    @property
    def unreachable(self) -> dict[bytes, str]:
        """Local pods to which this node has no route, and why."""
        routes = self.facts.routes
        return {one: routes[one].error for one in self.local_pods if one in routes and routes[one].error}

    @property
    def local_pods(self) -> list[bytes]:
        """The first ready endpoints on this node, in order."""
        return sorted(self.endpoints.local.addresses)


def check_forwarding(view: HostView) -> Iterator[Condition]:
    """Check that forwarding is on, for the family and for the interfaces that lead to pods or hold the node's address."""
    groups = view.endpoints.forwarded
    if not groups:
        return
    type_ = f"Forwarding{view.family.value}"
    if view.facts.forwarding is False:
        finding = build_error(
            Code.FORWARDING_OFF,
            setting=FORWARDING_SETTINGS[view.family],
            family=view.family.value,
            clients=FORWARDED_CLIENTS,
            endpoints=_collect_examples(groups),
        )
        yield build_condition(type_, (finding,), Blocks.READINESS)
        return
    decisive = tuple(name for name in view.facts.not_forwarding if name in _find_decisive_interfaces(view))
    if decisive:
        finding = build_error(Code.INTERFACE_NOT_FORWARDING, interfaces=decisive, interface=decisive[0])
        yield build_condition(type_, (finding,), Blocks.READINESS)


def check_foreign_rules(view: HostView) -> Iterator[Condition]:
    """Check that no other program drops the first packet of every connection."""
    if view.drops:
        findings = [
            build_foreign_finding(
                Code.FOREIGN_DROP, drop.chain, drop.result, drop.clients, _collect_examples(drop.groups)
            )
            for drop in view.drops
        ]
        blocks = Blocks.READINESS if view.blocked.issuperset(FORWARDED_CLIENTS) else Blocks.SERVICES
        yield build_condition(f"ForeignRules{view.family.value}", findings, blocks)


def check_local_routes(view: HostView) -> Iterator[Condition]:
    """Check that this node has a route to the pods on it."""
    lost = view.unreachable
    if lost:
        first = next(iter(lost))
        finding = build_error(
            Code.NO_ROUTE,
            endpoints=tuple(map(address_text, lost)),
            error=lost[first],
            address=address_text(first),
        )
        blocks = Blocks.READINESS if len(lost) == len(view.local_pods) else Blocks.SERVICES
        yield build_condition(f"PodRoutes{view.family.value}", (finding,), blocks)


def check_local_detection(view: HostView) -> Iterator[Condition]:
    """Check that the configured detection of local traffic covers the Node's pod ranges and the pods on it."""
    local, ranges = view.context.local, [cidr for cidr in view.pod_ranges if cidr.family is view.family]
    findings = list(find_undetected_pods(local, view.local_pods, view.facts.routes))
    if local.mode is LocalMode.CIDR and local.cidr is not None and ranges:
        inside = [
            one for one in ranges if local.cidr.contains(one.network) or one.contains(local.cidr.network)
        ]
        if not inside:
            findings.insert(
                0,
                build_error(
                    Code.POD_RANGE_NOT_DETECTED,
                    setting=describe_detector(local),
                    ranges=tuple(map(str, ranges)),
                ),
            )
    if findings:
        yield build_condition(f"LocalDetection{view.family.value}", findings, Blocks.NOTHING)


def check_bridges(view: HostView) -> Iterator[Condition]:
    """Check that no bridge passes packets between its pods without the proxy's rules."""
    if view.context.masquerade_all:
        return
    routes, bridges = view.facts.routes, view.facts.unfiltered_bridges
    for bridge, networks in bridges.items():
        pods = [
            address_text(one)
            for one in view.local_pods
            if one in routes
            and routes[one].interface == bridge
            and any(cidr.contains(one) for cidr in networks)
        ]
        if pods:
            setting = BRIDGE_CALLS[view.family].replace("/", ".")
            finding = build_error(
                Code.BRIDGE_BYPASSES_RULES, bridge=bridge, setting=setting, endpoints=tuple(pods)
            )
            yield build_condition(f"BridgeNetfilter{view.family.value}", (finding,), Blocks.SERVICES)
            return


def check_reverse_path(view: HostView) -> Iterator[Condition]:
    """Check that strict reverse path filtering drops no packets."""
    interfaces = tuple(sorted(view.facts.strict_reverse_path))
    if interfaces and view.reverse_path_drops >= MIN_REVERSE_PATH_DROPS:
        finding = build_error(
            Code.REVERSE_PATH_DROPS,
            count=view.reverse_path_drops,
            seconds=REVERSE_PATH_SECONDS,
            interfaces=interfaces,
            interface=interfaces[0],
        )
        yield build_condition(f"ReversePath{view.family.value}", (finding,), Blocks.NOTHING)


def check_tracking(view: HostView) -> Iterator[Condition]:
    """Check that the connection tracking table, which both families share, has room."""
    findings = list(check_conntrack(view.facts))
    if findings:
        blocks = Blocks.READINESS if findings[0].is_error else Blocks.NOTHING
        yield build_condition("ConnectionTracking", findings, blocks)


def check_loose_tracking(view: HostView) -> Iterator[Condition]:
    """Check that connections to removed endpoints can be reset where a Service requests it.

    A kernel that tracks a connection only from its first packet on passes the client's next packet untranslated, so that it is
    never reset.
    """
    services = view.endpoints.resetting
    if not services or view.facts.conntrack_loose is not False:
        return
    if view.mode.capabilities.resets_need_loose_tracking:
        finding = build_error(Code.RESET_GONE_NEEDS_LOOSE_TRACKING, services=join_some(sorted(services)))
        yield build_condition("ResetGone", (finding,), Blocks.NOTHING)


FAMILY_CHECKS: tuple[Callable[[HostView], Iterable[Condition]], ...] = (
    check_forwarding,
    check_foreign_rules,
    check_local_routes,
    check_local_detection,
    check_bridges,
    check_reverse_path,
    check_tracking,
    check_loose_tracking,
)


def find_foreign_drops(view: HostView) -> Iterator[ForeignDrop]:
    """Yield base chains of other programs that certainly drop packets to every endpoint that passes their hook."""
    for hook, clients, groups in _list_hooks(view):
        packets = [_build_packet(view, group) for group in groups]
        for chain in view.facts.chains.values():
            if chain.hook == hook and packets:
                result = _find_unconditional_drop(view, chain, packets)
                if result is not None:
                    yield ForeignDrop(chain, result, clients, groups)


def build_condition(type_: str, findings: Iterable[Finding], blocks: Blocks) -> Condition:
    """Return the condition that is false because of these findings, with the remedy of the first."""
    described = [describe(finding) for finding in findings]
    message = "; ".join(finding.message for finding in described)
    return Condition.false(type_, described[0].code.value, message, described[0].remedy, blocks=blocks)


def _list_hooks(view: HostView) -> Iterator[tuple[str, tuple[ClientKind, ...], tuple[EndpointGroup, ...]]]:
    """Yield where first packets pass after their translation, and the endpoints they go to."""
    groups, own = view.endpoints.forwarded, (view.endpoints.own,) if view.endpoints.own else ()
    if view.mode.quirks.holds_addresses:
        yield "output", tuple(ClientKind), groups
    else:
        yield "forward", FORWARDED_CLIENTS, groups
        yield "output", (ClientKind.NODE,), groups
        yield "input", tuple(ClientKind), own


def _find_unconditional_drop(
    view: HostView, chain: FilterChain, packets: Iterable[Packet]
) -> RuleResult | None:
    """Return the policy, or the rule for all remaining packets, that drops all of these; None where a condition decides."""
    results = [_find_drop(view, chain, packet) for packet in packets]
    first = results[0]
    if first is None or any(result is None or result.rule is not first.rule for result in results):
        return None
    if _is_catch_all(chain, first) or _find_drop(view, chain, _build_any_packet(view)) is not None:
        return first
    return None


def _find_drop(view: HostView, chain: FilterChain, packet: Packet) -> RuleResult | None:
    result = select_result(find_results(chain, view.facts.chains, packet), DROPS)
    return result if result is not None and result.certain else None


def _is_catch_all(chain: FilterChain, result: RuleResult) -> bool:
    """Return whether a drop concerns every packet that no rule before it accepted."""
    rule = result.rule
    if rule is None:
        return True
    return rule in chain.rules and all(match.field in _CONNECTION_FIELDS for match in rule.matches)


def _build_any_packet(view: HostView) -> Packet:
    """Return the first packet of any connection to any endpoint."""
    family = bytes((NFPROTO[view.family],))
    return Packet(
        {PacketField.FAMILY: (family, family)},
        {PacketField.CT_STATE: pf.NEW | pf.STATE_DNAT, PacketField.CT_STATUS: pf.STATUS_DNAT},
    )


def _build_packet(view: HostView, group: EndpointGroup) -> Packet:
    """Return the first packet of any connection to these endpoints."""
    any_packet = _build_any_packet(view)
    known = {
        **any_packet.values,
        PacketField.DESTINATION: (group.low, group.high),
        PacketField.DESTINATION_PORT: (group.ports[0].to_bytes(2, "big"), group.ports[1].to_bytes(2, "big")),
        PacketField.PROTOCOL: (bytes((group.protocols[0],)), bytes((group.protocols[1],))),
    }
    interfaces = {
        view.facts.routes[end].interface for end in (group.low, group.high) if end in view.facts.routes
    }
    if len(interfaces) == 1 and (name := interfaces.pop()):
        padded = name.encode().ljust(NAME_LENGTH, b"\0")
        known[PacketField.OUT_INTERFACE] = (padded, padded)
    return Packet(known, any_packet.bits)


def _find_decisive_interfaces(view: HostView) -> frozenset[str]:
    """Return where packets of pods and of other hosts arrive: towards local pods, and with the node's address."""
    facts = view.facts
    to_pods = {facts.routes[one].interface for one in view.endpoints.local.addresses if one in facts.routes}
    own = {facts.interface_addresses.get(address, "") for address in view.context.node_ips}
    return frozenset((to_pods | own) - {"", "lo"})


def _collect_examples(groups: Iterable[EndpointGroup]) -> tuple[str, ...]:
    return tuple(text for group in groups for text in group.examples)
