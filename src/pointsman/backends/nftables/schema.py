"""The fixed part of the table: every set and map, the base chains and the rules between them.

Services contribute elements only. Which chain a frontend leads to depends on its flavour and its number of
endpoints (balancers.py), so nothing here grows with the number of services.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from pointsman.backends.netfilter.names import PROXY_TABLE
from pointsman.backends.nftables import clauses as c
from pointsman.backends.nftables.clauses import Rule, build_rule
from pointsman.backends.nftables.fields import FamilyTraits, Field, compute_key_length, find_traits
from pointsman.kernel import nf_tables as nf
from pointsman.model.addresses import cidr_from_text, is_loopback
from pointsman.model.node_context import LocalDetector, LocalMode, NodeContext
from pointsman.model.service import Protocol

TABLE = PROXY_TABLE

LAYOUT = 2
"""Raise when sets or base chains change shape: a table of another layout is replaced, not updated."""

FRONTEND = (Field.DESTINATION, Field.PROTOCOL, Field.PORT)
NODE_PORT = (Field.PROTOCOL, Field.PORT)

CLUSTER_IPS = "cluster-ips"
NODEPORT_IPS = "nodeport-ips"
HAIRPIN = "hairpin-connections"
SERVICE_IPS = "service-ips"
SERVICE_NODEPORTS = "service-nodeports"
ENDPOINTS = "endpoints"
LOCAL_ENDPOINTS = "local-endpoints"
NODEPORT_ENDPOINTS = "nodeport-endpoints"
LOCAL_NODEPORT_ENDPOINTS = "local-nodeport-endpoints"
NO_ENDPOINT_SERVICES = "no-endpoint-services"
NO_ENDPOINT_NODEPORTS = "no-endpoint-nodeports"
FIREWALL_IPS = "firewall-frontends"
"""Not firewall-ips: kube-proxy has a map of that name, and a roll-back to it must find nothing of another kind."""
FIREWALL_ALLOW = "firewall-allow"
REJECT_CHAIN = "reject-chain"

AFFINITY_SIZE = 65535

COMMENT_PREFIX = "Pointsman, "
"""Start of the comment of each table that Pointsman makes, whatever its layout."""


class Data(enum.Enum):
    """What an element of a set or map leads to."""

    NOTHING = ""
    VERDICT = "verdict"
    ENDPOINT = "endpoint"


class SetSpec(msgspec.Struct, frozen=True, gc=False):
    """Definition of a set or map."""

    name: str
    key: tuple[Field, ...]
    data: Data = Data.NOTHING
    comment: str = ""
    interval: bool = False
    dynamic: bool = False
    counter: bool = False

    @property
    def typeof(self) -> bool:
        return Field.SLOT in self.key


class HookPoint(enum.IntEnum):
    """Where packets meet base chains, by the kernel's numbers."""

    PREROUTING = 0
    INPUT = 1
    FORWARD = 2
    OUTPUT = 3
    POSTROUTING = 4


class FlowTimeout(NamedTuple):
    """A policy of connection tracking, as an object of the table: one for each distinct value."""

    protocol: Protocol
    seconds: int
    """Of UDP flows, answered or not; of established TCP connections, whose other states keep the kernel's timeouts."""

    @property
    def name(self) -> str:
        return f"{self.protocol.lower}-timeout-{self.seconds}"

    @property
    def policy(self) -> dict[str, int]:
        """Seconds by nft's names of states."""
        states = ("established",) if self.protocol is Protocol.TCP else ("unreplied", "replied")
        return dict.fromkeys(states, self.seconds)


class Hook(NamedTuple):
    """How a base chain is attached."""

    kind: str
    point: int
    priority: int
    policy: int = nf.NF_ACCEPT
    """What becomes of packets that reach its end."""


class Chain(msgspec.Struct, frozen=True, gc=False):
    """A chain with its rules; a base chain when it has a hook."""

    name: str
    rules: tuple[Rule, ...] = ()
    comment: str = ""
    hook: Hook | None = None


def build_table_comment(*, counters: bool) -> str:
    """Return the comment by which Pointsman recognises a table of its own and of this layout."""
    return f"{COMMENT_PREFIX}layout {LAYOUT}{', counters' if counters else ''}"


