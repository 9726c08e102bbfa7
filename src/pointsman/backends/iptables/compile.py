"""Compiles one plan to the iptables rules of its service port. Pure and deterministic.

The result is text, ready to be joined: chains of its own in table nat, and lines for the chains that all services
share. Within a shared chain the order of services is free, so a fragment never depends on another one.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from typing import NamedTuple

from pointsman.backends.iptables.fragment import Fragment
from pointsman.backends.iptables.static import LOCALHOST_COUNTER, Settings
from pointsman.backends.netfilter import names
from pointsman.backends.netfilter.rule_text import (
    NOT_FIRST,
    RESET,
    format_host,
    format_probability,
    format_recent_mask,
    match_comment,
    match_local,
    reject_with,
)
from pointsman.model.addresses import address_text
from pointsman.model.endpoint import Endpoint
from pointsman.model.plan import Frontend, FrontendKind, Outcome, ServicePlan
from pointsman.model.service import ServicePortName

_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]
"""Base32 ten bits at a time: three times as fast as the base64 module, for tens of thousands of endpoints."""


class ChainNames:
    """Names of the chains of one service port.

    They are a prefix and 16 characters of the base32 of a SHA-256 over the service port's printed name and its protocol, for
    endpoints also `ip:port`. Sixteen characters are ten bytes, so only those are encoded.
    """

    def __init__(self, name: ServicePortName) -> None:
        identity = f"{name}{name.protocol.lower}".encode(errors="surrogatepass")
        self._start = hashlib.sha256(identity)

    @property
    def base(self) -> str:
        """The part that all of them share, after the prefix."""
        return _encode_base32(self._start.digest())

    def build_endpoint_name(self, endpoint: str) -> str:
        """Return the chain of an endpoint, given as `ip:port`."""
        state = self._start.copy()
        state.update(endpoint.encode())
        return names.ENDPOINT + _encode_base32(state.digest())


def _encode_base32(digest: bytes) -> str:
    bits = int.from_bytes(digest[:10], "big")
    pairs = _PAIRS
    return (
        f"{pairs[bits >> 70]}{pairs[bits >> 60 & 1023]}{pairs[bits >> 50 & 1023]}{pairs[bits >> 40 & 1023]}"
        f"{pairs[bits >> 30 & 1023]}{pairs[bits >> 20 & 1023]}{pairs[bits >> 10 & 1023]}{pairs[bits & 1023]}"
    )


def compile_plan(plan: ServicePlan, settings: Settings, *, comments: bool = True) -> Fragment:
    """Return the fragment; `comments` is false in large clusters, where endpoint rules have none."""
    return _Compilation(plan, settings, comments).build()


class _Target(NamedTuple):
    """An endpoint as rules name it."""

    chain: str
    address: str
    """With its prefix length."""
    text: str
    """`ip:port`"""


class _Compilation:
    """Names and options that the rules of one service port have in common."""

    def __init__(self, plan: ServicePlan, settings: Settings, comments: bool) -> None:
        port = plan.port
        chain_names = ChainNames(plan.name)
        base = chain_names.base
        self.plan = plan
        self.port = port
        self.settings = settings
        self.comments = comments
        self.label = str(plan.name)
        self.protocol = port.protocol.lower
        self.cluster_chain = (
            names.CLUSTER_POLICY + base if plan.endpoints.cluster and port.uses_cluster_endpoints else ""
        )
        self.local_chain = (
            names.LOCAL_POLICY + base if plan.endpoints.local and port.uses_local_endpoints else ""
        )
        reachable_outside = plan.endpoints.has_any and port.has_external_chain
        self.external_chain = names.EXTERNAL + base if reachable_outside else ""
        limited = reachable_outside and any(frontend.source_ranges for frontend in plan.frontends)
        self.firewall_chain = names.FIREWALL + base if limited else ""
        self.targets = _find_targets(plan, chain_names)
        self.mask = format_recent_mask(port.family)

    def build(self) -> Fragment:
        own = (self.external_chain, self.firewall_chain, self.cluster_chain, self.local_chain)
        chains = [chain for chain in own if chain] + [target.chain for target in self.targets.values()]
        rules = _compile_own_chains(self)
        nat = [list(_compile_nat_services(self)), list(_compile_nat_node_ports(self))]
        filtering = [
            list(_compile_filter_services(self)),
            list(_compile_filter_external(self)),
            list(_compile_filter_firewall(self)),
            list(_compile_filter_node_ports(self)),
        ]
        # All of them in the order of `SHARED_CHAINS`.
        return Fragment(
            declarations="".join([f":{chain} - [0:0]\n" for chain in chains]).encode(),
            rules=_join_lines(rules),
            shared=tuple([_join_lines(lines) for lines in (*nat, *filtering)]),
            nat_count=len(rules) + sum(map(len, nat)),
            filter_count=sum(map(len, filtering)),
            endpoints=len(self.plan.endpoints.all),
            plan=self.plan,
            comments=self.comments,
        )

    @property
    def internal_chain(self) -> str:
        return self.local_chain if self.port.service.internal_local else self.cluster_chain

    def comment_endpoint(self, suffix: str) -> str:
        return match_comment(self.label + suffix) + " " if self.comments else ""

    def match_destination(self, address: bytes, why: str) -> str:
        return f"-d {address_text(address)}/{len(address) * 8} {self.match_port(why, self.port.port)}"

    def match_local_port(self, why: str, port: int) -> str:
        return (
            f"-p {self.protocol} {match_comment(why)} -m addrtype --dst-type LOCAL"
            f" -m {self.protocol} --dport {port}"
        )

    def match_port(self, why: str, port: int) -> str:
        return f"-p {self.protocol} {match_comment(why)} -m {self.protocol} --dport {port}"

    def find_rejections(self, outcome: Outcome) -> Iterator[tuple[str, str]]:
        """Yield the comment and the end of each rule: further matches and the target."""
        resets = self.plan.resets_gone
        if outcome is Outcome.REJECTED:
            target = RESET if resets else reject_with(self.port.family)
            yield f"{self.label} has no endpoints", f"-j {target}"
            return
        if resets:
            why = f"{self.label} has no local endpoints for open connections"
            yield why, f"{NOT_FIRST} -j {RESET}"
        yield f"{self.label} has no local endpoints", "-j DROP"


# --- lines in shared chains ----------------------------------------------------------------------------------


def _compile_nat_services(its: _Compilation) -> Iterator[str]:
    for frontend in its.plan.frontends:
        match frontend.kind:
            case FrontendKind.CLUSTER_IP if frontend.outcome is Outcome.DELIVERED:
                what, target = "cluster IP", its.internal_chain
            case FrontendKind.EXTERNAL_IP if its.external_chain:
                what, target = "external IP", _find_entry_chain(its, frontend)
            case FrontendKind.LOAD_BALANCER_IP if its.external_chain:
                what, target = "loadbalancer IP", _find_entry_chain(its, frontend)
            case _:
                continue
        match_options = its.match_destination(frontend.address, f"{its.label} {what}")
        yield f"-A {names.SERVICES} {match_options} -j {target}"


def _compile_nat_node_ports(its: _Compilation) -> Iterator[str]:
    if not its.port.node_port or not its.external_chain:
        return
    (frontend,) = (entry for entry in its.plan.frontends if entry.kind is FrontendKind.NODE_PORT)
    target = _find_entry_chain(its, frontend)
    match_options = its.match_port(its.label, its.port.node_port)
    if its.settings.counts_localhost:
        yield (
            f"-A {names.NODE_PORTS} -d 127.0.0.0/8 {match_options}"
            f" -m nfacct --nfacct-name {LOCALHOST_COUNTER} -j {target}"
        )
    yield f"-A {names.NODE_PORTS} {match_options} -j {target}"


def _find_entry_chain(its: _Compilation, frontend: Frontend) -> str:
    """Return the chain that clients of an external frontend get to first."""
    return its.firewall_chain if frontend.source_ranges else its.external_chain


def _compile_filter_services(its: _Compilation) -> Iterator[str]:
    for frontend in its.plan.frontends:
        rejects = frontend.kind is FrontendKind.CLUSTER_IP and frontend.outcome is not Outcome.DELIVERED
        if not rejects and not _is_reset_for_node(its, frontend):
            continue
        for why, target in its.find_rejections(frontend.outcome):
            yield f"-A {names.SERVICES} {its.match_destination(frontend.address, why)} {target}"


def _is_reset_for_node(its: _Compilation, frontend: Frontend) -> bool:
    """Return whether the node's own packets need a separate rule: they do not pass the one for external frontends."""
    is_external = frontend.kind in (FrontendKind.EXTERNAL_IP, FrontendKind.LOAD_BALANCER_IP)
    return its.plan.resets_gone and is_external and frontend.outcome is Outcome.REJECTED


