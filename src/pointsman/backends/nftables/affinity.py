"""Session affinity, by chains of the service port's own.

Every endpoint has a dynamic set of the clients that stick to it. A view chain (cluster-wide or local endpoints)
first looks for the client in the sets of its endpoints, then picks one at random; the endpoint's chain enters the
client into the set, or prolongs its stay, and redirects. All frontends of a service port lead to the same views, so
a client gets the same endpoint at each of them; an endpoint that goes takes its set along, which frees exactly
its own clients; and because packets fill the sets, they survive restarts of the process.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Sequence

import msgspec

from pointsman.backends.nftables import clauses as c
from pointsman.backends.nftables import schema, userdata
from pointsman.backends.nftables.balancers import build_marked_goto, build_short_circuit
from pointsman.backends.nftables.clauses import build_rule
from pointsman.backends.nftables.fields import Field, find_traits
from pointsman.backends.nftables.schema import Chain, FlowTimeout, SetSpec
from pointsman.model.endpoint import Endpoint, Identity
from pointsman.model.node_context import NodeContext
from pointsman.model.plan import ServicePlan
from pointsman.model.service import ServicePortName
from pointsman.model.slots import assign_slots

_SET_PREFIX = "affinity-"


class AffinityChains(msgspec.Struct, frozen=True, gc=False):
    """The chains and sets of one service port, and where its frontends enter them."""

    internal: str
    external: str
    chains: tuple[Chain, ...]
    sets: tuple[SetSpec, ...]
    endpoints: tuple[tuple[str, str], ...]
    """Chain and endpoint (`ip:port`)."""


def _compute_digest(*parts: str) -> str:
    return base64.b32encode(hashlib.sha256("\0".join(parts).encode()).digest()[:10]).decode().lower()


def _list_identity(name: ServicePortName) -> tuple[str, str, str, str]:
    return name.namespace, name.service, name.port, name.protocol.lower


def compute_digest(name: ServicePortName) -> str:
    """Return the end of the names of a service port's own chains."""
    return _compute_digest(*_list_identity(name))


def build_affinity_chains(
    plan: ServicePlan, context: NodeContext, label: str, timeout: FlowTimeout | None, *, counters: bool
) -> AffinityChains:
    """Return the chains and sets of one service port; endpoint chains first, then views, then the external entry."""
    port = plan.port
    identity = _list_identity(port.name)
    digest = compute_digest(port.name)
    names: dict[Identity, str] = {}
    chains: list[Chain] = []
    sets: list[SetSpec] = []
    reached: list[tuple[str, str]] = []
    cluster = plan.endpoints.cluster if port.uses_cluster_endpoints else ()
    local = plan.endpoints.local if port.uses_local_endpoints else ()
    for endpoint in (*cluster, *local):
        where = endpoint.identity
        if where in names:
            continue
        name = names[where] = _compute_digest(*identity, str(endpoint))
        comment = userdata.make_printable(f"{label} to {endpoint}")
        sets.append(schema.build_affinity_set(_SET_PREFIX + name, comment))
        statements = [
            *([c.COUNTER] if counters else []),
            *([c.set_flow_timeout(timeout.name)] if timeout else []),
        ]
        chains.append(_build_endpoint_chain(plan, endpoint, name, comment, context, statements))
        reached.append((chains[-1].name, str(endpoint)))
    views = {"service": cluster, "local": local}
    for kind, endpoints in views.items():
        if endpoints:
            counts = Counter(e.identity for e in assign_slots(endpoints, plan.balancing))
            shares = [(names[where], count) for where, count in counts.items()]
            chains.append(_build_view_chain(f"{kind}-{digest}", shares, label, context))
    external = ""
    if port.externally_accessible and (cluster or local):
        external = f"external-{digest}"
        chains.append(
            _build_external_chain(external, digest, plan, bool(cluster), bool(local), label, context)
        )
    internal = f"{'local' if port.service.internal_local else 'service'}-{digest}"
    return AffinityChains(internal, external, tuple(chains), tuple(sets), tuple(reached))


def _build_endpoint_chain(
    plan: ServicePlan,
    endpoint: Endpoint,
    name: str,
    comment: str,
    context: NodeContext,
    statements: Sequence[c.Clause],
) -> Chain:
    """Return the chain that remembers the client, runs the statements and redirects."""
    traits = find_traits(context.family)
    redirect = c.redirect_to(endpoint.address, endpoint.port, traits)
    return Chain(
        f"endpoint-{name}",
        (
            build_rule(c.remember_source(_SET_PREFIX + name, plan.port.service.affinity_seconds, traits)),
            build_rule(c.match_protocol(plan.port.protocol), *statements, redirect),
        ),
        comment,
    )


def _build_view_chain(name: str, shares: list[tuple[str, int]], label: str, context: NodeContext) -> Chain:
    """Return the chain that chooses an endpoint; `shares` are the endpoints, each with its number of slots."""
    traits = find_traits(context.family)
    sticky = [
        build_rule(
            c.match_set((Field.SOURCE,), _SET_PREFIX + endpoint, traits), c.goto(f"endpoint-{endpoint}")
        )
        for endpoint, _ in shares
    ]
    left = sum(count for _, count in shares)
    random = []
    for endpoint, count in shares[:-1]:
        random.append(build_rule(c.match_share(left, count), c.goto(f"endpoint-{endpoint}")))
        left -= count
    random.append(build_rule(c.goto(f"endpoint-{shares[-1][0]}")))
    return Chain(name, (*sticky, *random), label)


def _build_external_chain(
    name: str, digest: str, plan: ServicePlan, cluster: bool, local: bool, label: str, context: NodeContext
) -> Chain:
    if not plan.port.service.external_local:
        return Chain(name, (build_marked_goto(context, f"service-{digest}"),) if cluster else (), label)
    rules = list(build_short_circuit(context, f"service-{digest}")) if cluster else []
    if local:
        rules.append(build_rule(c.goto(f"local-{digest}")))
    return Chain(name, tuple(rules), label)