_HAIRPIN_KEY = (Field.SOURCE, Field.DESTINATION, Field.PROTOCOL, Field.PORT)
_TO_LOCAL_ENDPOINT = "the same for outside clients under policy Local"
_SETS = (
    SetSpec(CLUSTER_IPS, (Field.DESTINATION,), comment="every ClusterIP in use"),
    SetSpec(NODEPORT_IPS, (Field.DESTINATION,), comment="addresses that take NodePort traffic"),
    SetSpec(HAIRPIN, _HAIRPIN_KEY, comment="endpoints of this node reaching themselves"),
    SetSpec(SERVICE_IPS, FRONTEND, Data.VERDICT, "ClusterIP, external and load-balancer frontends"),
    SetSpec(SERVICE_NODEPORTS, NODE_PORT, Data.VERDICT, "NodePort frontends"),
    SetSpec(ENDPOINTS, (*FRONTEND, Field.SLOT), Data.ENDPOINT, "frontend and slot to endpoint"),
    SetSpec(LOCAL_ENDPOINTS, (*FRONTEND, Field.SLOT), Data.ENDPOINT, _TO_LOCAL_ENDPOINT),
    SetSpec(NODEPORT_ENDPOINTS, (*NODE_PORT, Field.SLOT), Data.ENDPOINT, "node port and slot to endpoint"),
    SetSpec(LOCAL_NODEPORT_ENDPOINTS, (*NODE_PORT, Field.SLOT), Data.ENDPOINT, _TO_LOCAL_ENDPOINT),
    SetSpec(NO_ENDPOINT_SERVICES, FRONTEND, Data.VERDICT, "frontends without usable endpoints"),
    SetSpec(NO_ENDPOINT_NODEPORTS, NODE_PORT, Data.VERDICT, "node ports without usable endpoints"),
    SetSpec(FIREWALL_IPS, FRONTEND, comment="frontends with loadBalancerSourceRanges"),
    SetSpec(FIREWALL_ALLOW, (*FRONTEND, Field.SOURCE), comment="who may use them", interval=True),
)
COUNTED = frozenset(
    (SERVICE_IPS, SERVICE_NODEPORTS, *(spec.name for spec in _SETS if spec.data is Data.ENDPOINT))
)
"""Sets whose elements count connections, with service metrics."""


def build_static_sets(*, counters: bool = False) -> tuple[SetSpec, ...]:
    """Return every set and map that always exists, in listing order."""
    if not counters:
        return _SETS
    return tuple(msgspec.structs.replace(spec, counter=spec.name in COUNTED) for spec in _SETS)


def _build_base_chain(name: str, kind: str, point: HookPoint, priority: int, *rules: Rule) -> Chain:
    return Chain(name, rules, hook=Hook(kind, point, priority))


def build_static_chains(context: NodeContext) -> tuple[Chain, ...]:
    """Return the chains that always exist; helpers before the chains that use them."""
    traits = find_traits(context.family)
    new = c.NEW_CONNECTION
    firewall = build_rule(new, c.jump("firewall-check"))
    no_endpoints = build_rule(new, c.jump("service-endpoints-check"))
    cluster_ips = build_rule(new, c.jump("cluster-ips-check"))
    return (
        Chain(REJECT_CHAIN, (build_rule(c.reject(traits)),), "target of frontends without endpoints"),
        Chain("services", _build_service_rules(context, traits)),
        Chain("firewall-check", (_build_firewall_rule(traits),)),
        Chain(
            "service-endpoints-check", (build_rule(c.follow_verdict(FRONTEND, NO_ENDPOINT_SERVICES, traits)),)
        ),
        Chain(
            "nodeport-endpoints-check",
            _build_node_port_rules(context, traits, NO_ENDPOINT_NODEPORTS, input_hook=True),
        ),
        Chain("cluster-ips-check", _build_cluster_ip_rules(context, traits)),
        Chain("masquerading", _build_masquerade_rules(context, traits)),
        _build_base_chain("filter-prerouting-pre-dnat", "filter", HookPoint.PREROUTING, -110, firewall),
        _build_base_chain("filter-output-pre-dnat", "filter", HookPoint.OUTPUT, -110, firewall),
        _build_base_chain(
            "filter-input",
            "filter",
            HookPoint.INPUT,
            0,
            build_rule(new, c.jump("nodeport-endpoints-check")),
            no_endpoints,
        ),
        _build_base_chain("filter-forward", "filter", HookPoint.FORWARD, 0, no_endpoints, cluster_ips),
        _build_base_chain("filter-output", "filter", HookPoint.OUTPUT, 0, no_endpoints, cluster_ips),
        _build_base_chain(
            "nat-prerouting", "nat", HookPoint.PREROUTING, -100, build_rule(c.jump("services"))
        ),
        _build_base_chain("nat-output", "nat", HookPoint.OUTPUT, -100, build_rule(c.jump("services"))),
        _build_base_chain(
            "nat-postrouting", "nat", HookPoint.POSTROUTING, 100, build_rule(c.jump("masquerading"))
        ),
    )


def _build_service_rules(context: NodeContext, traits: FamilyTraits) -> tuple[Rule, ...]:
    rules = []
    to_cluster_ip = c.match_set((Field.DESTINATION,), CLUSTER_IPS, traits)
    mark = c.set_mark_bit(context.masquerade_mark)
    if context.masquerade_all:
        rules.append(build_rule(to_cluster_ip, mark, comment="masquerade all ClusterIP traffic"))
    elif (outside := build_source_match(context.local, traits, inverted=True)) is not None:
        rules.append(
            build_rule(to_cluster_ip, outside, mark, comment="masquerade ClusterIP traffic from outside")
        )
    rules.append(build_rule(c.follow_verdict(FRONTEND, SERVICE_IPS, traits)))
    rules.extend(_build_node_port_rules(context, traits, SERVICE_NODEPORTS))
    return tuple(rules)