def _compile_filter_external(its: _Compilation) -> Iterator[str]:
    for frontend in its.plan.frontends:
        if frontend.kind is FrontendKind.CLUSTER_IP or frontend.outcome is Outcome.DELIVERED:
            continue
        for why, target in its.find_rejections(frontend.outcome):
            if frontend.kind is FrontendKind.NODE_PORT:
                yield f"-A {names.EXTERNAL_SERVICES} {its.match_local_port(why, frontend.port)} {target}"
            else:
                yield f"-A {names.EXTERNAL_SERVICES} {its.match_destination(frontend.address, why)} {target}"


def _compile_filter_firewall(its: _Compilation) -> Iterator[str]:
    if not its.firewall_chain:
        return
    why = f"{its.label} traffic not accepted by {its.firewall_chain}"
    for frontend in its.plan.frontends:
        if frontend.source_ranges:
            for match_options in _match_places(its, frontend, why):
                yield f"-A {names.PROXY_FIREWALL} {match_options} -j DROP"


def _match_places(its: _Compilation, frontend: Frontend, why: str) -> Iterator[str]:
    where = its.settings.context.node_port_addresses
    if frontend.kind is not FrontendKind.NODE_PORT:
        yield its.match_destination(frontend.address, why)
    elif where.match_all:
        yield its.match_local_port(why, frontend.port)
    else:
        for address in where.addresses:
            yield f"-d {format_host(address)} {its.match_port(why, frontend.port)}"


