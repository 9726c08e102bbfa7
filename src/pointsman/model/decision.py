"""What happens to connections, as data: client positions, outcomes and their reasons, the state of a service port."""

from __future__ import annotations

import enum

import msgspec

from pointsman.model.plan import Outcome


class ClientKind(enum.StrEnum):
    """Where a connection comes from."""

    POD = "pod"
    NODE = "node"
    OUTSIDE = "outside"


class DecisionReason(enum.StrEnum):
    """What decided the outcome of a connection."""

    ENDPOINTS = "Endpoints"
    NO_ENDPOINT = "NoEndpoint"
    NO_LOCAL_ENDPOINT = "NoLocalEndpoint"
    """Policy Local, and the endpoints are on other nodes."""
    SOURCE_RANGES = "SourceRanges"
    NODE_PORT_ADDRESSES = "NodePortAddresses"
    """nodePortAddresses selects no address of this node: no rule handles the packet."""
    REPLIES_BYPASS_NODE = "RepliesBypassNode"
    """Sent to remote endpoints with the client's address: the replies do not return through this node."""
    LEAVES_NODE = "LeavesNode"
    """This mode does not reject the node's own packets."""


class SourceAddress(enum.StrEnum):
    """What the endpoint sees as the source."""

    KEPT = "kept"
    KEPT_EXCEPT_HAIRPIN = "keptExceptHairpin"
    """A pod that reaches itself is masqueraded."""
    KEPT_ON_NODE = "keptOnNode"
    """The endpoint is this node."""
    MASQUERADED = "masqueraded"
    MASQUERADED_EXCEPT_NODE = "masqueradedExceptNode"
    """An endpoint that is this node sees the client."""
    FRONTEND = "frontend"
    """The address of the frontend, which the node has on an interface."""


class EndpointReason(enum.StrEnum):
    """Why frontends with one traffic policy use an endpoint, or do not."""

    READY = "Ready"
    LOCAL = "Local"
    """Ready, on this node."""
    NODE_HINT = "NodeHint"
    """Ready, hinted for this node."""
    ZONE_HINT = "ZoneHint"
    """Ready, hinted for this zone."""
    SERVING = "Serving"
    """Terminating but still serving, and no endpoint is ready."""
    OTHER_NODE = "OtherNode"
    """Policy Local, and it is on another node."""
    TERMINATING = "Terminating"
    """There are ready endpoints."""
    NOT_SERVING = "NotServing"
    """Terminating and no longer serving."""
    NOT_READY = "NotReady"
    NO_WEIGHT = "NoWeight"
    """Weight 0: it keeps its connections and gets no new ones."""
    OTHER_NODE_HINT = "OtherNodeHint"
    OTHER_ZONE_HINT = "OtherZoneHint"
    NO_FRONTEND = "NoFrontend"
    """No frontend has this policy."""


class State(enum.StrEnum):
    """State of a service port: which clients reach an endpoint, of those that no source range excludes."""

    HEALTHY = "healthy"
    PARTIAL = "partial"
    DOWN = "down"


WORST_FIRST = (State.DOWN, State.PARTIAL, State.HEALTHY)


class ClientOutcome(msgspec.Struct, frozen=True, rename="camel"):
    """What happens to connections of one client, or one kind of client, to one frontend."""

    client: ClientKind
    outcome: Outcome
    reason: DecisionReason
    address: str = ""
    """Of the client; empty when only its kind is known."""
    policy: str = ""
    """The traffic policy that chose the endpoints: Cluster or Local. A frontend with policy Local uses Cluster for pods
    and the node, where the mode has this short circuit."""
    endpoints: tuple[str, ...] = ()
    conditional: bool = False
    """Only if the address of the client, which is not known, is in the source ranges."""
    source: SourceAddress | None = None
    message: str = ""
    """The outcome in English."""

    @property
    def is_delivered(self) -> bool:
        return self.outcome is Outcome.DELIVERED

    @property
    def is_restricted(self) -> bool:
        """Excluded on purpose, by loadBalancerSourceRanges."""
        return self.reason is DecisionReason.SOURCE_RANGES
