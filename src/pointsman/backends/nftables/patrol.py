"""Looks at the elements of sets and maps again and again, a slice at a time.

An inventory counts elements at best and does not read them. After somebody else's transaction, which may have exchanged one
element for another, a round begins over everything we put there, by key, in slices so small that no sync waits for
one. Where the kernel does not say how many elements a set has, they are counted first: a set that has as many as we put
there, with each of ours among them, has none of anybody else. Without foreign transactions nothing can have changed and
nothing is read.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

from pointsman.backends.contract import PRESENT, Difference
from pointsman.backends.nftables import text
from pointsman.backends.nftables.contents import Contents
from pointsman.backends.nftables.fragment import Element, Fragment
from pointsman.backends.nftables.reader import KernelElement, Reader
from pointsman.backends.nftables.schema import SetSpec
from pointsman.backends.nftables.verify import element_differences

SLICES = 300
"""How many looks a round takes at most: at one look per second the whole is read within five minutes."""
_LEAST_ELEMENTS = 200
"""A slice is never smaller, so that small tables are done at once."""


def slice_size(elements: int) -> int:
    """How many of all elements one look reads."""
    return max(_LEAST_ELEMENTS, math.ceil(elements / SLICES))


class Expected(NamedTuple):
    """An element of ours and where it belongs."""

    spec: SetSpec
    element: KernelElement


class ElementPatrol:
    """One table's rounds."""

    def __init__(self) -> None:
        self._round: Iterator[Expected] | None = None
        self._due = False
        self._count = False
        self._uncounted: list[SetSpec] = []

    def restart(self) -> None:
        """Everything was just loaded: nothing needs to be read."""
        self._round, self._due, self._uncounted = None, False, []

    def foreign_commit(self, *, count: bool) -> None:
        """Somebody else committed a transaction: what was read before may have changed; `count` as well."""
        self._due, self._count = True, count

    def look(self, contents: Contents, reader: Reader) -> Difference | None:
        """Read the next slice; what differs, if something does."""
        if self._round is None:
            if not self._due:
                return None
            self._round, self._due = expected_elements(contents), False
            self._uncounted = list(contents.sets.values()) if self._count else []
        size = slice_size(contents.counts.total())
        if self._uncounted:
            trouble = self._count_some(size, contents, reader)
            self._due = self._due or trouble is not None
            return trouble
        wanted = list(itertools.islice(self._round, size))
        if len(wanted) < size:
            self._round = None
        held = reader.look_up([(expected.spec, expected.element.key) for expected in wanted])
        for expected, found in zip(wanted, held, strict=True):
            if found is None or found[:4] != expected.element[:4]:
                self._due = True
                return _difference(expected, found, contents)
        return None

    def _count_some(self, size: int, contents: Contents, reader: Reader) -> Difference | None:
        """Count set after set until about that many elements were told; a large set takes a look of its own."""
        while self._uncounted and size > 0:
            spec = self._uncounted.pop()
            wanted = contents.counts[spec.name]
            size -= wanted
            if reader.count(spec) != wanted:
                # Or its hash table is growing: a listing that is repeated until it is whole knows.
                for found in element_differences(contents, [spec], reader):
                    return found
        return None


def expected_elements(contents: Contents) -> Iterator[Expected]:
    """What the kernel should hold; a service port that changes during the round is left to the commit that did it."""
    for element, _ in contents.node_port_addresses:
        yield _plain(element, contents)
    for name in tuple(contents.fragments):
        fragment = contents.fragments.get(name)
        if fragment is None:
            continue
        for expected in _of_fragment(fragment, contents):
            if contents.fragments.get(name) is not fragment:
                break
            yield expected


def _of_fragment(fragment: Fragment, contents: Contents) -> Iterator[Expected]:
    for element in itertools.chain(fragment.elements, fragment.shared):
        yield _plain(element, contents)
    for pool in fragment.pools:
        spec = contents.sets[pool.where]
        for key, data in pool.elements():
            yield Expected(spec, KernelElement(key, data=data))


def _plain(element: Element, contents: Contents) -> Expected:
    verdict = "" if element.chain is None else text.verdict_words(element.chain)
    return Expected(
        contents.sets[element.where], KernelElement(element.key, element.key_end, verdict=verdict)
    )


def _difference(expected: Expected, found: KernelElement | None, contents: Contents) -> Difference:
    spec, traits = expected.spec, contents.traits
    words = text.key_words(expected.element.key, spec, traits)
    what = f"{text.set_keyword(spec)} {spec.name} {words}"
    if found is None:
        return Difference(what, PRESENT)
    if found.data != expected.element.data:
        held, wanted = (text.endpoint_words(data, traits) for data in (found.data, expected.element.data))
        return Difference(what, wanted, held)
    if found.verdict != expected.element.verdict:
        return Difference(what, expected.element.verdict, found.verdict)
    return Difference(what, PRESENT, "another range")