def _compile_filter_node_ports(its: _Compilation) -> Iterator[str]:
    number = its.port.service.health_check_node_port
    if number:
        why = match_comment(f"{its.label} health check node port")
        yield f"-A {names.NODE_PORTS} -p tcp {why} -m tcp --dport {number} -j ACCEPT"


# --- chains of its own --------------------------------------------------------------------------------------


def _compile_own_chains(its: _Compilation) -> list[str]:
    """Return the rules in the order of `Fragment.chains`, as they are saved."""
    rules: list[str] = []
    if its.external_chain:
        rules += _compile_external_chain(its)
    if its.firewall_chain:
        rules += _compile_firewall_chain(its)
    if its.cluster_chain:
        if not its.port.service.internal_local:
            rules += _compile_internal_masquerade(its)
        rules += _compile_balancing_chain(its, its.cluster_chain, its.plan.endpoints.cluster)
    if its.local_chain:
        if its.port.service.internal_local:
            rules += _compile_internal_masquerade(its)
        rules += _compile_balancing_chain(its, its.local_chain, its.plan.endpoints.local)
    return rules + _compile_endpoint_chains(its)


def _compile_internal_masquerade(its: _Compilation) -> Iterator[str]:
    if its.plan.internal_outcome is not Outcome.DELIVERED:
        return
    source, device = "", ""
    if not its.settings.context.masquerade_all:
        if not its.settings.detects_local:
            return
        source, device = (
            f"! {option}" if option else "" for option in match_local(its.settings.context.local)
        )
    yield (
        f"-A {its.internal_chain} {source}-d {format_host(its.port.cluster_ip)} {device}"
        f"{its.match_port(f'{its.label} cluster IP', its.port.port)} -j {names.MARK_MASQUERADE}"
    )


def _compile_external_chain(its: _Compilation) -> Iterator[str]:
    chain, what = its.external_chain, f"{its.label} external destinations"
    if not its.port.service.external_local:
        why = match_comment(f"masquerade traffic for {what}")
        yield f"-A {chain} {why} -j {names.MARK_MASQUERADE}"
    elif its.cluster_chain:
        # Pods and the node itself are treated as if they had gone out to the balancer and come back.
        if its.settings.detects_local:
            local = "".join(match_local(its.settings.context.local))
            why = match_comment(f"pod traffic for {what}")
            yield f"-A {chain} {local}{why} -j {its.cluster_chain}"
        from_node = "-m addrtype --src-type LOCAL"
        why = match_comment(f"masquerade LOCAL traffic for {what}")
        yield f"-A {chain} {why} {from_node} -j {names.MARK_MASQUERADE}"
        why = match_comment(f"route LOCAL traffic for {what}")
        yield f"-A {chain} {why} {from_node} -j {its.cluster_chain}"
    target = its.local_chain if its.port.service.external_local else its.cluster_chain
    if target:
        yield f"-A {chain} -j {target}"


