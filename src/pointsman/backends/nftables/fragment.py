"""What one service port contributes to the table, in a form that is small in memory and quick to compare."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from pointsman.backends.nftables.balancers import Balancer, Pick
from pointsman.backends.nftables.fields import SLOT_LENGTH, pack_slot_numbers
from pointsman.backends.nftables.schema import Chain, FlowTimeout, SetSpec
from pointsman.model.plan import ServicePlan
from pointsman.model.service import ServicePortName


class Element(NamedTuple):
    """One element of a set or verdict map."""

    where: str
    key: bytes
    chain: str | None = None
    """Verdict maps: the chain to go to, empty for drop. Sets: None."""
    key_end: bytes = b""
    """Interval sets: the last key of the range."""


class Pool(NamedTuple):
    """The endpoints of one frontend: slot n of `where` under `prefix` leads to `slots[n]`."""

    where: str
    prefix: bytes
    packed: bytes
    """All slots in a row: hundreds of thousands of small objects would take several times their room."""
    width: int
    """Bytes of one slot."""

    @classmethod
    def from_slots(cls, where: str, prefix: bytes, slots: Sequence[bytes]) -> Pool:
        """Build a pool of at least one slot: address, port and padding, as the kernel stores them."""
        return cls(where, prefix, b"".join(slots), len(slots[0]))

    @property
    def size(self) -> int:
        """How many slots there are."""
        return len(self.packed) // self.width

    @property
    def slots(self) -> tuple[bytes, ...]:
        packed, width = self.packed, self.width
        return tuple([packed[start : start + width] for start in range(0, len(packed), width)])

    def iterate(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield key and endpoint of every slot."""
        for number, data in zip(pack_slot_numbers(self.size), self.slots, strict=False):
            yield self.prefix + number, data


class Slots:
    """The elements of an endpoint map (key and endpoint), made while they are read: a full load has a hundred thousand."""

    def __init__(self, pools: Sequence[Pool]) -> None:
        self._pools = pools

    def __len__(self) -> int:
        return sum(pool.size for pool in self._pools)

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        for pool in self._pools:
            yield from pool.iterate()


class Fragment(msgspec.Struct, frozen=True, gc=False):
    """Everything in the table that belongs to one service port."""

    label: str
    """Comment on its elements: operators find their Service by it."""
    elements: tuple[Element, ...] = ()
    shared: tuple[Element, ...] = ()
    """Elements that several service ports may contribute: present while any of them does."""
    pools: tuple[Pool, ...] = ()
    balancers: tuple[Balancer, ...] = ()
    """Every balancer chain in use, with those that the chains go to."""
    chains: tuple[Chain, ...] = ()
    """Chains of this service port alone: for session affinity, and source ranges at its node port."""
    sets: tuple[SetSpec, ...] = ()
    """Session affinity only: one set of clients per endpoint."""
    endpoint_chains: tuple[tuple[str, str], ...] = ()
    """Session affinity only: the chain that leads to each endpoint (`ip:port`)."""
    timeout: FlowTimeout | None = None
    """Of its flows; the object in the table is shared."""
    plan: ServicePlan | None = None
    """Made from this plan."""

    @property
    def ordered(self) -> bool:
        """Which slot an endpoint has matters: clients find it by a hash."""
        return any(balancer.pick is not Pick.RANDOM for balancer in self.balancers)

    @property
    def named_objects(self) -> list[str]:
        """Names of its chains and sets."""
        return [*(chain.name for chain in self.chains), *(spec.name for spec in self.sets)]


class Owners:
    """Finds the service port that an object of the table belongs to; the index is built by the first call."""

    def __init__(self, fragments: Mapping[ServicePortName, Fragment]) -> None:
        self._fragments = fragments
        self._index: dict[tuple[str, bytes], ServicePortName] = {}

    def find(self, where: str, key: bytes = b"") -> ServicePortName | None:
        """Return the owner of a chain or set, or of an element of it; None for shared and unknown objects.

        Where two service ports claim the same element, the later one is returned.
        """
        if not self._index:
            self._build_index()
        owner = self._index.get((where, key))
        return owner or (self._index.get((where, key[:-SLOT_LENGTH])) if key else None)

    def _build_index(self) -> None:
        for name, fragment in self._fragments.items():
            for element in fragment.elements:
                self._index[element.where, element.key] = name
            for pool in fragment.pools:
                self._index[pool.where, pool.prefix] = name
            for part in fragment.named_objects:
                self._index[part, b""] = name


def arrange_slots(previous: tuple[bytes, ...], wanted: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Return `wanted` in an order that moves as few entries of `previous` as possible.

    Remaining entries keep their slots, added ones fill the holes first, and the last entries close the holes that are left.
    """
    if not previous:
        return wanted
    missing = Counter(wanted)
    slots: list[bytes | None] = []
    for entry in previous:
        if missing[entry] > 0:
            missing[entry] -= 1
            slots.append(entry)
        else:
            slots.append(None)
    added = [entry for entry, count in missing.items() for _ in range(count)]
    added.reverse()
    for index, slot in enumerate(slots):
        if slot is None and added:
            slots[index] = added.pop()
    added.reverse()
    slots.extend(added)
    return tuple(_close_holes(slots))


def _close_holes(slots: list[bytes | None]) -> list[bytes]:
    while slots and slots[-1] is None:
        slots.pop()
    dense: list[bytes] = []
    index = 0
    while index < len(slots):
        slot = slots[index]
        if slot is None:
            slot = slots.pop()
            while slots and slots[-1] is None:
                slots.pop()
        if slot is not None:
            dense.append(slot)
        index += 1
    return dense
