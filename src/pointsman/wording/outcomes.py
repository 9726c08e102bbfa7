"""The text of outcomes: who connects, what happens, which source address arrives, why an endpoint is used."""

from __future__ import annotations

import msgspec

from pointsman.model.decision import ClientKind, ClientOutcome, DecisionReason, EndpointReason, SourceAddress
from pointsman.model.endpoint import Endpoint
from pointsman.model.plan import Outcome

_CLIENTS = {
    ClientKind.POD: "a pod of this node",
    ClientKind.NODE: "this node",
    ClientKind.OUTSIDE: "an external client",
}
_POD_WITH_ADDRESS = "a pod"
"""With a cluster-wide range, pods of other nodes count as local, too."""

_OUTCOMES = {
    Outcome.DELIVERED: "delivered",
    Outcome.REJECTED: "rejected (the client gets an error at once)",
    Outcome.DROPPED: "dropped (the client times out)",
}
_REASONS = {
    DecisionReason.NO_ENDPOINT: "no usable endpoint",
    DecisionReason.NO_LOCAL_ENDPOINT: "policy Local and no usable endpoint on this node",
    DecisionReason.NODE_PORT_ADDRESSES: "nodePortAddresses selects no address of this node",
    DecisionReason.REPLIES_BYPASS_NODE: (
        "sent to remote endpoints with the client's own address; their replies bypass this node"
    ),
    DecisionReason.LEAVES_NODE: "no usable endpoint; in this mode the node's own packet leaves the node",
}
_SOURCES = {
    SourceAddress.KEPT: "kept",
    SourceAddress.KEPT_EXCEPT_HAIRPIN: "kept (a pod that reaches itself: masqueraded)",
    SourceAddress.KEPT_ON_NODE: "kept (the endpoint is this node)",
    SourceAddress.MASQUERADED: "becomes this node's address",
    SourceAddress.MASQUERADED_EXCEPT_NODE: "becomes this node's address (an endpoint that is this node: kept)",
    SourceAddress.FRONTEND: "is the frontend's own address, which the node has on an interface",
}

_ENDPOINT_REASONS = {
    EndpointReason.READY: "{ready}",
    EndpointReason.LOCAL: "{ready}, on this node",
    EndpointReason.NODE_HINT: "{ready}, hinted for this node",
    EndpointReason.ZONE_HINT: "{ready}, hinted for this zone",
    EndpointReason.SERVING: "terminating but still serving, and no endpoint is ready",
    EndpointReason.OTHER_NODE: "policy Local: it {where}, this node is {node}",
    EndpointReason.TERMINATING: "terminating; ready endpoints exist",
    EndpointReason.NOT_SERVING: "terminating and no longer serving",
    EndpointReason.NOT_READY: "not ready",
    EndpointReason.NO_WEIGHT: "weight 0: it keeps its connections and gets no new ones",
    EndpointReason.OTHER_NODE_HINT: "hinted for node {nodes}, this node is {node}",
    EndpointReason.OTHER_ZONE_HINT: "hinted for zone {zones}, this node is in {zone}",
    EndpointReason.NO_FRONTEND: "no frontend with this policy",
}


def render_endpoint_reason(reason: EndpointReason, endpoint: Endpoint, node: str, zone: str) -> str:
    """Return why this endpoint is used, or not, on this node."""
    return _ENDPOINT_REASONS[reason].format(
        ready="ready (and terminating)" if endpoint.terminating else "ready",
        where=f"runs on node {endpoint.node}" if endpoint.node else "has no nodeName",
        nodes=", ".join(endpoint.state.node_hints),
        zones=", ".join(endpoint.state.zone_hints),
        node=node,
        zone=zone,
    )


def render_reason(reason: DecisionReason) -> str:
    """Return why connections are not delivered."""
    return _REASONS[reason]


def render_client(spec: str) -> str:
    """Return the client that `KIND` or `KIND ADDRESS` names."""
    kind, _, address = spec.partition(" ")
    if not address:
        return _CLIENTS[ClientKind(kind)]
    return f"{address} ({_POD_WITH_ADDRESS if kind == ClientKind.POD else _CLIENTS[ClientKind(kind)]})"


def render_denial(kind: str, address: str) -> str:
    """Return which address loadBalancerSourceRanges exclude."""
    subject = "the node's own address" if kind == ClientKind.NODE else address
    return f"{subject} is not in loadBalancerSourceRanges"


def render_outcome(outcome: ClientOutcome, failed: int = 0) -> str:
    """Return what happens to the connection, and why; `failed` of its endpoints did not accept a probe."""
    if outcome.is_delivered:
        count = len(outcome.endpoints)
        to = "1 endpoint" if count == 1 else f"one of {count} endpoints"
        if failed:
            to += ", which failed the probe" if count == 1 else f", of which {failed} failed the probe"
        condition = ", if its address is in the source ranges" if outcome.conditional else ""
        source = f"; source {_SOURCES[outcome.source]}" if outcome.source is not None else ""
        return f"{'sent' if failed else 'delivered'} to {to}{condition}{source}"
    if outcome.is_restricted:
        return f"{_OUTCOMES[outcome.outcome]}: {render_denial(outcome.client, outcome.address)}"
    return f"{_OUTCOMES[outcome.outcome]}: {_REASONS[outcome.reason]}"


def describe_outcome(outcome: ClientOutcome, failed: int = 0) -> ClientOutcome:
    """Return the outcome with its message."""
    return msgspec.structs.replace(outcome, message=render_outcome(outcome, failed))


def describe_endpoint(pod: str, node: str) -> str:
    """Return pod and node of an endpoint, as far as they are known."""
    return " ".join(filter(None, (f"pod {pod}" if pod else "", f"on {node}" if node else "")))
