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
from pointsman.backends.iptables.settings import LOCALHOST_COUNTER, Settings, match_local
from pointsman.backends.netfilter import names, spelling
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
        return _encode(self._start.digest())

    def for_endpoint(self, endpoint: str) -> str:
        """Return the chain of an endpoint, given as `ip:port`."""
        state = self._start.copy()
        state.update(endpoint.encode())
        return names.ENDPOINT + _encode(state.digest())


def _encode(digest: bytes) -> str:
    bits = int.from_bytes(digest[:10], "big")
    pairs = _PAIRS
    return (
        f"{pairs[bits >> 70]}{pairs[bits >> 60 & 1023]}{pairs[bits >> 50 & 1023]}{pairs[bits >> 40 & 1023]}"
        f"{pairs[bits >> 30 & 1023]}{pairs[bits >> 20 & 1023]}{pairs[bits >> 10 & 1023]}{pairs[bits & 1023]}"
    )


def compile_plan(plan: ServicePlan, settings: Settings, *, comments: bool = True) -> Fragment:
    """Return the fragment; `comments` is false in large clusters, where endpoint rules have none."""
    return _Compiler(plan, settings, comments).fragment()


class _Target(NamedTuple):
    """An endpoint as rules name it."""

    chain: str
    address: str
    """With its prefix length."""
    text: str
    """`ip:port`"""


