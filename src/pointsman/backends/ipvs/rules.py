"""The iptables rules of ipvs mode: a fixed frame whose rules appear when the set they match on has entries.

Rules never name a service (except the few that hide a load balancer address from the node itself), so their text
rarely changes while services come and go. They are spelled exactly as iptables-save prints them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from pointsman.backends.iptables import text
from pointsman.backends.ipvs import sets
from pointsman.backends.ipvs.sets import SetSpec
from pointsman.kernel.ipvs_objects import VirtualKey
from pointsman.model.addresses import Family, address_text
from pointsman.model.node_context import LocalMode, NodeContext

NAT, FILTER = "nat", "filter"
CHAINS = {
    NAT: ("KUBE-SERVICES", "KUBE-POSTROUTING", "KUBE-NODE-PORT", "KUBE-LOAD-BALANCER", "KUBE-MARK-MASQ"),
    FILTER: (
        "KUBE-FORWARD",
        "KUBE-NODE-PORT",
        "KUBE-PROXY-FIREWALL",
        "KUBE-SOURCE-RANGES-FIREWALL",
        "KUBE-IPVS-FILTER",
        "KUBE-IPVS-OUT-FILTER",
    ),
}


class Jump(NamedTuple):
    """A rule in a built-in chain that leads to one of ours."""

    table: str
    source: str
    target: str
    comment: str

    @property
    def rule(self) -> str:
        """Without `-A` or `-I`."""
        return f"{self.source} {text.comment(self.comment)} -j {self.target}"


JUMPS = (
    Jump(NAT, "OUTPUT", "KUBE-SERVICES", "kubernetes service portals"),
    Jump(NAT, "PREROUTING", "KUBE-SERVICES", "kubernetes service portals"),
    Jump(NAT, "POSTROUTING", "KUBE-POSTROUTING", "kubernetes postrouting rules"),
    Jump(FILTER, "FORWARD", "KUBE-FORWARD", "kubernetes forwarding rules"),
    Jump(FILTER, "INPUT", "KUBE-NODE-PORT", "kubernetes health check rules"),
    Jump(FILTER, "INPUT", "KUBE-PROXY-FIREWALL", "kube-proxy firewall rules"),
    Jump(FILTER, "FORWARD", "KUBE-PROXY-FIREWALL", "kube-proxy firewall rules"),
    Jump(FILTER, "INPUT", "KUBE-IPVS-FILTER", "kubernetes ipvs access filter"),
    Jump(FILTER, "OUTPUT", "KUBE-IPVS-OUT-FILTER", "kubernetes ipvs access filter"),
)
"""In the order in which they are prepended, so the last one of a chain stands first."""

_NODE_PORT_RULES = (
    (sets.NODE_PORT_LOCAL_TCP, "tcp", "RETURN"),
    (sets.NODE_PORT_TCP, "tcp", "KUBE-MARK-MASQ"),
    (sets.NODE_PORT_LOCAL_UDP, "udp", "RETURN"),
    (sets.NODE_PORT_UDP, "udp", "KUBE-MARK-MASQ"),
    (sets.NODE_PORT_LOCAL_SCTP, "sctp", "RETURN"),
    (sets.NODE_PORT_SCTP, "sctp", "KUBE-MARK-MASQ"),
)


class RuleSet(NamedTuple):
    """The rules of our chains by table, each starting with `-A`."""

    nat: tuple[str, ...]
    filter: tuple[str, ...]

    def tables(self) -> Iterable[tuple[str, tuple[str, ...]]]:
        return ((NAT, self.nat), (FILTER, self.filter))

    def restore_text(self, missing_jumps: Collection[Jump] = ()) -> bytes:
        """Input for one iptables-restore --noflush: our chains replaced, other chains left alone."""
        lines: list[str] = []
        for table, rules in self.tables():
            lines.append(f"*{table}")
            lines += [f":{chain} - [0:0]" for chain in CHAINS[table]]
            lines += [f"-I {jump.rule}" for jump in JUMPS if jump.table == table and jump in missing_jumps]
            lines += rules
            lines.append("COMMIT")
        return "\n".join(lines).encode() + b"\n"


def rule_set(
    context: NodeContext, filled: Collection[str], hidden: Iterable[VirtualKey], *, random_fully: bool = True
) -> RuleSet:
    """All rules; `filled` names the sets (as this family calls them) that have entries."""
    writer = _Writer(context, filled)
    return RuleSet(tuple(writer.nat(random_fully)), tuple(writer.filter(hidden)))


class _Writer:
    def __init__(self, context: NodeContext, filled: Collection[str]) -> None:
        self._context = context
        self._family = context.family
        self._filled = filled
        self._mark = hex(context.masquerade_mark)

    def _has(self, spec: SetSpec) -> bool:
        return spec.name(self._family) in self._filled

    def _set(self, spec: SetSpec, *, comment: bool = True, match: str = "") -> str:
        words = f"-m set --match-set {spec.name(self._family)} {match or spec.match}"
        return f"{text.comment(spec.comment)} {words}" if comment else words

    def nat(self, random_fully: bool) -> Iterable[str]:
        yield from self._services()
        if self._has(sets.LOOP_BACK):
            yield f"-A KUBE-POSTROUTING {self._set(sets.LOOP_BACK)} -j MASQUERADE"
        yield f"-A KUBE-POSTROUTING -m mark ! --mark {self._mark}/{self._mark} -j RETURN"
        yield f"-A KUBE-POSTROUTING -j MARK --set-xmark {self._mark}/0x0"
        masquerade = "MASQUERADE --random-fully" if random_fully else "MASQUERADE"
        comment = text.comment("kubernetes service traffic requiring SNAT")
        yield f"-A KUBE-POSTROUTING {comment} -j {masquerade}"
        for spec, protocol, target in _NODE_PORT_RULES:
            if self._has(spec):
                yield f"-A KUBE-NODE-PORT -p {protocol} {self._set(spec)} -j {target}"
        if self._has(sets.LOAD_BALANCER_LOCAL):
            yield f"-A KUBE-LOAD-BALANCER {self._set(sets.LOAD_BALANCER_LOCAL)} -j RETURN"
        yield "-A KUBE-LOAD-BALANCER -j KUBE-MARK-MASQ"
        yield f"-A KUBE-MARK-MASQ -j MARK --set-xmark {self._mark}/{self._mark}"

    def _services(self) -> Iterable[str]:
        chain = "-A KUBE-SERVICES"
        loopback = "127.0.0.0/8" if self._family is Family.IPV4 else "::1/128"
        yield f"{chain} -s {loopback} -j RETURN"
        if self._has(sets.LOAD_BALANCER):
            yield f"{chain} {self._set(sets.LOAD_BALANCER)} -j KUBE-LOAD-BALANCER"
        if self._has(sets.CLUSTER_IP):
            yield f"{chain} {self._cluster_ip_match()} -j KUBE-MARK-MASQ"
        if self._has(sets.EXTERNAL_IP):
            yield f"{chain} {self._set(sets.EXTERNAL_IP)} -j KUBE-MARK-MASQ"
        for spec in (sets.EXTERNAL_IP, sets.EXTERNAL_IP_LOCAL):
            if self._has(spec):
                outside = "-m physdev ! --physdev-is-in -m addrtype ! --src-type LOCAL"
                yield f"{chain} {self._set(spec)} {outside} -j ACCEPT"
                yield f"{chain} {self._set(spec)} -m addrtype --dst-type LOCAL -j ACCEPT"
        yield f"{chain} -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT"
        for spec in (sets.CLUSTER_IP, sets.LOAD_BALANCER):
            if self._has(spec):
                yield f"{chain} {self._set(spec, comment=False)} -j ACCEPT"

    def _cluster_ip_match(self) -> str:
        """Which cluster IP traffic loses its source: all, or what does not come from local pods.

        Without local detection the set is matched with the source instead, which finds nothing but the node's
        own packets to a cluster IP that answered through itself; kube-proxy does the same.
        """
        match, local = self._set(sets.CLUSTER_IP), self._context.local
        if self._context.masquerade_all:
            return match
        if local.mode is LocalMode.CIDR:
            return f"! -s {local.cidr} {match}"
        if local.mode is LocalMode.NONE:
            return self._set(sets.CLUSTER_IP, match="src,dst")
        suffix = "+" if local.mode is LocalMode.INTERFACE_PREFIX else ""
        return f"! -i {text.interface(local.interface)}{suffix} {match}"

    def filter(self, hidden: Iterable[VirtualKey]) -> Iterable[str]:
        comment = text.comment("kubernetes forwarding rules")
        yield f"-A KUBE-FORWARD {comment} -m mark --mark {self._mark}/{self._mark} -j ACCEPT"
        comment = text.comment("kubernetes forwarding conntrack rule")
        yield f"-A KUBE-FORWARD {comment} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
        yield f"-A KUBE-NODE-PORT {self._set(sets.HEALTH_CHECK_NODE_PORT)} -j ACCEPT"
        if self._has(sets.LOAD_BALANCER_FIREWALL):
            yield (
                f"-A KUBE-PROXY-FIREWALL {self._set(sets.LOAD_BALANCER_FIREWALL)} "
                "-j KUBE-SOURCE-RANGES-FIREWALL"
            )
        for spec in (sets.LOAD_BALANCER_SOURCE_CIDR, sets.LOAD_BALANCER_SOURCE_IP):
            if self._has(spec):
                yield f"-A KUBE-SOURCE-RANGES-FIREWALL {self._set(spec)} -j RETURN"
        yield "-A KUBE-SOURCE-RANGES-FIREWALL -j DROP"
        for spec in (
            sets.LOAD_BALANCER,
            sets.CLUSTER_IP,
            sets.EXTERNAL_IP,
            sets.EXTERNAL_IP_LOCAL,
            sets.HEALTH_CHECK_NODE_PORT,
        ):
            yield f"-A KUBE-IPVS-FILTER {self._set(spec, comment=False)} -j RETURN"
        unused = self._set(sets.IPVS_IPS, comment=False)
        yield f"-A KUBE-IPVS-FILTER -m conntrack --ctstate NEW {unused} -j {text.reject(self._family)}"
        for key in sorted(hidden):
            address = address_text(key.address)
            yield (
                f"-A KUBE-IPVS-OUT-FILTER -s {text.host(key.address)} -m ipvs --vproto {key.protocol} "
                f"--vaddr {address} --vport {key.port} -j DROP"
            )
