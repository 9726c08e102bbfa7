"""Batches for iptables-restore: data first, so that they can be printed, tested and mapped back from an error.

Every part of the text remembers which service port it came from. Tables are written in the order filter, nat,
mangle: the guard for loopback and the firewall of load balancers stand before traffic is sent anywhere, and the
canaries appear only when everything else is in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pointsman.backends.iptables import names, static
from pointsman.backends.iptables.compile import Fragment
from pointsman.backends.iptables.settings import Settings
from pointsman.backends.iptables.static import Jump
from pointsman.model.service import ServicePortName

EMPTY = Fragment()

_FILTER_SHARED = (
    (names.SERVICES, "filter_services"),
    (names.EXTERNAL_SERVICES, "filter_external"),
    (names.PROXY_FIREWALL, "filter_firewall"),
    (names.NODE_PORTS, "filter_node_ports"),
)
_NAT_SHARED = ((names.SERVICES, "nat_services"), (names.NODE_PORTS, "nat_node_ports"))

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
) -> Batch:
    """Everything anew; `stale` are chains of table nat that nobody needs any more."""
    batch = Batch()
    _full_filter(batch, settings, fragments, missing_jumps, create_kubelet_firewall)
    batch.lines(["*nat", *map(_declaration, (*static.NAT_CHAINS, names.CANARY))])
    for fragment in fragments.values():
        batch.add(fragment.declarations)
    batch.lines(map(_declaration, stale))
    batch.lines([*static.nat_rules(settings), static.CANARY_RULE])
    for _, field in _NAT_SHARED:
        _add_shared(batch, fragments, field)
    batch.lines(static.node_port_jumps(settings))
    for name, fragment in fragments.items():
        batch.add(fragment.rules, name)
    batch.lines(f"-X {chain}" for chain in stale)
    batch.lines(_insertions(missing_jumps, "nat"))
    batch.lines(["COMMIT", "*mangle", _declaration(names.CANARY), "COMMIT"])
    return batch


def _full_filter(
    batch: Batch,
    settings: Settings,
    fragments: Mapping[ServicePortName, Fragment],
    missing_jumps: Sequence[Jump],
    create_kubelet_firewall: bool,
) -> None:
    batch.lines(["*filter", *map(_declaration, (*static.FILTER_CHAINS, names.CANARY))])
    if settings.localhost_node_ports:
        batch.lines([_declaration(names.KUBELET_FIREWALL)])
    elif create_kubelet_firewall:
        # A declaration would flush it, and what is in there may be the kubelet's.
        batch.lines([f"-N {names.KUBELET_FIREWALL}"])
    batch.lines([*static.filter_rules(settings), static.CANARY_RULE])
    for _, field in _FILTER_SHARED:
        _add_shared(batch, fragments, field)
    batch.lines(_insertions(missing_jumps, "filter"))
    batch.lines(["COMMIT"])


def partial_batch(
    settings: Settings,
    fragments: Mapping[ServicePortName, Fragment],
    changes: Mapping[ServicePortName, Change],
) -> Batch:
    """Only what changed: the chains of changed service ports, and those shared chains whose lines differ.

    `fragments` is the state after the change. An empty batch means that the kernel holds everything already.
    """
    batch = Batch()
    shared = [pair for pair in _FILTER_SHARED if _differs(changes, pair[1])]
    if shared:
        batch.lines(["*filter", *(_declaration(chain) for chain, _ in shared)])
        for _, field in shared:
            _add_shared(batch, fragments, field)
        batch.lines(["COMMIT"])
    shared = [pair for pair in _NAT_SHARED if _differs(changes, pair[1])]
    own = {
        name: change
        for name, change in changes.items()
        if change[0].rules != change[1].rules or change[0].declarations != change[1].declarations
    }
    if not shared and not own:
        return batch
    stale = [chain for old, new in own.values() for chain in _gone(old, new)]
    batch.lines(["*nat", *(_declaration(chain) for chain, _ in shared)])
    for _, new in own.values():
        batch.add(new.declarations)
    batch.lines(map(_declaration, stale))
    for chain, field in shared:
        _add_shared(batch, fragments, field)
        if chain == names.SERVICES:
            batch.lines(static.node_port_jumps(settings))
    for name, (_, new) in own.items():
        batch.add(new.rules, name)
    batch.lines([*(f"-X {chain}" for chain in stale), "COMMIT"])
    return batch


def _add_shared(batch: Batch, fragments: Mapping[ServicePortName, Fragment], field: str) -> None:
    for name, fragment in fragments.items():
        batch.add(getattr(fragment, field), name)


def _differs(changes: Mapping[ServicePortName, Change], field: str) -> bool:
    return any(getattr(old, field) != getattr(new, field) for old, new in changes.values())


def _gone(old: Fragment, new: Fragment) -> list[str]:
    kept = set(new.chains)
    return [chain for chain in old.chains if chain not in kept]


def _insertions(jumps: Iterable[Jump], table: str) -> list[str]:
    return [f"-I {jump.line}" for jump in jumps if jump.table == table]


def _declaration(chain: str) -> str:
    return f":{chain} - [0:0]"