def _compile_firewall_chain(its: _Compilation) -> Iterator[str]:
    why = match_comment(f"{its.label} loadbalancer IP")
    node_ips = its.settings.context.node_ips[:1]
    for source in its.port.service.source_ranges.cidrs:
        yield f"-A {its.firewall_chain} -s {source} {why} -j {its.external_chain}"
    # A node that holds the balancer's address as its own uses it as the source too.
    if any(source.contains(ip) for source in its.port.service.source_ranges.cidrs for ip in node_ips):
        for address in its.port.load_balancer_ips:
            yield f"-A {its.firewall_chain} -s {format_host(address)} {why} -j {its.external_chain}"
        if its.port.service.source_ranges.all_frontends:
            own = match_comment(f"{its.label} from the node itself")
            yield f"-A {its.firewall_chain} {own} -m addrtype --src-type LOCAL -j {its.external_chain}"
    rest = match_comment(f"other traffic to {its.label} will be dropped by {names.PROXY_FIREWALL}")
    yield f"-A {its.firewall_chain} {rest}"


def _compile_balancing_chain(its: _Compilation, chain: str, endpoints: tuple[Endpoint, ...]) -> list[str]:
    targets = [its.targets[endpoint.address, endpoint.port] for endpoint in endpoints]
    start = f"-A {chain} "
    starts = (
        [start + its.comment_endpoint(f" -> {target.text}") for target in targets]
        if its.comments
        else [start] * len(targets)
    )
    rules: list[str] = []
    if its.port.service.affinity_seconds:
        rules += [
            f"{start}-m recent --rcheck --seconds {its.port.service.affinity_seconds} --reap"
            f" --name {target.chain} --mask {its.mask} --rsource -j {target.chain}"
            for start, target in zip(starts, targets, strict=True)
        ]
    balance = its.plan.balancing
    weights = [balance.weight(endpoint) for endpoint in endpoints] if balance else [1] * len(endpoints)
    rules += [
        f"{start}{chance}-j {target.chain}"
        for start, chance, target in zip(starts, _compute_chances(tuple(weights)), targets, strict=True)
    ]
    return rules


def _compile_endpoint_chains(its: _Compilation) -> list[str]:
    why = its.comment_endpoint("")
    masquerade = f"{why}-j {names.MARK_MASQUERADE}"
    dnat = f"-m {its.protocol} -j DNAT --to-destination"
    start = f"-p {its.protocol} {why}"
    rules: list[str] = []
    for chain, address, target in its.targets.values():
        remember = (
            f"-m recent --set --name {chain} --mask {its.mask} --rsource "
            if its.port.service.affinity_seconds
            else ""
        )
        rules += (
            f"-A {chain} -s {address} {masquerade}",
            f"-A {chain} {start}{remember}{dnat} {target}",
        )
    return rules


def _find_targets(plan: ServicePlan, chain_names: ChainNames) -> dict[tuple[bytes, int], _Target]:
    """Return every endpoint that packets can reach, by address and port."""
    found: dict[tuple[bytes, int], _Target] = {}
    for endpoint in plan.endpoints.reachable:
        address = address_text(endpoint.address)
        if len(endpoint.address) == 4:
            host, target = f"{address}/32", f"{address}:{endpoint.port}"
        else:
            host, target = f"{address}/128", f"[{address}]:{endpoint.port}"
        found[endpoint.address, endpoint.port] = _Target(
            chain_names.build_endpoint_name(target), host, target
        )
    return found


@functools.lru_cache(maxsize=64)
def _compute_chances(weights: tuple[int, ...]) -> tuple[str, ...]:
    """Return for each share the match by which a packet takes it if it took none before; the last needs none."""
    left = sum(weights)
    matches = []
    for weight in weights:
        chance = f"-m statistic --mode random --probability {format_probability(left, weight)} "
        matches.append(chance if left > weight else "")
        left -= weight
    return tuple(matches)


def _join_lines(rules: list[str]) -> bytes:
    return ("\n".join(rules) + "\n").encode() if rules else b""
