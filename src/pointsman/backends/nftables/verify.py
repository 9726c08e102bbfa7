"""Kernel against desired contents, difference by difference. Pure comparison of what was read."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping

from pointsman.backends.contract import PRESENT, Damage, Difference
from pointsman.backends.nftables import inventory, text
from pointsman.backends.nftables.balancers import is_balancer_name
from pointsman.backends.nftables.contents import Contents
from pointsman.backends.nftables.fragment import Element
from pointsman.backends.nftables.inventory import Finding
from pointsman.backends.nftables.key_fields import SLOT_LENGTH
from pointsman.backends.nftables.reader import KernelElement, KernelTable, Reader
from pointsman.backends.nftables.schema import Data, SetSpec
from pointsman.backends.nftables.set_shape import set_shape
from pointsman.kernel import nf_tables as nf
from pointsman.model.service import ServicePortName


def differences(contents: Contents, reader: Reader) -> list[Difference]:
    """Everything that is missing, superfluous or different in the kernel."""
    name = inventory.table_words(contents)
    table = reader.table()
    if table is None:
        return [Difference(name, contents.comment, "")]
    owned = table.head.flags & nf.NFT_TABLE_F_OWNER
    if table.head.comment != contents.comment and not owned:
        return [Difference(name, contents.comment, table.head.comment or "a table without comment")]
    flagged = [_difference(found, {}) for found in inventory.flag_findings(contents, table.head)]
    if owned:
        return flagged
    return [
        *flagged,
        *_inventory(contents, table, reader),
        *_elements(contents, table, reader),
    ]


def _difference(found: Finding, owners: Mapping[str, str]) -> Difference:
    return Difference(found.what, found.want, found.have, owners.get(found.name, ""))


def _inventory(contents: Contents, table: KernelTable, reader: Reader) -> Iterator[Difference]:
    owners = {part: str(name) for name, f in contents.fragments.items() for part in f.named_objects}
    spares = {balancer.name for balancer in contents.present if not contents.balancers[balancer]}
    for found in itertools.chain(
        inventory.set_findings(contents, table), inventory.chain_findings(contents, table)
    ):
        # Balancer chains that nobody uses come and go: neither one more nor one less is a difference.
        idle = found.name in spares if found.damage is Damage.DELETED else is_balancer_name(found.name)
        if not idle or found.damage not in (Damage.DELETED, Damage.ADDED):
            yield _difference(found, owners)
    listed = reader.rules()
    for chain in contents.all_chains():
        if chain.name in table.chains:
            for found in inventory.rule_findings(chain, listed.get(chain.name, [])):
                yield _difference(found, owners)


def _elements(contents: Contents, table: KernelTable, reader: Reader) -> Iterator[Difference]:
    kept = [
        spec
        for spec in contents.sets.values()
        if spec.name in table.sets and table.sets[spec.name].shape == set_shape(spec, contents.traits)
    ]
    yield from element_differences(contents, kept, reader)


def element_differences(contents: Contents, specs: Iterable[SetSpec], reader: Reader) -> Iterator[Difference]:
    """Of sets that are of the right type."""
    elements, slots = contents.elements(), contents.slots()
    owners = _Owners(contents)
    for spec in specs:
        have = reader.elements(spec)
        if spec.data is Data.ENDPOINT:
            yield from _slots(contents, spec, dict(slots[spec.name]), have, owners)
        else:
            wanted = {element.key: element for element, _ in elements[spec.name]}
            yield from _plain(contents, spec, wanted, have, owners)


def _plain(
    contents: Contents,
    spec: SetSpec,
    wanted: Mapping[bytes, Element],
    have: Mapping[bytes, KernelElement],
    owners: _Owners,
) -> Iterator[Difference]:
    def what(element: Element) -> str:
        return f"{text.set_keyword(spec)} {spec.name} {text.element_words(element._replace(chain=None), '', spec, contents.traits)}"

    for key, element in wanted.items():
        found = have.get(key)
        want = PRESENT if element.chain is None else text.verdict_words(element.chain)
        if found is None:
            yield Difference(what(element), want, "", owners.of(spec.name, key))
        elif element.chain is not None and found.verdict != want:
            yield Difference(what(element), want, found.verdict, owners.of(spec.name, key))
        elif found.key_end != element.key_end:
            yield Difference(what(element), want, "another range", owners.of(spec.name, key))
    for key, found in have.items():
        if key not in wanted:
            extra = Element(spec.name, key, None, found.key_end)
            yield Difference(what(extra), "", found.verdict or PRESENT)


def _slots(
    contents: Contents,
    spec: SetSpec,
    wanted: Mapping[bytes, bytes],
    have: Mapping[bytes, KernelElement],
    owners: _Owners,
) -> Iterator[Difference]:
    """Slots drawn at random may be filled in any order: what counts is how many each endpoint has."""
    if {key: element.data for key, element in have.items()} == wanted:
        return
    want_by_frontend = _by_frontend(wanted)
    have_by_frontend = _by_frontend({key: element.data for key, element in have.items()})
    for prefix in want_by_frontend.keys() | have_by_frontend.keys():
        want, held = want_by_frontend.get(prefix, {}), have_by_frontend.get(prefix, {})
        if not owners.ordered(spec.name, prefix) and _as_good(want, held):
            continue
        if want == held:
            continue
        service = owners.of(spec.name, prefix)
        for slot in sorted(want.keys() | held.keys()):
            if want.get(slot) != held.get(slot):
                words = text.key_words(prefix + slot, spec, contents.traits)
                yield Difference(
                    f"map {spec.name} {words}",
                    text.endpoint_words(want[slot], contents.traits) if slot in want else "",
                    text.endpoint_words(held[slot], contents.traits) if slot in held else "",
                    service,
                )


def _as_good(want: Mapping[bytes, bytes], held: Mapping[bytes, bytes]) -> bool:
    return want.keys() == held.keys() and sorted(want.values()) == sorted(held.values())


def _by_frontend(slots: Mapping[bytes, bytes]) -> dict[bytes, dict[bytes, bytes]]:
    grouped: dict[bytes, dict[bytes, bytes]] = {}
    for key, data in slots.items():
        grouped.setdefault(key[:-SLOT_LENGTH], {})[key[-SLOT_LENGTH:]] = data
    return grouped


class _Owners:
    """Which service port an element belongs to; the index is built when the first difference asks."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._index: dict[tuple[str, bytes], ServicePortName] = {}

    def of(self, where: str, key: bytes) -> str:
        found = self._find(where, key)
        return "" if found is None else str(found)

    def ordered(self, where: str, prefix: bytes) -> bool:
        """Whether it matters which slot of a frontend an endpoint has."""
        found = self._find(where, prefix)
        return found is not None and self._contents.fragments[found].ordered

    def _find(self, where: str, key: bytes) -> ServicePortName | None:
        if not self._index:
            for name, fragment in self._contents.fragments.items():
                for element in (*fragment.shared, *fragment.elements):
                    self._index[(element.where, element.key)] = name
                for pool in fragment.pools:
                    self._index[(pool.where, pool.prefix)] = name
        return self._index.get((where, key))
