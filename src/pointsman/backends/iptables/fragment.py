"""The rules of one service port as text, ready to be joined, and those that the kernel accepted last."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from pointsman.backends.netfilter import names
from pointsman.backends.netfilter.names import FILTER, NAT
from pointsman.model.plan import ServicePlan
from pointsman.model.service import ServicePortName

LARGE_CLUSTER_ENDPOINTS = 1000
"""Above this many endpoints their rules carry no comments, as upstream: they are half of the text."""


class SharedChain(NamedTuple):
    """A chain that many service ports write lines into."""

    table: str
    chain: str


NAT_SERVICES = SharedChain(NAT, names.SERVICES)
NAT_NODE_PORTS = SharedChain(NAT, names.NODE_PORTS)
FILTER_SERVICES = SharedChain(FILTER, names.SERVICES)
FILTER_EXTERNAL = SharedChain(FILTER, names.EXTERNAL_SERVICES)
FILTER_FIREWALL = SharedChain(FILTER, names.PROXY_FIREWALL)
FILTER_NODE_PORTS = SharedChain(FILTER, names.NODE_PORTS)

SHARED_CHAINS = (
    NAT_SERVICES,
    NAT_NODE_PORTS,
    FILTER_SERVICES,
    FILTER_EXTERNAL,
    FILTER_FIREWALL,
    FILTER_NODE_PORTS,
)
"""All of them, in the order in which a batch writes those of one table."""

_PLACE = {chain: place for place, chain in enumerate(SHARED_CHAINS)}


class Fragment(msgspec.Struct, frozen=True, gc=False):
    """The rules of one service port. Text is kept as bytes: a large cluster has hundreds of thousands of lines."""

    declarations: bytes = b""
    """`:CHAIN - [0:0]` lines of its own chains, all in table nat."""
    rules: bytes = b""
    """The rules in them, chain after chain in the same order."""
    shared: tuple[bytes, ...] = (b"",) * len(SHARED_CHAINS)
    """Its lines in each of `SHARED_CHAINS`."""
    nat_count: int = 0
    """Rules in table nat, shared chains included."""
    filter_count: int = 0
    endpoints: int = 0
    plan: ServicePlan | None = None
    """Made from this plan."""
    comments: bool = True
    """Endpoint rules have comments."""

    @property
    def chains(self) -> list[str]:
        return [line[1:].partition(" ")[0] for line in self.declarations.decode().splitlines()]

    def lines_in(self, chain: SharedChain) -> bytes:
        return self.shared[_PLACE[chain]]

    def rules_in(self, table: str) -> bytes:
        """Return everything it writes into a table, declarations aside."""
        shared = b"".join(
            [text for text, chain in zip(self.shared, SHARED_CHAINS, strict=True) if chain.table == table]
        )
        return shared + self.rules if table == NAT else shared


def wants_comments(plans: Iterable[ServicePlan]) -> bool:
    """Return whether endpoint rules have comments: not in large clusters."""
    return sum(len(plan.endpoints.all) for plan in plans) <= LARGE_CLUSTER_ENDPOINTS


class Committed:
    """The fragments that the kernel accepted, and their totals: a sync joins them instead of compiling again."""

    def __init__(self, fragments: Mapping[ServicePortName, Fragment] = {}) -> None:
        self.fragments: dict[ServicePortName, Fragment] = {}
        self.endpoints = self.filter_rules = self.nat_rules = 0
        self.update(fragments)

    def update(self, changes: Mapping[ServicePortName, Fragment | None]) -> None:
        """Replace the fragments of some service ports; None for those that are gone or rejected."""
        for name, fragment in changes.items():
            self._count(self.fragments.get(name), -1)
            self._count(fragment, 1)
            if fragment is not None:
                self.fragments[name] = fragment
            else:
                self.fragments.pop(name, None)

    def _count(self, fragment: Fragment | None, sign: int) -> None:
        if fragment is not None:
            self.endpoints += sign * fragment.endpoints
            self.filter_rules += sign * fragment.filter_count
            self.nat_rules += sign * fragment.nat_count

    def find(self, plan: ServicePlan, *, comments: bool | None = None) -> Fragment | None:
        """Return the fragment of exactly this plan, with or without comments unless that matters."""
        found = self.fragments.get(plan.name)
        if found is None or (comments is not None and found.comments != comments):
            return None
        return found if found.plan is plan or found.plan == plan else None

    def wants_comments_after(self, changed: Mapping[ServicePortName, ServicePlan | None]) -> bool:
        """Return whether endpoint rules have comments once these changes are made."""
        total = self.endpoints
        for name, plan in changed.items():
            old = self.fragments.get(name)
            total += (len(plan.endpoints.all) if plan else 0) - (old.endpoints if old else 0)
        return total <= LARGE_CLUSTER_ENDPOINTS
