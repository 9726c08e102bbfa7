"""The plan: for one service port, which frontends exist, what each does, and with which endpoints.

Backend-neutral. Every backend compiles it, `explain` prints it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec

from pointsman.model.addresses import Cidr
from pointsman.model.balancing import BalancingPlan, Scheduler
from pointsman.model.endpoint import Endpoint
from pointsman.model.findings import Finding
from pointsman.model.service import ServicePort, ServicePortName


class FrontendKind(enum.Enum):
    """The kinds of addresses at which a Service answers."""

    CLUSTER_IP = "ClusterIP"
    EXTERNAL_IP = "ExternalIP"
    LOAD_BALANCER_IP = "LoadBalancerIP"
    NODE_PORT = "NodePort"


class Outcome(enum.StrEnum):
    """What happens to a packet to a frontend."""

    DELIVERED = "delivered"
    REJECTED = "rejected"
    """No usable endpoint anywhere: the client gets an error at once."""
    DROPPED = "dropped"
    """Policy Local and no endpoint on this node: load balancers try other nodes."""


class TopologyMode(enum.Enum):
    """Which hints narrowed the cluster-wide endpoints."""

    NONE = ""
    ZONE = "PreferSameZone"
    NODE = "PreferSameNode"


class Frontend(msgspec.Struct, frozen=True, gc=False):
    """One address (or the node port) at which the service port answers."""

    kind: FrontendKind
    address: bytes
    """Empty for a node port: it answers at the node's own addresses."""
    port: int
    local_policy: bool
    outcome: Outcome
    source_ranges: tuple[Cidr, ...] = ()

    def admits_any(self, addresses: Iterable[bytes]) -> bool:
        """Return whether one of these addresses is in the source ranges; only for frontends that have any."""
        return any(cidr.contains(address) for address in addresses for cidr in self.source_ranges)


class EndpointSelection(msgspec.Struct, frozen=True, gc=False):
    """The endpoints of one service port by use, each tuple sorted by text."""

    all: tuple[Endpoint, ...] = ()
    """In any state."""
    cluster: tuple[Endpoint, ...] = ()
    """Usable where the policy is Cluster (hints and terminating fallback applied)."""
    local: tuple[Endpoint, ...] = ()
    """Usable where the policy is Local (terminating fallback applied)."""
    reachable: tuple[Endpoint, ...] = ()
    """Union of the two: every endpoint that packets can reach from this node."""
    has_any: bool = False
    """Some endpoint is usable on some node: decides between reject and drop."""
    topology: TopologyMode = TopologyMode.NONE
    topology_note: str = ""
    """Why hints were ignored although some endpoint carries them; empty otherwise."""


class ServicePlan(msgspec.Struct, frozen=True, gc=False):
    """Everything a backend needs to program one service port."""

    port: ServicePort
    frontends: tuple[Frontend, ...]
    endpoints: EndpointSelection
    findings: tuple[Finding, ...] = ()
    """What this service port requests and does not get (contested or forbidden addresses, an unavailable scheduler), or
    gets with a warning."""
    balancing: BalancingPlan | None = None
    """How new connections are distributed over the endpoints; None for evenly at random."""
    resets_gone: bool = False
    """TCP connections to a removed endpoint are reset with their next packet."""
    flow_timeout: int = 0
    """Seconds after which connection tracking forgets an idle UDP flow or established connection; 0 leaves that to the kernel."""

    @property
    def name(self) -> ServicePortName:
        return self.port.name

    @property
    def scheduler(self) -> str:
        """Its name as a Service requests it; empty for evenly at random."""
        if self.balancing is None:
            return ""
        ipvs_only = self.balancing.scheduler is Scheduler.IPVS_ONLY
        return self.port.service.balancing.requested_name if ipvs_only else self.balancing.scheduler.value

    @property
    def internal_endpoints(self) -> tuple[Endpoint, ...]:
        return self.endpoints.local if self.port.service.internal_local else self.endpoints.cluster

    @property
    def external_endpoints(self) -> tuple[Endpoint, ...]:
        return self.endpoints.local if self.port.service.external_local else self.endpoints.cluster

    @property
    def internal_outcome(self) -> Outcome:
        return decide_outcome(self.endpoints.has_any, self.internal_endpoints)

    @property
    def external_outcome(self) -> Outcome:
        return decide_outcome(self.endpoints.has_any, self.external_endpoints)


def decide_outcome(has_any: bool, endpoints: tuple[Endpoint, ...]) -> Outcome:
    """Return what happens to packets at a frontend with these usable endpoints; `has_any` includes other nodes."""
    if not has_any:
        return Outcome.REJECTED
    return Outcome.DELIVERED if endpoints else Outcome.DROPPED
