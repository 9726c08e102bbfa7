"""Noticing that somebody else changed our table, cheaply.

Every transaction of anybody moves the ruleset generation. When it moved by more than our own commits, an inventory
is taken: the table with its flags, chains with their hooks and use counts (rules inside plus references from rules
and verdict maps), sets with their types, what they match when nothing else does and, where the kernel tells it, their
number of elements, and every rule. Then a patrol begins that reads the elements slice by slice.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import msgspec

from pointsman.backends.contract import PRESENT, Difference
from pointsman.backends.nftables import inventory
from pointsman.backends.nftables.contents import Contents
from pointsman.backends.nftables.expressions import fingerprint
from pointsman.backends.nftables.fragment import Owners
from pointsman.backends.nftables.patrol import ElementPatrol
from pointsman.backends.nftables.reader import Reader
from pointsman.kernel.nfnl import NftablesSocket


class Watch:
    """Remembers the generation up to which the table is known to be ours."""

    def __init__(self) -> None:
        self._generation = -1
        self._handle = 0
        self._right_rules: dict[str, tuple[int, int]] = {}
        """Per chain, fingerprints of rules found right: those we wanted and those the kernel listed."""
        self._kernel_counts = False
        """Whether the last inventory had the number of elements of each set."""
        self._patrol = ElementPatrol()

    def loaded(self, generation: int, reader: Reader) -> None:
        """After a full load, which made this generation unless somebody else committed at the same time."""
        head = reader.head()
        self._handle = head.handle if head else 0
        self._generation = generation
        self._right_rules = {}
        self._patrol.restart()

    def committed(self, socket: NftablesSocket) -> None:
        """After a commit of ours: it accounts for one step; more than one means somebody else was there too."""
        generation = socket.generation()
        if generation == self._generation + 1:
            self._generation = generation

    def drift(self, contents: Contents, socket: NftablesSocket, reader: Reader) -> Difference | None:
        generation = socket.generation()
        if generation != self._generation:
            trouble = self.damage(contents, reader)
            if trouble is not None:
                return trouble
            self._generation = generation
            self._patrol.foreign_commit(count=not self._kernel_counts)
        return self._patrol.look(contents, reader)

    def damage(self, contents: Contents, reader: Reader) -> Difference | None:
        """What is wrong with the table, at the level of an inventory."""
        table = reader.table()
        name = inventory.table_words(contents)
        if table is None:
            return Difference(name, PRESENT)
        self._kernel_counts = all(held.elements is not None for held in table.sets.values())
        other = inventory.find_other_proxy(table.head, self._handle, table.chains)
        if table.head.handle != self._handle or table.head.comment != contents.comment:
            have = table.head.comment or "a table without comment"
            if have == contents.comment:
                have = "another table with this comment"
            return Difference(name, contents.comment, have, other_proxy=other)
        owners = Owners(contents.fragments)
        found = itertools.chain(
            inventory.flag_differences(contents, table.head),
            inventory.chain_differences(contents, table, owners, with_unused=True),
            inventory.set_differences(contents, table, owners),
            inventory.count_differences(contents, table),
            self._catch_all_differences(contents, reader),
            self._rule_differences(contents, reader, owners),
        )
        first = next(found, None)
        return first and msgspec.structs.replace(first, other_proxy=other)

    def _catch_all_differences(self, contents: Contents, reader: Reader) -> Iterator[Difference]:
        held = reader.catch_alls(list(contents.sets.values()))
        return inventory.catch_all_differences(contents, held)

    def _rule_differences(self, contents: Contents, reader: Reader, owners: Owners) -> Iterator[Difference]:
        """Comparing rules is slow, so each listing is compared once and recognised by its fingerprint afterwards."""
        listed = reader.rules()
        right: dict[str, tuple[int, int]] = {}
        for chain in contents.all_chains():
            held = listed.get(chain.name, [])
            prints = hash(chain.rules), fingerprint(held)
            if self._right_rules.get(chain.name) != prints:
                yield from inventory.rule_differences(chain, held, owners)
            right[chain.name] = prints
        self._right_rules = right
