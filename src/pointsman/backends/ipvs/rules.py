"""The iptables rules of ipvs mode: a fixed frame whose rules appear when the set they match on has entries.

Rules never name a service (except the few that block a load-balancer address for the node itself), so their text rarely
changes when services do. They are spelled exactly as iptables-save prints them.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable
from typing import NamedTuple

from pointsman.backends.ipvs import sets
from pointsman.backends.ipvs.compile import BLOCKED
from pointsman.backends.ipvs.sets import SetSpec
from pointsman.backends.ledger import Ledger
from pointsman.backends.netfilter import names
from pointsman.backends.netfilter.names import FILTER, NAT
from pointsman.backends.netfilter.rule_text import (
    Jump,
    build_forward_rules,
    build_masquerade_rules,
    format_host,
    match_comment,
    match_local,
    reject_with,
)
from pointsman.kernel.ipvs_objects import VirtualKey
from pointsman.model.addresses import Family, address_text
from pointsman.model.node_context import NodeContext

CHAINS = {
    NAT: (
        names.SERVICES,
        names.POSTROUTING,
        names.IPVS_NODE_PORT,
        names.IPVS_LOAD_BALANCER,
        names.MARK_MASQUERADE,
    ),
    FILTER: (
        names.FORWARD,
        names.IPVS_NODE_PORT,
        names.PROXY_FIREWALL,
        names.IPVS_SOURCE_RANGES,
        names.IPVS_FILTER,
        names.IPVS_OUT_FILTER,
    ),
}


JUMPS = (
    Jump(NAT, "OUTPUT", names.SERVICES, "kubernetes service portals"),
    Jump(NAT, "PREROUTING", names.SERVICES, "kubernetes service portals"),
    Jump(NAT, "POSTROUTING", names.POSTROUTING, "kubernetes postrouting rules"),
    Jump(FILTER, "FORWARD", names.FORWARD, "kubernetes forwarding rules"),
    Jump(FILTER, "INPUT", names.IPVS_NODE_PORT, "kubernetes health check rules"),
    Jump(FILTER, "INPUT", names.PROXY_FIREWALL, "kube-proxy firewall rules"),
    Jump(FILTER, "FORWARD", names.PROXY_FIREWALL, "kube-proxy firewall rules"),
    Jump(FILTER, "INPUT", names.IPVS_FILTER, "kubernetes ipvs access filter"),
    Jump(FILTER, "OUTPUT", names.IPVS_OUT_FILTER, "kubernetes ipvs access filter"),
)
"""In the order in which they are prepended, so the last one of a chain ends up first."""

_NODE_PORT_RULES = (
    (sets.NODE_PORT_LOCAL_TCP, "tcp", "RETURN"),
    (sets.NODE_PORT_TCP, "tcp", names.MARK_MASQUERADE),
    (sets.NODE_PORT_LOCAL_UDP, "udp", "RETURN"),
    (sets.NODE_PORT_UDP, "udp", names.MARK_MASQUERADE),
    (sets.NODE_PORT_LOCAL_SCTP, "sctp", "RETURN"),
    (sets.NODE_PORT_SCTP, "sctp", names.MARK_MASQUERADE),
)


class RuleSet(NamedTuple):
    """The rules of our chains by table, each starting with `-A`."""

    nat: tuple[str, ...]
    filter: tuple[str, ...]

    def list_tables(self) -> Iterable[tuple[str, tuple[str, ...]]]:
        return ((NAT, self.nat), (FILTER, self.filter))

    def render_restore(self, missing_jumps: Collection[Jump] = ()) -> bytes:
        """Return the input of one iptables-restore --noflush that replaces our chains and keeps all others."""
        lines: list[str] = []
        for table, rules in self.list_tables():
            lines.append(f"*{table}")
            lines += [f":{chain} - [0:0]" for chain in CHAINS[table]]
            lines += [f"-I {jump.line}" for jump in JUMPS if jump.table == table and jump in missing_jumps]
            lines += rules
            lines.append("COMMIT")
        return "\n".join(lines).encode() + b"\n"


@functools.lru_cache(maxsize=4)
def build_rules(
    context: NodeContext,
    filled: tuple[str, ...],
    blocked: tuple[VirtualKey, ...],
    *,
    random_fully: bool = True,
) -> RuleSet:
    """Return all rules; `filled` names the sets of this family that have entries.

    `blocked` are load-balancer addresses that the node itself may not use.
    """
    writer = _Writer(context, filled)
    return RuleSet(tuple(writer.build_nat(random_fully)), tuple(writer.build_filter(blocked)))


def build_desired_rules(desired: Ledger, context: NodeContext, *, random_fully: bool = True) -> RuleSet:
    """Return the rules that belong to the desired rows: those of sets without entries are left out."""
    filled = tuple([name for name in sets.list_names(context.family) if desired.rows(name)])
    return build_rules(context, filled, tuple(desired.rows(BLOCKED)), random_fully=random_fully)


class _Writer:
    def __init__(self, context: NodeContext, filled: Collection[str]) -> None:
        self._context = context
        self._family = context.family
        self._filled = filled
        self._mark = hex(context.masquerade_mark)

    def _has(self, spec: SetSpec) -> bool:
        return spec.name(self._family) in self._filled

    def _set(self, spec: SetSpec, *, comment: bool = True, match: str = "") -> str:
        match_set = f"-m set --match-set {spec.name(self._family)} {match or spec.match}"
        return f"{match_comment(spec.comment)} {match_set}" if comment else match_set

    def build_nat(self, random_fully: bool) -> Iterable[str]:
        yield from self._build_services()
        if self._has(sets.LOOP_BACK):
            yield f"-A {names.POSTROUTING} {self._set(sets.LOOP_BACK)} -j MASQUERADE"
        yield from build_masquerade_rules(self._mark, random_fully=random_fully)
        for spec, protocol, target in _NODE_PORT_RULES:
            if self._has(spec):
                yield f"-A {names.IPVS_NODE_PORT} -p {protocol} {self._set(spec)} -j {target}"
        if self._has(sets.LOAD_BALANCER_LOCAL):
            yield f"-A {names.IPVS_LOAD_BALANCER} {self._set(sets.LOAD_BALANCER_LOCAL)} -j RETURN"
        yield f"-A {names.IPVS_LOAD_BALANCER} -j {names.MARK_MASQUERADE}"

    def _build_services(self) -> Iterable[str]:
        chain = f"-A {names.SERVICES}"
        loopback = "127.0.0.0/8" if self._family is Family.IPV4 else "::1/128"
        yield f"{chain} -s {loopback} -j RETURN"
        if self._has(sets.LOAD_BALANCER):
            yield f"{chain} {self._set(sets.LOAD_BALANCER)} -j {names.IPVS_LOAD_BALANCER}"
        if self._has(sets.CLUSTER_IP):
            yield f"{chain} {self._match_cluster_ip()} -j {names.MARK_MASQUERADE}"
        if self._has(sets.EXTERNAL_IP):
            yield f"{chain} {self._set(sets.EXTERNAL_IP)} -j {names.MARK_MASQUERADE}"
        for spec in (sets.EXTERNAL_IP, sets.EXTERNAL_IP_LOCAL):
            if self._has(spec):
                outside = "-m physdev ! --physdev-is-in -m addrtype ! --src-type LOCAL"
                yield f"{chain} {self._set(spec)} {outside} -j ACCEPT"
                yield f"{chain} {self._set(spec)} -m addrtype --dst-type LOCAL -j ACCEPT"
        yield f"{chain} -m addrtype --dst-type LOCAL -j {names.IPVS_NODE_PORT}"
        for spec in (sets.CLUSTER_IP, sets.LOAD_BALANCER):
            if self._has(spec):
                yield f"{chain} {self._set(spec, comment=False)} -j ACCEPT"

    def _match_cluster_ip(self) -> str:
        """Return which cluster IP traffic is masqueraded: all, or what does not come from local pods.

        Without local detection the set is matched with the source instead, which finds nothing but the node's
        own packets to a cluster IP that answered through itself; kube-proxy does the same.
        """
        if self._context.masquerade_all:
            return self._set(sets.CLUSTER_IP)
        local = "".join(match_local(self._context.local))
        if not local:
            return self._set(sets.CLUSTER_IP, match="src,dst")
        return f"! {local}{self._set(sets.CLUSTER_IP)}"

    def build_filter(self, blocked: Iterable[VirtualKey]) -> Iterable[str]:
        yield from build_forward_rules(self._mark)
        yield f"-A {names.IPVS_NODE_PORT} {self._set(sets.HEALTH_CHECK_NODE_PORT)} -j ACCEPT"
        if self._has(sets.LOAD_BALANCER_FIREWALL):
            yield (
                f"-A {names.PROXY_FIREWALL} {self._set(sets.LOAD_BALANCER_FIREWALL)} "
                f"-j {names.IPVS_SOURCE_RANGES}"
            )
        for spec in (sets.LOAD_BALANCER_SOURCE_CIDR, sets.LOAD_BALANCER_SOURCE_IP):
            if self._has(spec):
                yield f"-A {names.IPVS_SOURCE_RANGES} {self._set(spec)} -j RETURN"
        yield f"-A {names.IPVS_SOURCE_RANGES} -j DROP"
        for spec in (
            sets.LOAD_BALANCER,
            sets.CLUSTER_IP,
            sets.EXTERNAL_IP,
            sets.EXTERNAL_IP_LOCAL,
            sets.HEALTH_CHECK_NODE_PORT,
        ):
            yield f"-A {names.IPVS_FILTER} {self._set(spec, comment=False)} -j RETURN"
        unused = self._set(sets.IPVS_IPS, comment=False)
        yield f"-A {names.IPVS_FILTER} -m conntrack --ctstate NEW {unused} -j {reject_with(self._family)}"
        for key in sorted(blocked):
            address = address_text(key.address)
            yield (
                f"-A {names.IPVS_OUT_FILTER} -s {format_host(key.address)} -m ipvs --vproto {key.protocol} "
                f"--vaddr {address} --vport {key.port} -j DROP"
            )
