"""The ipsets that the rules of ipvs mode match on, with kube-proxy's names, types and descriptions.

IPv6 sets carry `KUBE-6-` instead of `KUBE-`, cut to the 31 characters an ipset name may have.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from pointsman.kernel.ipvs_objects import SetHeader, SetType
from pointsman.model.addresses import Family

_MAX_NAME_LENGTH = 31
_MATCHES = {
    SetType.BITMAP_PORT: "dst",
    SetType.HASH_IP: "dst",
    SetType.HASH_IP_PORT: "dst,dst",
    SetType.HASH_IP_PORT_IP: "dst,dst,src",
    SetType.HASH_IP_PORT_NET: "dst,dst,src",
}


class SetSpec(NamedTuple):
    """A set as both families have it; rules print `comment`."""

    base: str
    type: SetType
    comment: str

    @property
    def match(self) -> str:
        """Which parts of a packet are looked up, in the order of the set's type."""
        return _MATCHES[self.type]

    def name(self, family: Family) -> str:
        return _NAMES[family, self.base]


LOOP_BACK = SetSpec(
    "KUBE-LOOP-BACK",
    SetType.HASH_IP_PORT_IP,
    "Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose",
)
CLUSTER_IP = SetSpec(
    "KUBE-CLUSTER-IP", SetType.HASH_IP_PORT, "Kubernetes service cluster ip + port for masquerade purpose"
)
EXTERNAL_IP = SetSpec(
    "KUBE-EXTERNAL-IP",
    SetType.HASH_IP_PORT,
    "Kubernetes service external ip + port for masquerade and filter purpose",
)
EXTERNAL_IP_LOCAL = SetSpec(
    "KUBE-EXTERNAL-IP-LOCAL",
    SetType.HASH_IP_PORT,
    "Kubernetes service external ip + port with externalTrafficPolicy=local",
)
LOAD_BALANCER = SetSpec("KUBE-LOAD-BALANCER", SetType.HASH_IP_PORT, "Kubernetes service lb portal")
LOAD_BALANCER_LOCAL = SetSpec(
    "KUBE-LOAD-BALANCER-LOCAL",
    SetType.HASH_IP_PORT,
    "Kubernetes service load balancer ip + port with externalTrafficPolicy=local",
)
LOAD_BALANCER_FIREWALL = SetSpec(
    "KUBE-LOAD-BALANCER-FW",
    SetType.HASH_IP_PORT,
    "Kubernetes service load balancer ip + port for load balancer with sourceRange",
)
LOAD_BALANCER_SOURCE_IP = SetSpec(
    "KUBE-LOAD-BALANCER-SOURCE-IP",
    SetType.HASH_IP_PORT_IP,
    "Kubernetes service load balancer ip + port + source IP for packet filter purpose",
)
LOAD_BALANCER_SOURCE_CIDR = SetSpec(
    "KUBE-LOAD-BALANCER-SOURCE-CIDR",
    SetType.HASH_IP_PORT_NET,
    "Kubernetes service load balancer ip + port + source cidr for packet filter purpose",
)
NODE_PORT_TCP = SetSpec(
    "KUBE-NODE-PORT-TCP", SetType.BITMAP_PORT, "Kubernetes nodeport TCP port for masquerade purpose"
)
NODE_PORT_LOCAL_TCP = SetSpec(
    "KUBE-NODE-PORT-LOCAL-TCP",
    SetType.BITMAP_PORT,
    "Kubernetes nodeport TCP port with externalTrafficPolicy=local",
)
NODE_PORT_UDP = SetSpec(
    "KUBE-NODE-PORT-UDP", SetType.BITMAP_PORT, "Kubernetes nodeport UDP port for masquerade purpose"
)
NODE_PORT_LOCAL_UDP = SetSpec(
    "KUBE-NODE-PORT-LOCAL-UDP",
    SetType.BITMAP_PORT,
    "Kubernetes nodeport UDP port with externalTrafficPolicy=local",
)
NODE_PORT_SCTP = SetSpec(
    "KUBE-NODE-PORT-SCTP-HASH",
    SetType.HASH_IP_PORT,
    "Kubernetes nodeport SCTP port for masquerade purpose with type 'hash ip:port'",
)
NODE_PORT_LOCAL_SCTP = SetSpec(
    "KUBE-NODE-PORT-LOCAL-SCTP-HASH",
    SetType.HASH_IP_PORT,
    "Kubernetes nodeport SCTP port with externalTrafficPolicy=local with type 'hash ip:port'",
)
HEALTH_CHECK_NODE_PORT = SetSpec(
    "KUBE-HEALTH-CHECK-NODE-PORT", SetType.BITMAP_PORT, "Kubernetes health check node port"
)
IPVS_IPS = SetSpec("KUBE-IPVS-IPS", SetType.HASH_IP, "Addresses on the ipvs interface")

ALL = (
    LOOP_BACK,
    CLUSTER_IP,
    EXTERNAL_IP,
    EXTERNAL_IP_LOCAL,
    LOAD_BALANCER,
    LOAD_BALANCER_LOCAL,
    LOAD_BALANCER_FIREWALL,
    LOAD_BALANCER_SOURCE_IP,
    LOAD_BALANCER_SOURCE_CIDR,
    NODE_PORT_TCP,
    NODE_PORT_LOCAL_TCP,
    NODE_PORT_UDP,
    NODE_PORT_LOCAL_UDP,
    NODE_PORT_SCTP,
    NODE_PORT_LOCAL_SCTP,
    HEALTH_CHECK_NODE_PORT,
    IPVS_IPS,
)

_NAMES: dict[tuple[Family, str], str] = {(Family.IPV4, spec.base): spec.base for spec in ALL} | {
    (Family.IPV6, spec.base): f"KUBE-6-{spec.base.removeprefix('KUBE-')}"[:_MAX_NAME_LENGTH] for spec in ALL
}


@functools.cache
def list_names(family: Family) -> tuple[str, ...]:
    """Return the names of all sets of a family."""
    return tuple(spec.name(family) for spec in ALL)


def build_headers(family: Family) -> list[SetHeader]:
    """Return every set of a family as it is created."""
    return [SetHeader(spec.name(family), spec.type, family if spec.type.has_family else None) for spec in ALL]
