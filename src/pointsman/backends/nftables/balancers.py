"""Balancer chains: one per flavour and number of endpoints in use, shared by all services of that shape.

| chain                     | for                                                  | does                                  |
|---------------------------|------------------------------------------------------|---------------------------------------|
| lb-N                      | cluster IPs                                          | pick one of N slots                   |
| masq-lb-N                 | external and balancer IPs, policy Cluster            | mark for masquerading, goto lb-N      |
| local-lb-N-of-M           | the same, policy Local, N of M endpoints on the node | pods and node to lb-M, others local   |
| nodeport-(the three)      | node ports                                           | the same, looked up by protocol, port |
| hash-(all of them)        | Services with a source hash                          | the slot is drawn by the client       |
| udp-timeout-S-(all)       | Services with a timeout for their flows              | set it, goto the chain without it     |

Two more are made where they are used, for Services that request `reset-gone`: `reset-chain` resets connections at frontends
without endpoints, `reset-known-chain` drops the first packets of new ones (policy Local, no endpoint on this node).
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Iterable
from typing import NamedTuple

from pointsman.backends.nftables import clauses as c
from pointsman.backends.nftables import schema
from pointsman.backends.nftables.clauses import Rule, build_rule
from pointsman.backends.nftables.fields import Field, find_traits
from pointsman.backends.nftables.schema import Chain, FlowTimeout
from pointsman.model.node_context import NodeContext


class Flavour(enum.Enum):
    """What happens before a slot is picked."""

    PLAIN = "lb"
    MASQUERADE = "masq-lb"
    LOCAL = "local-lb"
    RESET = "reset-chain"
    RESET_KNOWN = "reset-known-chain"

    @property
    def refuses(self) -> bool:
        return self in (Flavour.RESET, Flavour.RESET_KNOWN)


class Pick(enum.Enum):
    """What a slot is drawn by; the value begins the names of such chains."""

    RANDOM = ""
    SOURCE = "hash-"
    SOURCE_PORT = "hash-port-"


_HASHED = {
    Pick.RANDOM: (),
    Pick.SOURCE: (Field.SOURCE,),
    Pick.SOURCE_PORT: (Field.SOURCE, Field.SOURCE_PORT),
}


class Balancer(NamedTuple):
    """Identity of a balancer chain."""

    flavour: Flavour
    node_port: bool
    size: int
    """Slots to pick from."""
    cluster_size: int = 0
    """LOCAL only: slots for pods and the node itself, which are not bound by the policy."""
    pick: Pick = Pick.RANDOM
    timeout: FlowTimeout | None = None
    """Of the flows of the Service."""

    @property
    def name(self) -> str:
        return _format_name(self)

    def find_next(self) -> Balancer | None:
        """Return the balancer that packets go to next, if any."""
        if self.timeout is not None:
            return self._replace(timeout=None)
        if self.flavour is Flavour.PLAIN or self.flavour.refuses:
            return None
        size = self.size if self.flavour is Flavour.MASQUERADE else self.cluster_size
        return Balancer(Flavour.PLAIN, self.node_port, size, pick=self.pick)


shared_balancer = functools.lru_cache(4096)(Balancer)
"""Return the one Balancer with these fields: ten thousand services have a few different shapes."""

RESET = Balancer(Flavour.RESET, node_port=False, size=0)
RESET_KNOWN = Balancer(Flavour.RESET_KNOWN, node_port=False, size=0)


def add_spares(balancers: Iterable[Balancer]) -> set[Balancer]:
    """Return the balancers with those of one endpoint more and one less, and all chains that these go to.

    A new rule makes the kernel validate the whole table again (9 ms with 10,000 services, against 1 ms for a new
    verdict element), so the chain a service moves to when it is scaled by one should be there already.
    """
    wanted: set[Balancer] = set()
    for balancer in balancers:
        wanted.add(balancer)
        spared = balancer.flavour in (Flavour.PLAIN, Flavour.MASQUERADE)
        if spared and balancer.pick is Pick.RANDOM:
            wanted.add(balancer._replace(size=balancer.size + 1))
            if balancer.size > 1:
                wanted.add(balancer._replace(size=balancer.size - 1))
    return {needed for balancer in wanted for needed in list_needed(balancer)}


@functools.lru_cache(maxsize=4096)
def list_needed(balancer: Balancer) -> tuple[Balancer, ...]:
    """Return the balancer, and all balancers that its packets go to."""
    further = balancer.find_next()
    return (balancer,) if further is None else (balancer, *list_needed(further))


_NAME = re.compile(
    r"((udp|tcp)-timeout-\d+-)?(hash-(port-)?)?(nodeport-)?((masq-)?lb-\d+|local-lb-\d+-of-\d+)|reset-(known-)?chain"
)


def is_balancer_name(chain: str) -> bool:
    return _NAME.fullmatch(chain) is not None


@functools.lru_cache(maxsize=4096)
def _format_name(balancer: Balancer) -> str:
    if balancer.flavour.refuses:
        return balancer.flavour.value
    if balancer.timeout is not None:
        return f"{balancer.timeout.name}-{balancer._replace(timeout=None).name}"
    name = f"{balancer.pick.value}{'nodeport-' if balancer.node_port else ''}{balancer.flavour.value}-{balancer.size}"
    return f"{name}-of-{balancer.cluster_size}" if balancer.flavour is Flavour.LOCAL else name


def build_balancer_chain(balancer: Balancer, context: NodeContext) -> Chain:
    """Return the chain with its rules."""
    if balancer.flavour is Flavour.RESET:
        return Chain(balancer.name, (build_rule(c.RESET),))
    if balancer.flavour is Flavour.RESET_KNOWN:
        return Chain(balancer.name, (build_rule(c.RESET_UNLESS_FIRST), build_rule(c.DROP_PACKET)))
    further = balancer.find_next()
    if further is None:
        return Chain(balancer.name, (_build_pick_rule(balancer, context, local=False),))
    if balancer.timeout is not None:
        set_timeout = c.set_flow_timeout(balancer.timeout.name)
        return Chain(balancer.name, (build_rule(set_timeout, c.goto(further.name)),))
    if balancer.flavour is Flavour.MASQUERADE:
        return Chain(balancer.name, (build_marked_goto(context, further.name),))
    rules = list(build_short_circuit(context, further.name))
    if balancer.size:
        rules.append(_build_pick_rule(balancer, context, local=True))
    return Chain(balancer.name, tuple(rules))


def build_short_circuit(context: NodeContext, target: str) -> tuple[Rule, ...]:
    """Return the rules by which pods and the node itself reach every endpoint: policy Local binds external clients only."""
    rules = []
    pods = schema.build_source_match(context.local, find_traits(context.family))
    if pods is not None:
        rules.append(build_rule(pods, c.goto(target), comment="pods"))
    mark = c.set_mark_bit(context.masquerade_mark)
    rules.append(build_rule(c.SOURCE_IS_NODE, mark, c.goto(target), comment="the node itself"))
    return tuple(rules)


def build_marked_goto(context: NodeContext, target: str) -> Rule:
    return build_rule(c.set_mark_bit(context.masquerade_mark), c.goto(target))


def _build_pick_rule(balancer: Balancer, context: NodeContext, *, local: bool) -> Rule:
    key: tuple[Field, ...]
    if balancer.node_port:
        key = schema.NODE_PORT
        where = schema.LOCAL_NODEPORT_ENDPOINTS if local else schema.NODEPORT_ENDPOINTS
    else:
        key = schema.FRONTEND
        where = schema.LOCAL_ENDPOINTS if local else schema.ENDPOINTS
    draw = c.Draw(balancer.size, _HASHED[balancer.pick], context.balancing.seed)
    return build_rule(c.redirect_to_slot((*key, Field.SLOT), draw, where, find_traits(context.family)))
