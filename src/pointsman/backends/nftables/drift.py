"""Noticing that somebody else changed our table, cheaply.

Every transaction of anybody moves the ruleset generation. When it moved by more than our own commits, an inventory
is taken: table handle, chains with their use counts (rules inside plus references from rules and verdict maps) and,
where the kernel tells it, the number of elements in each set. Contents of equal size are left to `verify`.
"""

from __future__ import annotations

from collections import Counter

from pointsman.backends.contract import Damage, Drift
from pointsman.backends.nftables.contents import Contents
from pointsman.backends.nftables.reader import KernelTable, Reader
from pointsman.backends.nftables.schema import TABLE
from pointsman.kernel.nfnl import NftablesSocket


class Watch:
    """Remembers the generation up to which the table is known to be ours."""

    def __init__(self) -> None:
        self._generation = -1
        self._handle = 0

    def loaded(self, socket: NftablesSocket, reader: Reader) -> None:
        """After a full load: start from here."""
        head = reader.table_handle()
        self._handle = head[0] if head else 0
        self._generation = socket.generation()

    def committed(self, socket: NftablesSocket) -> None:
        """After a commit of ours: it accounts for one step; more than one means somebody else was there too."""
        generation = socket.generation()
        if generation == self._generation + 1:
            self._generation = generation

    def drift(self, contents: Contents, socket: NftablesSocket, reader: Reader) -> Drift | None:
        generation = socket.generation()
        if generation == self._generation:
            return None
        trouble = self.damage(contents, reader)
        if trouble is None:
            self._generation = generation
        return trouble

    def damage(self, contents: Contents, reader: Reader) -> Drift | None:
        """What is wrong with the table, at the level of an inventory."""
        name = f"table {contents.traits.keyword} {TABLE}"
        table = reader.table()
        if table is None:
            return Drift(name, Damage.DELETED)
        if table.handle != self._handle or table.comment != contents.comment:
            return Drift(name, Damage.REPLACED)
        return _chain_damage(contents, table) or _set_damage(contents, table)


def _chain_damage(contents: Contents, table: KernelTable) -> Drift | None:
    uses = expected_uses(contents)
    for name, expected in uses.items():
        chain = table.chains.get(name)
        if chain is None:
            return Drift(f"chain {name}", Damage.DELETED)
        if chain.uses != expected:
            return Drift(f"rules of or references to chain {name}", Damage.CHANGED)
    foreign = table.chains.keys() - uses.keys()
    return Drift(f"chain {min(foreign)}", Damage.ADDED) if foreign else None


def _set_damage(contents: Contents, table: KernelTable) -> Drift | None:
    counts = contents.element_counts()
    for spec in contents.all_sets():
        found = table.sets.get(spec.name)
        if found is None:
            return Drift(f"set {spec.name}", Damage.DELETED)
        expected = counts.get(spec.name)
        if expected is not None and found.elements is not None and found.elements != expected:
            return Drift(
                f"elements of {spec.name}", Damage.CHANGED, f"{found.elements} instead of {expected}"
            )
    return None


def expected_uses(contents: Contents) -> dict[str, int]:
    """What the kernel's use count of each chain must be."""
    chains = contents.all_chains()
    uses: Counter[str] = Counter({chain.name: len(chain.rules) for chain in chains})
    for chain in chains:
        for rule in chain.rules:
            uses.update(rule.targets)
    uses.update(contents.verdicts)
    return dict(uses)
