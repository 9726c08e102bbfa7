"""Batches for iptables-restore: data first, so that they can be printed, tested and mapped back from an error.

Every part of the text remembers which service port it came from. Tables are written in the order filter, nat,
mangle: the guard for loopback and the firewall of load balancers stand before traffic is sent anywhere, and the
canaries appear only when everything else is in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pointsman.backends.iptables import static
from pointsman.backends.iptables.fragment import (
    NAT_SERVICES,
    SHARED_CHAINS,
    Fragment,
    SharedChain,
    shared_chains,
)
from pointsman.backends.iptables.present import NOTHING_PRESENT, Present
from pointsman.backends.iptables.settings import Settings
from pointsman.backends.netfilter import names
from pointsman.backends.netfilter.jumps import Jump
from pointsman.backends.netfilter.names import FILTER, NAT
from pointsman.model.service import ServicePortName

EMPTY = Fragment()

Change = tuple[Fragment, Fragment]
"""A service port's fragment before and after; EMPTY when it did not or does not exist."""


class Batch:
    """Restore input under construction."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._owners: list[ServicePortName | None] = []

    def add(self, text: bytes, owner: ServicePortName | None = None) -> None:
        if text:
            self._parts.append(text)
            self._owners.append(owner)

    def lines(self, lines: Iterable[str]) -> None:
        self.add("".join([f"{line}\n" for line in lines]).encode())

    @property
    def text(self) -> bytes:
        return b"".join(self._parts)

    def owner_of(self, line: int) -> ServicePortName | None:
        """The service port that a line (counted from 1) belongs to; None for lines of nobody."""
        seen = 0
        for part, owner in zip(self._parts, self._owners, strict=True):
            seen += part.count(b"\n")
            if line <= seen:
                return owner
        return None


def full_batch(
    settings: Settings,
    fragments: Mapping[ServicePortName, Fragment],
    *,
    missing_jumps: Sequence[Jump] = static.JUMPS,
    stale: Sequence[str] = (),
    create_kubelet_firewall: bool = False,
    present: Present = NOTHING_PRESENT,
    over_nftables: bool = True,
) -> Batch:
    """Everything that is not `present` anew; `stale` are chains of table nat that nobody needs any more."""
    batch = Batch()
    _full_filter(batch, settings, fragments, missing_jumps, create_kubelet_firewall, present)
    own = {name: fragment for name, fragment in fragments.items() if name not in present.services}
    framed = NAT in present.frames
    shared = [chain for chain in shared_chains(NAT) if chain not in present.shared]
    insertions = _insertions(missing_jumps, NAT)
    if own or shared or stale or insertions or not framed:
        frame = () if framed else static.frame_chains(NAT, settings)
        declared = (*(chain.chain for chain in shared), *frame, *stale)
        batch.add(b"*nat\n")
        batch.add(_sorted_declarations(own.values(), declared, descending=not over_nftables))
        if not framed:
            batch.lines(static.frame_rules(NAT, settings))
        for chain in shared:
            _add_shared(batch, settings, fragments, chain)
        for name, fragment in own.items():
            batch.add(fragment.rules, name)
        batch.lines([*(f"-X {chain}" for chain in stale), *insertions, "COMMIT"])
    batch.lines(["*mangle", _declaration(names.CANARY), "COMMIT"])
    return batch


def _full_filter(
    batch: Batch,
    settings: Settings,
    fragments: Mapping[ServicePortName, Fragment],
    missing_jumps: Sequence[Jump],
    create_kubelet_firewall: bool,
    present: Present,
) -> None:
    framed = FILTER in present.frames
    shared = [chain for chain in shared_chains(FILTER) if chain not in present.shared]
    insertions = _insertions(missing_jumps, FILTER)
    if framed and not (shared or insertions or create_kubelet_firewall):
        return
    frame = () if framed else static.frame_chains(FILTER, settings)
    batch.lines(["*filter", *map(_declaration, (*(chain.chain for chain in shared), *frame))])
    if create_kubelet_firewall and names.KUBELET_FIREWALL not in frame:
        # A declaration would flush it, and what is in there may be the kubelet's.
        batch.lines([f"-N {names.KUBELET_FIREWALL}"])
    if not framed:
        batch.lines(static.frame_rules(FILTER, settings))
    for chain in shared:
        _add_shared(batch, settings, fragments, chain)
    batch.lines([*insertions, "COMMIT"])


def partial_batch(
    settings: Settings,
    fragments: Mapping[ServicePortName, Fragment],
    changes: Mapping[ServicePortName, Change],
) -> Batch:
    """Only what changed: the chains of changed service ports, and those shared chains whose lines differ.

    `fragments` is the state after the change. An empty batch means that the kernel holds everything already.
    """
    batch = Batch()
    differing = [chain for chain in SHARED_CHAINS if _differs(changes, chain)]
    _partial_filter(batch, settings, fragments, [chain for chain in differing if chain.table == FILTER])
    own = {name: change for name, change in changes.items() if _own_chains_differ(*change)}
    _partial_nat(batch, settings, fragments, [chain for chain in differing if chain.table == NAT], own)
    return batch


def rules_written(text: bytes, table: str) -> int:
    """How many rules a batch appends to a table; counted in place, because the text may be large."""
    start = text.find(f"*{table}\n".encode())
    return text.count(b"\n-A ", start, text.find(b"\nCOMMIT\n", start)) if start >= 0 else 0


def _partial_filter(
    batch: Batch,
    settings: Settings,
    fragments: Mapping[ServicePortName, Fragment],
    differing: Sequence[SharedChain],
) -> None:
    if differing:
        batch.lines(["*filter", *(_declaration(chain.chain) for chain in differing)])
        for chain in differing:
            _add_shared(batch, settings, fragments, chain)
        batch.lines(["COMMIT"])


def _partial_nat(
    batch: Batch,
    settings: Settings,
    fragments: Mapping[ServicePortName, Fragment],
    differing: Sequence[SharedChain],
    own: Mapping[ServicePortName, Change],
) -> None:
    if not differing and not own:
        return
    stale = [chain for old, new in own.values() for chain in _gone(old, new)]
    batch.add(b"*nat\n")
    rewritten = [chain.chain for chain in differing]
    batch.add(_sorted_declarations((new for _, new in own.values()), (*rewritten, *stale)))
    for chain in differing:
        _add_shared(batch, settings, fragments, chain)
    for name, (_, new) in own.items():
        batch.add(new.rules, name)
    batch.lines([*(f"-X {chain}" for chain in stale), "COMMIT"])


def _add_shared(
    batch: Batch, settings: Settings, fragments: Mapping[ServicePortName, Fragment], chain: SharedChain
) -> None:
    for name, fragment in fragments.items():
        batch.add(fragment.lines_in(chain), name)
    if chain == NAT_SERVICES:
        batch.lines(static.node_port_jumps(settings))


def _sorted_declarations(
    fragments: Iterable[Fragment], others: Iterable[str], *, descending: bool = False
) -> bytes:
    """Declarations in the order of their names: any other costs iptables-nft three times as long (10 s for 11,000 chains).

    Legacy iptables is the other way round: a restore of as many takes it about a tenth less time when they descend.
    """
    text = b"".join([fragment.declarations for fragment in fragments])
    text += "".join([f"{_declaration(chain)}\n" for chain in others]).encode()
    return b"".join(sorted(text.splitlines(keepends=True), reverse=descending))


def _differs(changes: Mapping[ServicePortName, Change], chain: SharedChain) -> bool:
    return any(old.lines_in(chain) != new.lines_in(chain) for old, new in changes.values())


def _own_chains_differ(old: Fragment, new: Fragment) -> bool:
    return old.rules != new.rules or old.declarations != new.declarations


def _gone(old: Fragment, new: Fragment) -> list[str]:
    kept = set(new.chains)
    return [chain for chain in old.chains if chain not in kept]


def _insertions(jumps: Iterable[Jump], table: str) -> list[str]:
    return [f"-I {jump.line}" for jump in jumps if jump.table == table]


def _declaration(chain: str) -> str:
    return f":{chain} - [0:0]"
