"""Service ports: one value per (Service, port, IP family), with every field a backend needs."""

from __future__ import annotations

import enum

import msgspec

from pointsman.model.addresses import Cidr, Family
from pointsman.model.balancing import NO_REQUEST, BalancingRequest

DEFAULT_AFFINITY_SECONDS = 10800
MAX_AFFINITY_SECONDS = 86400
IPVS_SCHEDULER_ANNOTATION = "pointsman.dev/ipvs-scheduler"
SOURCE_RANGES_ANNOTATION = "pointsman.dev/source-ranges"
UDP_DRAINING_ANNOTATION = "pointsman.dev/udp-draining"
UDP_TIMEOUT_ANNOTATION = "pointsman.dev/udp-timeout"
TCP_TIMEOUT_ANNOTATION = "pointsman.dev/tcp-established-timeout"
MAX_UDP_TIMEOUT_SECONDS = 3600
MAX_TCP_TIMEOUT_SECONDS = 5 * 86400
"""The kernel's default for established connections: a Service can shorten it, not fill the table of a node."""


class Protocol(enum.Enum):
    """A transport protocol; the value is its IP protocol number."""

    TCP = 6
    UDP = 17
    SCTP = 132

    @property
    def lower(self) -> str:
        return self.name.lower()

    def __lt__(self, other: Protocol) -> bool:
        return self.value < other.value


PROTOCOL_NAMES = {protocol.value: protocol.lower for protocol in Protocol}
"""By IP protocol number, as every tool prints them."""


class ServicePortName(msgspec.Struct, frozen=True, gc=False, order=True, cache_hash=True):
    """Identity of a service port; prints as kube-proxy does in chain hashes and comments."""

    namespace: str
    service: str
    port: str
    protocol: Protocol

    def __str__(self) -> str:
        return f"{self.key}:{self.port}" if self.port else self.key

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.service}"


class SourceRanges(msgspec.Struct, frozen=True, gc=False):
    """loadBalancerSourceRanges of one family."""

    cidrs: tuple[Cidr, ...] = ()
    """Empty means unrestricted."""
    all_frontends: bool = False
    """They restrict the node port and the external IPs as well."""
    other_family_only: bool = False
    """Ranges are given, but each of them restricts clients of the other family only."""


class FlowTimeouts(msgspec.Struct, frozen=True, gc=False):
    """Seconds after which connection tracking forgets idle flows of a Service; 0 without a request."""

    udp: int = 0
    tcp_established: int = 0


NO_TIMEOUTS = FlowTimeouts()


class ServiceSettings(msgspec.Struct, frozen=True, gc=False):
    """What all ports of one Service have in common, apart from its addresses."""

    type: str = "ClusterIP"
    """Empty for one that is not known."""
    source_ranges: SourceRanges = SourceRanges()
    internal_local: bool = False
    external_local: bool = False
    affinity_seconds: int = 0
    """Session affinity timeout; 0 means no affinity."""
    health_check_node_port: int = 0
    created: str = ""
    """creationTimestamp: the older Service wins a contested address."""
    ipvs_scheduler: str = ""
    """Requested for ipvs mode only; one of `IPVS_SCHEDULERS`, or empty."""
    balancing: BalancingRequest = NO_REQUEST
    port_count: int = 1
    """Number of ports of the Service: they share the limit of hash tables."""
    keep_draining_udp: bool = False
    """UDP flows stay on a terminating endpoint, even one that does not serve, until it is in no slice."""
    flow_timeouts: FlowTimeouts = NO_TIMEOUTS
    external_ips_ignored: bool = False
    """externalIPs are given but switched off; kube-proxy's iptables mode still makes the external chain."""


class ServicePort(msgspec.Struct, frozen=True, gc=False):
    """A service port in one IP family. Addresses are packed and all of that family."""

    name: ServicePortName
    family: Family
    cluster_ip: bytes
    port: int
    node_port: int = 0
    external_ips: tuple[bytes, ...] = ()
    load_balancer_ips: tuple[bytes, ...] = ()
    service: ServiceSettings = ServiceSettings()

    @property
    def protocol(self) -> Protocol:
        return self.name.protocol

    @property
    def keeps_draining(self) -> bool:
        """Its flows stay on terminating endpoints until those are in no slice."""
        return self.protocol is Protocol.UDP and self.service.keep_draining_udp

    @property
    def externally_accessible(self) -> bool:
        return bool(self.node_port or self.load_balancer_ips or self.external_ips)

    @property
    def frontend_count(self) -> int:
        return 1 + len(self.external_ips) + len(self.load_balancer_ips) + bool(self.node_port)

    @property
    def has_external_chain(self) -> bool:
        """External frontends exist, or would exist if external IPs were not switched off."""
        return self.externally_accessible or self.service.external_ips_ignored

    @property
    def uses_cluster_endpoints(self) -> bool:
        """Also with a Local external policy: packets of pods and of the node itself may go to all endpoints."""
        return not self.service.internal_local or self.has_external_chain

    @property
    def uses_local_endpoints(self) -> bool:
        return self.service.internal_local or (self.service.external_local and self.has_external_chain)
