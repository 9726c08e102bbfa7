"""A batch is data: it prints itself as nft commands and encodes itself as netlink messages of one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from pointsman.backends.nftables import encode, text
from pointsman.backends.nftables.fields import FamilyTraits
from pointsman.backends.nftables.fragment import Element, Slots
from pointsman.backends.nftables.schema import TABLE, Chain, SetSpec
from pointsman.kernel.netlink import Message


class BatchItem(NamedTuple):
    """The object that a message of a batch is about."""

    what: str
    where: str = ""
    """Set, map or chain."""
    key: bytes = b""


class Step(NamedTuple):
    """One command that is one message: everything but elements."""

    command: str
    message: Message
    about: BatchItem


class AddElements(NamedTuple):
    """Add elements of a set or verdict map, each with the label that becomes its comment."""

    spec: SetSpec
    entries: Sequence[tuple[Element, str]]

    def format_entries(self, traits: FamilyTraits) -> list[str]:
        return [text.format_element(element, label, self.spec, traits) for element, label in self.entries]

    def items(self) -> Iterator[bytes]:
        return encode.encode_elements(self.entries)

    def keys(self) -> Iterator[bytes]:
        return (element.key for element, _ in self.entries)


class AddSlots(NamedTuple):
    """Add endpoints: pairs of key (frontend and slot) and endpoint."""

    spec: SetSpec
    entries: Sequence[tuple[bytes, bytes]] | Slots

    def format_entries(self, traits: FamilyTraits) -> list[str]:
        return [text.format_slot(key, data, self.spec, traits) for key, data in self.entries]

    def items(self) -> Iterator[bytes]:
        return encode.encode_slots(self.entries)

    def keys(self) -> Iterator[bytes]:
        return (key for key, _ in self.entries)


class DeleteElements(NamedTuple):
    """Remove elements by key (and end of range)."""

    spec: SetSpec
    entries: Sequence[tuple[bytes, bytes]]

    def format_entries(self, traits: FamilyTraits) -> list[str]:
        return [
            text.format_element(Element(self.spec.name, key, None, end), "", self.spec, traits)
            for key, end in self.entries
        ]

    def items(self) -> Iterator[bytes]:
        return encode.encode_keys(self.entries)

    def keys(self) -> Iterator[bytes]:
        return (key for key, _ in self.entries)


ElementOperation = AddElements | AddSlots | DeleteElements
Operation = Step | ElementOperation


class Steps:
    """Makes the steps of one table."""

    def __init__(self, traits: FamilyTraits) -> None:
        self._traits = traits
        self._table = f"{traits.keyword} {TABLE}"

    def add_table(self, comment: str) -> Step:
        """Create the table unless it is there."""
        command = f'add table {self._table} {{ comment "{comment}" ; }}'
        return Step(command, encode.new_table(comment, self._traits), BatchItem(f"table {self._table}"))

    def delete_table(self) -> Step:
        command = f"delete table {self._table}"
        return Step(command, encode.delete_table(self._traits), BatchItem(f"table {self._table}"))

    def flush_rules(self, chain: str = "") -> Step:
        """Remove the rules of one chain, or of every chain."""
        command = f"flush chain {self._table} {chain}" if chain else f"flush table {self._table}"
        return Step(command, encode.flush_rules(chain, self._traits), BatchItem(command, chain))

    def add_set(self, spec: SetSpec) -> Step:
        """Create a set or map unless it is there."""
        body = " ; ".join(text.format_set_statements(spec, self._traits))
        command = f"add {text.format_set_keyword(spec)} {self._table} {spec.name} {{ {body} ; }}"
        return Step(command, encode.new_set(spec, self._traits), _set_item(spec))

    def flush_set(self, spec: SetSpec) -> Step:
        command = f"flush {text.format_set_keyword(spec)} {self._table} {spec.name}"
        return Step(command, encode.flush_set(spec.name, self._traits), _set_item(spec))

    def delete_set(self, name: str) -> Step:
        command = f"delete set {self._table} {name}"
        return Step(command, encode.delete_set(name, self._traits), BatchItem(f"set {name}", name))

    def add_chain(self, chain: Chain) -> Step:
        """Create a chain, without rules, unless it is there."""
        body = " ".join(line.rstrip(";") + " ;" for line in text.format_chain_statements(chain))
        command = f"add chain {self._table} {chain.name}{f' {{ {body} }}' if body else ''}"
        return Step(
            command, encode.new_chain(chain, self._traits), BatchItem(f"chain {chain.name}", chain.name)
        )

    def delete_chain(self, name: str) -> Step:
        """Remove a chain that nothing leads to any more."""
        command = f"delete chain {self._table} {name}"
        return Step(command, encode.delete_chain(name, self._traits), BatchItem(f"chain {name}", name))

    def add_rules(self, chain: Chain) -> Iterator[Step]:
        """Append the rules of a chain to it."""
        for rule in chain.rules:
            formatted = text.format_rule(rule)
            about = BatchItem(f"rule in chain {chain.name}: {formatted}", chain.name)
            yield Step(
                f"add rule {self._table} {chain.name} {formatted}",
                encode.new_rule(chain.name, rule, self._traits),
                about,
            )


def _set_item(spec: SetSpec) -> BatchItem:
    return BatchItem(f"{text.format_set_keyword(spec)} {spec.name}", spec.name)


class Batch:
    """Operations that become one kernel transaction."""

    def __init__(self, traits: FamilyTraits, operations: Sequence[Operation]) -> None:
        self.traits = traits
        self.operations = tuple(operations)

    def __bool__(self) -> bool:
        return bool(self.operations)

    def text(self) -> str:
        """The commands, one per line, loadable with `nft -f`."""
        return "".join(f"{line}\n" for operation in self.operations for line in self._lines(operation))

    def _lines(self, operation: Operation) -> Iterator[str]:
        if isinstance(operation, Step):
            yield operation.command
            return
        verb = "delete" if isinstance(operation, DeleteElements) else "add"
        entries = ", ".join(operation.format_entries(self.traits))
        if entries:
            yield f"{verb} element {self.traits.keyword} {TABLE} {operation.spec.name} {{ {entries} }}"

    def messages(self, *, one_by_one: bool = False) -> Iterator[Message]:
        """The encoded messages; `one_by_one` gives each element its own, so that a refusal names it."""
        for operation in self.operations:
            if isinstance(operation, Step):
                yield operation.message
                continue
            encoder = encode.delete_elements if isinstance(operation, DeleteElements) else encode.new_elements
            yield from encoder(operation.spec.name, operation.items(), self.traits, one_by_one=one_by_one)

    def find_items(self, positions: Iterable[int]) -> dict[int, BatchItem]:
        """Return what these messages of the batch, encoded one by one, are about; one pass for all of them."""
        wanted = set(positions)
        found: dict[int, BatchItem] = {}
        start = 0
        for operation in self.operations:
            if isinstance(operation, Step):
                if start in wanted:
                    found[start] = operation.about
                start += 1
                continue
            end = start + len(operation.entries)
            if any(start <= position < end for position in wanted):
                for position, key in enumerate(operation.keys(), start):
                    if position in wanted:
                        found[position] = self._element_item(operation.spec, key)
            start = end
        return found

    def _element_item(self, spec: SetSpec, key: bytes) -> BatchItem:
        what = f"{text.format_set_keyword(spec)} {spec.name} {text.format_key(key, spec, self.traits)}"
        return BatchItem(what, spec.name, key)

    def element_counts(self) -> dict[str, int]:
        """Elements written per set and map."""
        counts: dict[str, int] = {}
        for operation in self.operations:
            if not isinstance(operation, Step):
                name = operation.spec.name
                counts[name] = counts.get(name, 0) + len(operation.entries)
        return counts