def _build_node_port_rules(
    context: NodeContext, traits: FamilyTraits, verdicts: str, *, input_hook: bool = False
) -> tuple[Rule, ...]:
    """Return rules by which node ports answer at every local address but loopback, or at the resolved ones."""
    lookup = c.follow_verdict(NODE_PORT, verdicts, traits)
    if not context.node_port_addresses.match_all:
        return (build_rule(c.match_set((Field.DESTINATION,), NODEPORT_IPS, traits), lookup),)
    loopback = cidr_from_text(traits.loopback)
    assert loopback is not None
    elsewhere = c.match_destination(loopback, traits, inverted=True)
    return (
        build_rule(elsewhere, lookup) if input_hook else build_rule(c.DESTINATION_IS_NODE, elsewhere, lookup),
    )


def _build_firewall_rule(traits: FamilyTraits) -> Rule:
    return build_rule(
        c.match_set(FRONTEND, FIREWALL_IPS, traits),
        c.match_set((*FRONTEND, Field.SOURCE), FIREWALL_ALLOW, traits, inverted=True),
        c.DROP_PACKET,
    )


def _build_cluster_ip_rules(context: NodeContext, traits: FamilyTraits) -> tuple[Rule, ...]:
    unknown_port = build_rule(
        c.match_set((Field.DESTINATION,), CLUSTER_IPS, traits),
        c.reject(traits),
        comment="no such port at this ClusterIP",
    )
    unallocated = (
        build_rule(c.match_destination(cidr, traits), c.DROP_PACKET, comment="no Service has this address")
        for cidr in context.service_cidrs
        if cidr.family is context.family and not cidr.is_everything
    )
    return (unknown_port, *unallocated)


def _build_masquerade_rules(context: NodeContext, traits: FamilyTraits) -> tuple[Rule, ...]:
    mark = context.masquerade_mark
    return (
        build_rule(c.match_mark_bit(mark), c.flip_mark_bit(mark), c.MASQUERADE),
        build_rule(c.REDIRECTED, c.match_set(_HAIRPIN_KEY, HAIRPIN, traits), c.MASQUERADE),
    )


def build_source_match(
    local: LocalDetector, traits: FamilyTraits, *, inverted: bool = False
) -> c.Clause | None:
    """Return a match for traffic of local pods (inverted: of other sources); None when it is unknown or never matches."""
    if local.mode is LocalMode.CIDR and local.cidr is not None:
        if local.cidr.is_everything:
            return None if inverted else c.ALWAYS
        return c.match_source(local.cidr, traits, inverted=inverted)
    if local.mode is LocalMode.INTERFACE and local.interface:
        return c.match_interface(local.interface, prefix=False, inverted=inverted)
    if local.mode is LocalMode.INTERFACE_PREFIX and local.interface:
        return c.match_interface(local.interface, prefix=True, inverted=inverted)
    return None


def find_node_port_addresses(context: NodeContext) -> tuple[bytes, ...]:
    """Return the addresses for the set; loopback node ports are never served by rules in this mode."""
    if context.node_port_addresses.match_all:
        return ()
    return tuple(sorted({a for a in context.node_port_addresses.addresses if not is_loopback(a)}))


def build_affinity_set(name: str, comment: str) -> SetSpec:
    """Return the set of clients that stick to one endpoint; packets fill it, so it survives restarts."""
    return SetSpec(name, (Field.SOURCE,), comment=comment, dynamic=True)


# --- shapes of sets -------------------------------------------------------------------------------------------

ENDPOINT_FIELDS = (Field.DESTINATION, Field.PORT)
"""What an endpoint map leads to."""

_TYPE_BITS = 6
"""nft numbers the type of a concatenation with six bits per field."""


class SetShape(NamedTuple):
    """Flags, types and lengths, as the kernel stores them."""

    flags: int
    key_type: int
    key_length: int
    data_type: int = 0
    data_length: int = 0


def compute_set_shape(spec: SetSpec, traits: FamilyTraits) -> SetShape:
    flags = (
        (nf.NFT_SET_MAP if spec.data is not Data.NOTHING else 0)
        | (nf.NFT_SET_INTERVAL | nf.NFT_SET_CONCAT if spec.interval else 0)
        | (nf.NFT_SET_TIMEOUT | nf.NFT_SET_EVAL if spec.dynamic else 0)
    )
    key_type, length = _compute_datatype(spec.key, traits), compute_key_length(spec.key, traits)
    if spec.data is Data.VERDICT:
        return SetShape(flags, key_type, length, nf.NFT_DATA_VERDICT)
    if spec.data is Data.ENDPOINT:
        data_type = _compute_datatype(ENDPOINT_FIELDS, traits)
        return SetShape(flags, key_type, length, data_type, compute_key_length(ENDPOINT_FIELDS, traits))
    return SetShape(flags, key_type, length)


def _compute_datatype(key: Sequence[Field], traits: FamilyTraits) -> int:
    value = 0
    for field in traits.find_fields(key):
        value = value << _TYPE_BITS | field.type_number
    return value
