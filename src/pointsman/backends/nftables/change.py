"""From one state of the table to the next: a batch in proportion to what differs. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TypeVar

from pointsman.backends.nftables.balancers import Balancer, add_spares
from pointsman.backends.nftables.batch import AddElements, AddSlots, Batch, DeleteElements, Operation
from pointsman.backends.nftables.contents import Contents, compute_balancer_order
from pointsman.backends.nftables.fields import pack_slot_numbers
from pointsman.backends.nftables.fragment import Element, Fragment, Pool
from pointsman.backends.nftables.schema import Chain, FlowTimeout
from pointsman.model.service import ServicePortName

_T = TypeVar("_T")

_EMPTY = Fragment("")
_MAX_UNUSED_BALANCERS = 128


class Change:
    """The way from one state of the table to the next: the batch, and what to remember once it is committed."""

    def __init__(self, contents: Contents, updates: Mapping[ServicePortName, Fragment | None]) -> None:
        self._contents = contents
        self._updates = dict(updates)
        self._shared: Counter[Element] = Counter()
        self._balancers: Counter[Balancer] = Counter()
        self._verdicts: Counter[str] = Counter()
        self._timeouts: Counter[FlowTimeout] = Counter()
        self._add: dict[str, list[tuple[Element, str]]] = {}
        self._add_slots: dict[str, list[tuple[bytes, bytes]]] = {}
        self._delete: dict[str, list[tuple[bytes, bytes]]] = {}
        self._operations: list[Operation] = []
        self._later: list[Operation] = []
        for name, fragment in updates.items():
            self._compare(contents.fragments.get(name, _EMPTY), fragment or _EMPTY)
        self._count_shared()
        self._created, self._removed = self._choose_balancers()
        self._timeouts_after = self._find_timeouts()
        self.batch = self._build_batch()

    def _compare(self, old: Fragment, new: Fragment) -> None:
        if old.elements != new.elements:
            before, after = set(old.elements), set(new.elements)
            for element in old.elements:
                if element not in after:
                    if element.chain:
                        self._verdicts[element.chain] -= 1
                    self._delete.setdefault(element.where, []).append((element.key, element.key_end))
            for element in new.elements:
                if element not in before:
                    if element.chain:
                        self._verdicts[element.chain] += 1
                    self._add.setdefault(element.where, []).append((element, new.label))
        if old.shared != new.shared:
            self._shared.update(new.shared)
            self._shared.subtract(old.shared)
        if old.balancers != new.balancers:
            self._balancers.update(new.balancers)
            self._balancers.subtract(old.balancers)
        if old.timeout != new.timeout:
            self._timeouts.update([new.timeout] if new.timeout else [])
            self._timeouts.subtract([old.timeout] if old.timeout else [])
        if old.pools != new.pools:
            self._compare_pools(old.pools, new.pools)
        if old.chains != new.chains or old.sets != new.sets:
            self._compare_chains(old, new)

    def _compare_pools(self, old: tuple[Pool, ...], new: tuple[Pool, ...]) -> None:
        before = {(pool.where, pool.prefix): pool.slots for pool in old}
        for pool in new:
            known = before.pop((pool.where, pool.prefix), ())
            self._compare_slots(pool.where, pool.prefix, known, pool.slots)
        for (where, prefix), slots in before.items():
            self._compare_slots(where, prefix, slots, ())

    def _compare_slots(
        self, where: str, prefix: bytes, old: tuple[bytes, ...], new: tuple[bytes, ...]
    ) -> None:
        numbers = pack_slot_numbers(max(len(old), len(new)))
        delete = self._delete.setdefault(where, [])
        add = self._add_slots.setdefault(where, [])
        for index, data in enumerate(old):
            if index >= len(new) or new[index] != data:
                delete.append((prefix + numbers[index], b""))
        for index, data in enumerate(new):
            if index >= len(old) or old[index] != data:
                add.append((prefix + numbers[index], data))

    def _compare_chains(self, old: Fragment, new: Fragment) -> None:
        steps = self._contents.steps
        old_chains = {chain.name: chain for chain in old.chains}
        new_chains = {chain.name: chain for chain in new.chains}
        old_sets, new_sets = {s.name for s in old.sets}, {s.name for s in new.sets}
        self._operations += [steps.add_set(spec) for spec in new.sets if spec.name not in old_sets]
        fresh = [chain for name, chain in new_chains.items() if name not in old_chains]
        self._operations += [steps.add_chain(chain) for chain in fresh]
        for name, chain in new_chains.items():
            if old_chains.get(name) != chain:
                if name in old_chains:
                    self._operations.append(steps.flush_rules(name))
                self._operations += steps.add_rules(chain)
        gone = [name for name in old_chains if name not in new_chains]
        self._later += [steps.flush_rules(name) for name in gone]
        self._later += [steps.delete_chain(name) for name in gone]
        self._later += [steps.delete_set(name) for name in sorted(old_sets - new_sets)]

    def _count_shared(self) -> None:
        for element, difference in self._shared.items():
            before = self._contents.shared[element]
            if before and before + difference <= 0:
                self._delete.setdefault(element.where, []).append((element.key, element.key_end))
            elif not before and difference > 0:
                self._add.setdefault(element.where, []).append((element, ""))

    def _choose_balancers(self) -> tuple[dict[Balancer, Chain], set[Balancer]]:
        """Return the chains to create and the balancers to remove; idle ones stay until there are many."""
        contents = self._contents
        counts = contents.balancers
        new = {b for b, d in self._balancers.items() if d > 0 and b not in contents.present}
        created = contents.build_balancer_chains(b for b in add_spares(new) if b not in contents.present)
        idle = {b for b in contents.present if counts[b] + self._balancers[b] <= 0}
        if len(idle) <= _MAX_UNUSED_BALANCERS:
            return created, set()
        in_use = contents.present.keys() - idle | new
        return created, idle - add_spares(in_use)

    def _find_timeouts(self) -> set[FlowTimeout]:
        """Return the timeouts that rules refer to after the change."""
        contents = self._contents
        if not self._timeouts and not (self._removed and contents.timeouts):
            return contents.timeouts
        users = contents.timeout_users
        used = {one for one in users.keys() | self._timeouts.keys() if users[one] + self._timeouts[one] > 0}
        present = (contents.present.keys() | self._created.keys()) - self._removed
        return used | {balancer.timeout for balancer in present if balancer.timeout is not None}

    def _build_batch(self) -> Batch:
        contents = self._contents
        steps = contents.steps
        before, after = contents.timeouts, self._timeouts_after
        operations: list[Operation] = [steps.add_timeout(one) for one in sorted(after - before)]
        operations += [steps.add_chain(chain) for chain in self._created.values()]
        for chain in self._created.values():
            operations += steps.add_rules(chain)
        operations += self._operations
        operations += [DeleteElements(contents.sets[n], keys) for n, keys in self._delete.items() if keys]
        operations += [AddElements(contents.sets[n], entries) for n, entries in self._add.items() if entries]
        operations += [
            AddSlots(contents.sets[n], entries) for n, entries in self._add_slots.items() if entries
        ]
        operations += self._later
        names = [b.name for b in sorted(self._removed, key=compute_balancer_order, reverse=True)]
        operations += [steps.flush_rules(name) for name in names]
        operations += [steps.delete_chain(name) for name in names]
        operations += [steps.delete_timeout(one.name) for one in sorted(before - after)]
        return Batch(contents.traits, operations)

    def apply(self) -> None:
        """Record the change in the contents, after the kernel accepted it."""
        contents = self._contents
        for name, fragment in self._updates.items():
            if fragment is None:
                contents.fragments.pop(name, None)
            else:
                contents.fragments[name] = fragment
            if fragment is not None and fragment.chains:
                contents.with_chains.add(name)
            else:
                contents.with_chains.discard(name)
        _add_counts(contents.shared, self._shared)
        _add_counts(contents.balancers, self._balancers)
        _add_counts(contents.verdicts, self._verdicts)
        _add_counts(contents.timeout_users, self._timeouts)
        contents.timeouts = self._timeouts_after
        contents.present |= self._created
        for balancer in self._removed:
            del contents.present[balancer]
        for added in (self._add, self._add_slots):
            for where, entries in added.items():
                contents.counts[where] += len(entries)
        for where, keys in self._delete.items():
            contents.counts[where] -= len(keys)


def _add_counts(counts: Counter[_T], difference: Counter[_T]) -> None:
    """Add to counts like Counter.update, and remove entries that reach zero."""
    for key, change in difference.items():
        counts[key] += change
        if counts[key] <= 0:
            del counts[key]
