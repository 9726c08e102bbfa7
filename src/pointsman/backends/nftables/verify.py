"""Kernel against desired contents, difference by difference. Pure comparison of what was read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pointsman.backends.contract import Difference
from pointsman.backends.nftables import text
from pointsman.backends.nftables.affinity import is_affinity_set
from pointsman.backends.nftables.balancers import is_balancer_name
from pointsman.backends.nftables.contents import Contents
from pointsman.backends.nftables.fragment import Element
from pointsman.backends.nftables.key_fields import SLOT_LENGTH
from pointsman.backends.nftables.reader import KernelElement, KernelTable, Reader, same_expressions
from pointsman.backends.nftables.schema import TABLE, Data, SetSpec


def differences(contents: Contents, reader: Reader) -> list[Difference]:
    """Everything that is missing, superfluous or different in the kernel."""
    traits = contents.traits
    name = f"table {traits.keyword} {TABLE}"
    table = reader.table()
    if table is None:
        return [Difference(name, contents.comment, "")]
    if table.comment != contents.comment:
        return [Difference(name, contents.comment, table.comment or "a table without comment")]
    return [
        *_inventory(contents, table),
        *_rules(contents, table, reader),
        *_elements(contents, table, reader),
    ]


def _inventory(contents: Contents, table: KernelTable) -> Iterator[Difference]:
    wanted_sets = {spec.name for spec in contents.all_sets()}
    owners = {spec.name: str(name) for name, f in contents.fragments.items() for spec in f.sets}
    for missing in sorted(wanted_sets - table.sets.keys()):
        yield Difference(f"set {missing}", "present", "", owners.get(missing, ""))
    for extra in sorted(table.sets.keys() - wanted_sets):
        yield Difference(f"set {extra}", "", "present")
    spares = {balancer.name for balancer in contents.present if not contents.balancers[balancer]}
    wanted_chains = {chain.name for chain in contents.all_chains()} - spares
    for missing in sorted(wanted_chains - table.chains.keys()):
        yield Difference(f"chain {missing}", "present", "")
    for extra in sorted(table.chains.keys() - wanted_chains):
        if not is_balancer_name(extra):
            yield Difference(f"chain {extra}", "", "present")


def _rules(contents: Contents, table: KernelTable, reader: Reader) -> Iterator[Difference]:
    have = reader.rules()
    owners = {chain.name: str(name) for name, f in contents.fragments.items() for chain in f.chains}
    for chain in contents.all_chains():
        if chain.name not in table.chains:
            continue
        kernels = have.get(chain.name, [])
        for number, rule in enumerate(chain.rules):
            what = f"chain {chain.name} rule {number + 1}"
            if number >= len(kernels):
                yield Difference(what, rule.text, "", owners.get(chain.name, ""))
            elif not same_expressions(rule.expressions, kernels[number]):
                yield Difference(what, rule.text, "another rule", owners.get(chain.name, ""))
        for number in range(len(chain.rules), len(kernels)):
            yield Difference(f"chain {chain.name} rule {number + 1}", "", "a rule")


def _elements(contents: Contents, table: KernelTable, reader: Reader) -> Iterator[Difference]:
    elements, slots = contents.elements(), contents.slots()
    owners = _Owners(contents)
    for spec in contents.sets.values():
        if spec.name not in table.sets or is_affinity_set(spec.name):
            continue
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
        want = "present" if element.chain is None else text.verdict_words(element.chain)
        if found is None:
            yield Difference(what(element), want, "", owners.of(spec.name, key))
        elif found.chain != element.chain:
            yield Difference(
                what(element), want, text.verdict_words(found.chain or ""), owners.of(spec.name, key)
            )
        elif found.key_end != element.key_end:
            yield Difference(what(element), want, "another range", owners.of(spec.name, key))
    for key, found in have.items():
        if key not in wanted:
            extra = Element(spec.name, key, None, found.key_end)
            held = "present" if found.chain is None else text.verdict_words(found.chain)
            yield Difference(what(extra), "", held)


def _slots(
    contents: Contents,
    spec: SetSpec,
    wanted: Mapping[bytes, bytes],
    have: Mapping[bytes, KernelElement],
    owners: _Owners,
) -> Iterator[Difference]:
    """Slots of one frontend may be filled in any order: what counts is that each endpoint has one."""
    if {key: element.data for key, element in have.items()} == wanted:
        return
    want_by_frontend = _by_frontend(wanted)
    have_by_frontend = _by_frontend({key: element.data for key, element in have.items()})
    for prefix in want_by_frontend.keys() | have_by_frontend.keys():
        want, held = want_by_frontend.get(prefix, {}), have_by_frontend.get(prefix, {})
        if want.keys() == held.keys() and sorted(want.values()) == sorted(held.values()):
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


def _by_frontend(slots: Mapping[bytes, bytes]) -> dict[bytes, dict[bytes, bytes]]:
    grouped: dict[bytes, dict[bytes, bytes]] = {}
    for key, data in slots.items():
        grouped.setdefault(key[:-SLOT_LENGTH], {})[key[-SLOT_LENGTH:]] = data
    return grouped


class _Owners:
    """Which service port an element belongs to; the index is built when the first difference asks."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._index: dict[tuple[str, bytes], str] = {}

    def of(self, where: str, key: bytes) -> str:
        if not self._index:
            for name, fragment in self._contents.fragments.items():
                owner = str(name)
                for element in (*fragment.shared, *fragment.elements):
                    self._index[(element.where, element.key)] = owner
                for pool in fragment.pools:
                    self._index[(pool.where, pool.prefix)] = owner
        return self._index.get((where, key), "")