class _Compiler:
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
        self.targets = _targets(plan, chain_names)
        self.mask = spelling.recent_mask(port.family)

    def fragment(self) -> Fragment:
        own = (self.external_chain, self.firewall_chain, self.cluster_chain, self.local_chain)
        chains = [chain for chain in own if chain] + [target.chain for target in self.targets.values()]
        rules = self._own_rules()
        nat = [list(self._nat_services()), list(self._nat_node_ports())]
        filtering = [
            list(self._filter_services()),
            list(self._filter_external()),
            list(self._filter_firewall()),
            list(self._filter_node_ports()),
        ]
        # All of them in the order of `SHARED_CHAINS`.
        return Fragment(
            declarations="".join([f":{chain} - [0:0]\n" for chain in chains]).encode(),
            rules=_text(rules),
            shared=tuple([_text(lines) for lines in (*nat, *filtering)]),
            nat_count=len(rules) + sum(map(len, nat)),
            filter_count=sum(map(len, filtering)),
            endpoints=len(self.plan.endpoints.all),
            plan=self.plan,
            comments=self.comments,
        )

    # shared chains

    def _nat_services(self) -> Iterator[str]:
        for frontend in self.plan.frontends:
            match frontend.kind:
                case FrontendKind.CLUSTER_IP if frontend.outcome is Outcome.DELIVERED:
                    what, target = "cluster IP", self._internal_chain
                case FrontendKind.EXTERNAL_IP if self.external_chain:
                    what, target = "external IP", self._entry(frontend)
                case FrontendKind.LOAD_BALANCER_IP if self.external_chain:
                    what, target = "loadbalancer IP", self._entry(frontend)
                case _:
                    continue
            match_options = self._destination(frontend.address, f"{self.label} {what}")
            yield f"-A {names.SERVICES} {match_options} -j {target}"

    def _nat_node_ports(self) -> Iterator[str]:
        if not self.port.node_port or not self.external_chain:
            return
        (frontend,) = (entry for entry in self.plan.frontends if entry.kind is FrontendKind.NODE_PORT)
        target = self._entry(frontend)
        match_options = self._any_destination(self.label, self.port.node_port)
        if self.settings.counts_localhost:
            yield (
                f"-A {names.NODE_PORTS} -d 127.0.0.0/8 {match_options}"
                f" -m nfacct --nfacct-name {LOCALHOST_COUNTER} -j {target}"
            )
        yield f"-A {names.NODE_PORTS} {match_options} -j {target}"

    def _entry(self, frontend: Frontend) -> str:
        """Return the chain that clients of an external frontend get to first."""
        return self.firewall_chain if frontend.source_ranges else self.external_chain

    def _filter_services(self) -> Iterator[str]:
        for frontend in self.plan.frontends:
            rejects = frontend.kind is FrontendKind.CLUSTER_IP and frontend.outcome is not Outcome.DELIVERED
            if not rejects and not self._resets_for_node(frontend):
                continue
            for why, target in self._rejections(frontend.outcome):
                yield f"-A {names.SERVICES} {self._destination(frontend.address, why)} {target}"

    def _resets_for_node(self, frontend: Frontend) -> bool:
        """Return whether the node's own packets need a separate rule: they do not pass the one for external frontends."""
        is_external = frontend.kind in (FrontendKind.EXTERNAL_IP, FrontendKind.LOAD_BALANCER_IP)
        return self.plan.resets_gone and is_external and frontend.outcome is Outcome.REJECTED

    def _filter_external(self) -> Iterator[str]:
        for frontend in self.plan.frontends:
            if frontend.kind is FrontendKind.CLUSTER_IP or frontend.outcome is Outcome.DELIVERED:
                continue
            for why, target in self._rejections(frontend.outcome):
                if frontend.kind is FrontendKind.NODE_PORT:
                    yield f"-A {names.EXTERNAL_SERVICES} {self._any_local(why, frontend.port)} {target}"
                else:
                    yield f"-A {names.EXTERNAL_SERVICES} {self._destination(frontend.address, why)} {target}"

    def _filter_firewall(self) -> Iterator[str]:
        if not self.firewall_chain:
            return
        why = f"{self.label} traffic not accepted by {self.firewall_chain}"
        for frontend in self.plan.frontends:
            if frontend.source_ranges:
                for match_options in self._places(frontend, why):
                    yield f"-A {names.PROXY_FIREWALL} {match_options} -j DROP"

    def _places(self, frontend: Frontend, why: str) -> Iterator[str]:
        where = self.settings.context.node_port_addresses
        if frontend.kind is not FrontendKind.NODE_PORT:
            yield self._destination(frontend.address, why)
        elif where.match_all:
            yield self._any_local(why, frontend.port)
        else:
            for address in where.addresses:
                yield f"-d {spelling.host(address)} {self._any_destination(why, frontend.port)}"

    def _filter_node_ports(self) -> Iterator[str]:
        number = self.port.service.health_check_node_port
        if number:
            why = spelling.comment(f"{self.label} health check node port")
            yield f"-A {names.NODE_PORTS} -p tcp {why} -m tcp --dport {number} -j ACCEPT"

    # chains of its own

    def _own_rules(self) -> list[str]:
        """Return the rules in the order of `Fragment.chains`, as they are saved."""
        rules: list[str] = []
        if self.external_chain:
            rules += self._external_rules()
        if self.firewall_chain:
            rules += self._firewall_rules()
        if self.cluster_chain:
            if not self.port.service.internal_local:
                rules += self._internal_masquerade()
            rules += self._balancing_rules(self.cluster_chain, self.plan.endpoints.cluster)
        if self.local_chain:
            if self.port.service.internal_local:
                rules += self._internal_masquerade()
            rules += self._balancing_rules(self.local_chain, self.plan.endpoints.local)
        return rules + self._endpoint_rules()

    def _internal_masquerade(self) -> Iterator[str]:
        if self.plan.internal_outcome is not Outcome.DELIVERED:
            return
        source, device = "", ""
        if not self.settings.context.masquerade_all:
            if not self.settings.detects_local:
                return
            source, device = (
                f"! {option}" if option else "" for option in match_local(self.settings.context.local)
            )
        yield (
            f"-A {self._internal_chain} {source}-d {spelling.host(self.port.cluster_ip)} {device}"
            f"{self._any_destination(f'{self.label} cluster IP', self.port.port)} -j {names.MARK_MASQUERADE}"
        )

    def _external_rules(self) -> Iterator[str]:
        chain, what = self.external_chain, f"{self.label} external destinations"
        if not self.port.service.external_local:
            why = spelling.comment(f"masquerade traffic for {what}")
            yield f"-A {chain} {why} -j {names.MARK_MASQUERADE}"
        elif self.cluster_chain:
            # Pods and the node itself are treated as if they had gone out to the balancer and come back.
            if self.settings.detects_local:
                local = "".join(match_local(self.settings.context.local))
                why = spelling.comment(f"pod traffic for {what}")
                yield f"-A {chain} {local}{why} -j {self.cluster_chain}"
            from_node = "-m addrtype --src-type LOCAL"
            why = spelling.comment(f"masquerade LOCAL traffic for {what}")
            yield f"-A {chain} {why} {from_node} -j {names.MARK_MASQUERADE}"
            why = spelling.comment(f"route LOCAL traffic for {what}")
            yield f"-A {chain} {why} {from_node} -j {self.cluster_chain}"
        target = self.local_chain if self.port.service.external_local else self.cluster_chain
        if target:
            yield f"-A {chain} -j {target}"

    def _firewall_rules(self) -> Iterator[str]:
        why = spelling.comment(f"{self.label} loadbalancer IP")
        node_ips = self.settings.context.node_ips[:1]
        for source in self.port.service.source_ranges.cidrs:
            yield f"-A {self.firewall_chain} -s {source} {why} -j {self.external_chain}"
        # A node that holds the balancer's address as its own uses it as the source too.
        if any(source.contains(ip) for source in self.port.service.source_ranges.cidrs for ip in node_ips):
            for address in self.port.load_balancer_ips:
                yield f"-A {self.firewall_chain} -s {spelling.host(address)} {why} -j {self.external_chain}"
            if self.port.service.source_ranges.all_frontends:
                own = spelling.comment(f"{self.label} from the node itself")
                yield f"-A {self.firewall_chain} {own} -m addrtype --src-type LOCAL -j {self.external_chain}"
        rest = spelling.comment(f"other traffic to {self.label} will be dropped by {names.PROXY_FIREWALL}")
        yield f"-A {self.firewall_chain} {rest}"

    def _balancing_rules(self, chain: str, endpoints: tuple[Endpoint, ...]) -> list[str]:
        targets = [self.targets[endpoint.address, endpoint.port] for endpoint in endpoints]
        start = f"-A {chain} "
        starts = (
            [start + self._endpoint_comment(f" -> {target.text}") for target in targets]
            if self.comments
            else [start] * len(targets)
        )
        rules: list[str] = []
        if self.port.service.affinity_seconds:
            rules += [
                f"{start}-m recent --rcheck --seconds {self.port.service.affinity_seconds} --reap"
                f" --name {target.chain} --mask {self.mask} --rsource -j {target.chain}"
                for start, target in zip(starts, targets, strict=True)
            ]
        balance = self.plan.balancing
        weights = [balance.weight(endpoint) for endpoint in endpoints] if balance else [1] * len(endpoints)
        rules += [
            f"{start}{chance}-j {target.chain}"
            for start, chance, target in zip(starts, _chances(tuple(weights)), targets, strict=True)
        ]
        return rules

    def _endpoint_rules(self) -> list[str]:
        why = self._endpoint_comment("")
        masquerade = f"{why}-j {names.MARK_MASQUERADE}"
        dnat = f"-m {self.protocol} -j DNAT --to-destination"
        start = f"-p {self.protocol} {why}"
        rules: list[str] = []
        for chain, address, target in self.targets.values():
            remember = (
                f"-m recent --set --name {chain} --mask {self.mask} --rsource "
                if self.port.service.affinity_seconds
                else ""
            )
            rules += (
                f"-A {chain} -s {address} {masquerade}",
                f"-A {chain} {start}{remember}{dnat} {target}",
            )
        return rules

    # options of rules

    @property
    def _internal_chain(self) -> str:
        return self.local_chain if self.port.service.internal_local else self.cluster_chain

    def _endpoint_comment(self, suffix: str) -> str:
        return spelling.comment(self.label + suffix) + " " if self.comments else ""

    def _destination(self, address: bytes, why: str) -> str:
        return f"-d {address_text(address)}/{len(address) * 8} {self._any_destination(why, self.port.port)}"

    def _any_local(self, why: str, port: int) -> str:
        return (
            f"-p {self.protocol} {spelling.comment(why)} -m addrtype --dst-type LOCAL"
            f" -m {self.protocol} --dport {port}"
        )

    def _any_destination(self, why: str, port: int) -> str:
        return f"-p {self.protocol} {spelling.comment(why)} -m {self.protocol} --dport {port}"

    def _rejections(self, outcome: Outcome) -> Iterator[tuple[str, str]]:
        """Yield the comment and the end of each rule: further matches and the target."""
        resets = self.plan.resets_gone
        if outcome is Outcome.REJECTED:
            target = spelling.RESET if resets else spelling.reject(self.port.family)
            yield f"{self.label} has no endpoints", f"-j {target}"
            return
        if resets:
            why = f"{self.label} has no local endpoints for open connections"
            yield why, f"{spelling.NOT_FIRST} -j {spelling.RESET}"
        yield f"{self.label} has no local endpoints", "-j DROP"


def _targets(plan: ServicePlan, chain_names: ChainNames) -> dict[tuple[bytes, int], _Target]:
    """Return every endpoint that packets can reach, by address and port."""
    found: dict[tuple[bytes, int], _Target] = {}
    for endpoint in plan.endpoints.reachable:
        address = address_text(endpoint.address)
        if len(endpoint.address) == 4:
            host, target = f"{address}/32", f"{address}:{endpoint.port}"
        else:
            host, target = f"{address}/128", f"[{address}]:{endpoint.port}"
        found[endpoint.address, endpoint.port] = _Target(chain_names.for_endpoint(target), host, target)
    return found


@functools.lru_cache(maxsize=64)
def _chances(weights: tuple[int, ...]) -> tuple[str, ...]:
    """Return for each share the match by which a packet takes it if it took none before; the last needs none."""
    left = sum(weights)
    matches = []
    for weight in weights:
        chance = f"-m statistic --mode random --probability {spelling.probability(left, weight)} "
        matches.append(chance if left > weight else "")
        left -= weight
    return tuple(matches)


def _text(rules: list[str]) -> bytes:
    return ("\n".join(rules) + "\n").encode() if rules else b""
