"""Kernel against desired contents, difference by difference. Pure comparison of what was read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pointsman.backends.contract import PRESENT, Difference
from pointsman.backends.nftables import inventory, text
from pointsman.backends.nftables.contents import Contents
from pointsman.backends.nftables.fragment import Element, Owners
from pointsman.backends.nftables.key_fields import SLOT_LENGTH
from pointsman.backends.nftables.reader import KernelElement, KernelTable, Reader
from pointsman.backends.nftables.schema import Data, SetSpec
from pointsman.backends.nftables.set_shape import set_shape
from pointsman.kernel import nf_tables as nf


def differences(contents: Contents, reader: Reader) -> list[Difference]:
    """Everything that is missing, superfluous or different in the kernel."""
    name = inventory.table_words(contents)
    table = reader.table()
    if table is None:
        return [Difference(name, contents.comment, "")]
    owned = table.head.flags & nf.NFT_TABLE_F_OWNER
    if table.head.comment != contents.comment and not owned:
        return [Difference(name, contents.comment, table.head.comment or "a table without comment")]
    flagged = list(inventory.flag_differences(contents, table.head))
    if owned:
        return flagged
    return [
        *flagged,
        *_inventory(contents, table, reader),
        *_elements(contents, table, reader),
    ]


def _inventory(contents: Contents, table: KernelTable, reader: Reader) -> Iterator[Difference]:
    owners = Owners(contents.fragments)
    yield from inventory.set_differences(contents, table, owners)
    yield from inventory.chain_differences(contents, table, owners, with_unused=False)
    listed = reader.rules()
    for chain in contents.all_chains():
        if chain.name in table.chains:
            yield from inventory.rule_differences(chain, listed.get(chain.name, []), owners)


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
    owners = Owners(contents.fragments)
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
    owners: Owners,
) -> Iterator[Difference]:
    def what(element: Element) -> str:
        return f"{text.set_keyword(spec)} {spec.name} {text.element_words(element._replace(chain=None), '', spec, contents.traits)}"

    for key, element in wanted.items():
        found = have.get(key)
        want = PRESENT if element.chain is None else text.verdict_words(element.chain)
        if found is None:
            yield Difference(what(element), want, "", owners.find(spec.name, key))
        elif element.chain is not None and found.verdict != want:
            yield Difference(what(element), want, found.verdict, owners.find(spec.name, key))
        elif found.key_end != element.key_end:
            yield Difference(what(element), want, "another range", owners.find(spec.name, key))
    for key, found in have.items():
        if key not in wanted:
            extra = Element(spec.name, key, None, found.key_end)
            yield Difference(what(extra), "", found.verdict or PRESENT)


def _slots(
    contents: Contents,
    spec: SetSpec,
    wanted: Mapping[bytes, bytes],
    have: Mapping[bytes, KernelElement],
    owners: Owners,
) -> Iterator[Difference]:
    """Slots drawn at random may be filled in any order: what counts is how many each endpoint has."""
    if {key: element.data for key, element in have.items()} == wanted:
        return
    want_by_frontend = _by_frontend(wanted)
    have_by_frontend = _by_frontend({key: element.data for key, element in have.items()})
    for prefix in want_by_frontend.keys() | have_by_frontend.keys():
        want, held = want_by_frontend.get(prefix, {}), have_by_frontend.get(prefix, {})
        owner = owners.find(spec.name, prefix)
        ordered = owner is not None and contents.fragments[owner].ordered
        if not ordered and _as_good(want, held):
            continue
        if want == held:
            continue
        for slot in sorted(want.keys() | held.keys()):
            if want.get(slot) != held.get(slot):
                words = text.key_words(prefix + slot, spec, contents.traits)
                yield Difference(
                    f"map {spec.name} {words}",
                    text.endpoint_words(want[slot], contents.traits) if slot in want else "",
                    text.endpoint_words(held[slot], contents.traits) if slot in held else "",
                    owner,
                )


def _as_good(want: Mapping[bytes, bytes], held: Mapping[bytes, bytes]) -> bool:
    return want.keys() == held.keys() and sorted(want.values()) == sorted(held.values())


def _by_frontend(slots: Mapping[bytes, bytes]) -> dict[bytes, dict[bytes, bytes]]:
    grouped: dict[bytes, dict[bytes, bytes]] = {}
    for key, data in slots.items():
        grouped.setdefault(key[:-SLOT_LENGTH], {})[key[-SLOT_LENGTH:]] = data
    return grouped
