"""The rules of service ports as text, and batches for iptables-restore that write them. Pure.

A `Fragment` is the text of one service port, ready to be joined; `Committed` are those that the kernel accepted last. A `Batch`
is data that can be printed, tested and traced back from an error: every part of its text has the service port that it belongs
to. Tables are written in the order filter, nat, mangle: the guard for loopback and the firewall of load balancers exist before
traffic is sent anywhere, and the canaries appear only when everything else is in place.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from pointsman.backends.iptables import static
from pointsman.backends.iptables.static import Settings
from pointsman.backends.netfilter import names
from pointsman.backends.netfilter.names import FILTER, MANGLE, NAT
from pointsman.backends.netfilter.rule_text import Jump
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

    def get_lines(self, chain: SharedChain) -> bytes:
        return self.shared[_PLACE[chain]]

    def join_rules(self, table: str) -> bytes:
        """Return everything it writes into a table, declarations aside."""
        shared = b"".join(
            [text for text, chain in zip(self.shared, SHARED_CHAINS, strict=True) if chain.table == table]
        )
        return shared + self.rules if table == NAT else shared


def needs_comments(plans: Iterable[ServicePlan]) -> bool:
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

    def needs_comments_after(self, changed: Mapping[ServicePortName, ServicePlan | None]) -> bool:
        """Return whether endpoint rules have comments once these changes are made."""
        total = self.endpoints
        for name, plan in changed.items():
            old = self.fragments.get(name)
            total += (len(plan.endpoints.all) if plan else 0) - (old.endpoints if old else 0)
        return total <= LARGE_CLUSTER_ENDPOINTS


# --- batches -------------------------------------------------------------------------------------------------

EMPTY = Fragment()

Fragments = Mapping[ServicePortName, Fragment]


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of the rule set that a batch writes."""

    own: Fragments
    """Service ports whose own chains are written."""
    shared: Collection[SharedChain]
    stale: Sequence[str] = ()
    """Chains of table nat to delete."""
    frames: Collection[str] = ()
    """Tables whose chains outside the services are written."""
    jumps: Sequence[Jump] = ()
    """Jumps to insert into built-in chains."""
    create_kubelet_firewall: bool = False
    create_canary: bool = False
    """In table mangle; the other canaries belong to the frames."""


def find_changes(before: Fragments, after: Fragments, changed: Iterable[ServicePortName]) -> Changes:
    """Return what differs between two states of some service ports."""
    pairs = {name: (before.get(name, EMPTY), after.get(name, EMPTY)) for name in changed}
    own = {name: pair for name, pair in pairs.items() if _has_changed(*pair)}
    in_shared = [(old, new) for old, new in pairs.values() if old.shared != new.shared]
    return Changes(
        own={name: new for name, (_, new) in own.items()},
        shared=[
            chain
            for chain in SHARED_CHAINS
            if any(old.get_lines(chain) != new.get_lines(chain) for old, new in in_shared)
        ],
        stale=[chain for old, new in own.values() for chain in _find_stale(old, new)],
    )


def _find_stale(old: Fragment, new: Fragment) -> list[str]:
    kept = set(new.chains)
    return [chain for chain in old.chains if chain not in kept]


def _has_changed(old: Fragment, new: Fragment) -> bool:
    return old.rules != new.rules or old.declarations != new.declarations


class Batch:
    """Input of iptables-restore, part by part."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._owners: list[ServicePortName | None] = []

    def add(self, text: bytes, owner: ServicePortName | None = None) -> None:
        if text:
            self._parts.append(text)
            self._owners.append(owner)

    def add_lines(self, lines: Iterable[str]) -> None:
        self.add("".join([f"{line}\n" for line in lines]).encode())

    @property
    def text(self) -> bytes:
        return b"".join(self._parts)

    def find_owner(self, line: int) -> ServicePortName | None:
        """Return the service port that a line (counted from 1) belongs to; None for shared lines."""
        seen = 0
        for part, owner in zip(self._parts, self._owners, strict=True):
            seen += part.count(b"\n")
            if line <= seen:
                return owner
        return None


def build_batch(
    settings: Settings, fragments: Fragments, changes: Changes, *, over_nftables: bool = True
) -> Batch:
    """Return a batch that writes the changes; empty when there are none. `fragments` is the state after them."""
    batch = Batch()
    for table in (FILTER, NAT):
        _add_table(batch, table, settings, fragments, changes, over_nftables)
    if changes.create_canary:
        batch.add_lines([f"*{MANGLE}", _format_declaration(names.CANARY), "COMMIT"])
    return batch


def _add_table(
    batch: Batch,
    table: str,
    settings: Settings,
    fragments: Fragments,
    changes: Changes,
    over_nftables: bool,
) -> None:
    own, stale = (changes.own, changes.stale) if table == NAT else ({}, ())
    shared = [chain for chain in SHARED_CHAINS if chain.table == table and chain in changes.shared]
    frame = static.list_frame_chains(table, settings) if table in changes.frames else []
    new = [names.KUBELET_FIREWALL] if table == FILTER and changes.create_kubelet_firewall else []
    jumps = [f"-I {jump.line}" for jump in changes.jumps if jump.table == table]
    if not (own or stale or shared or frame or new or jumps):
        return
    declared = (*(chain.chain for chain in shared), *frame, *stale)
    batch.add_lines([f"*{table}"])
    batch.add(_join_declarations(own.values(), declared, descending=not over_nftables))
    # A declaration would flush this chain, and its rules may be the kubelet's.
    batch.add_lines(f"-N {chain}" for chain in new if chain not in frame)
    if frame:
        batch.add_lines(static.build_frame_rules(table, settings))
    for chain in shared:
        for name, fragment in fragments.items():
            batch.add(fragment.get_lines(chain), name)
        if chain == NAT_SERVICES:
            batch.add_lines(static.build_node_port_jumps(settings))
    for name, fragment in own.items():
        batch.add(fragment.rules, name)
    batch.add_lines([*(f"-X {chain}" for chain in stale), *jumps, "COMMIT"])


def _join_declarations(
    fragments: Iterable[Fragment], others: Iterable[str], *, descending: bool = False
) -> bytes:
    """Return declarations in the order of their names: any other takes iptables-nft three times as long (10 s for 11,000 chains).

    Legacy iptables is the other way round: a restore of as many takes about a tenth less time when they descend.
    """
    text = b"".join([fragment.declarations for fragment in fragments])
    text += "".join([f"{_format_declaration(chain)}\n" for chain in others]).encode()
    return b"".join(sorted(text.splitlines(keepends=True), reverse=descending))


def _format_declaration(chain: str) -> str:
    return f":{chain} - [0:0]"


def count_rules(text: bytes, table: str) -> int:
    """Return how many rules a batch appends to a table; counted in place, because the text may be large."""
    start = text.find(f"*{table}\n".encode())
    return text.count(b"\n-A ", start, text.find(b"\nCOMMIT\n", start)) if start >= 0 else 0
