"""Source ranges at node ports, for Services that ask for them there: a chain of the service port's own before its balancer.

Addresses are guarded by two sets that all services share (schema.py); a node port answers at any address of the node, so
that nothing of it could be in those.
"""

from __future__ import annotations

from pointsman.backends.nftables import clauses as c
from pointsman.backends.nftables.affinity import digest_of
from pointsman.backends.nftables.clauses import rule
from pointsman.backends.nftables.family_traits import traits_of
from pointsman.backends.nftables.schema import Chain
from pointsman.model.node_context import NodeContext
from pointsman.model.plan import Frontend
from pointsman.model.service import ServicePortName


def node_port_guard(
    name: ServicePortName, frontend: Frontend, target: str, context: NodeContext, label: str
) -> Chain:
    """Hands over to `target` whoever may pass, or back where there is none, and drops all others."""
    admitted = c.goto(target) if target else c.RETURN
    traits = traits_of(context.family)
    rules = [rule(c.source_in(cidr, traits), admitted) for cidr in frontend.source_ranges]
    if frontend.admits_any(context.node_ips):
        # To one of its own addresses a node speaks from that very address.
        rules.append(rule(c.SOURCE_IS_NODE, admitted, comment="the node itself"))
    return Chain(f"nodeport-ranges-{digest_of(name)}", (*rules, rule(c.DROP_PACKET)), label)
