"""A batch is data: the operations of one transaction, encoded only when it is sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from pointsman.backends.nftables import encode, text
from pointsman.backends.nftables.fields import FamilyTraits
from pointsman.backends.nftables.fragment import Element, Slots
from pointsman.backends.nftables.schema import TABLE, Chain, FlowTimeout, SetSpec
from pointsman.kernel import nf_tables as nf
from pointsman.kernel.netlink import NLM_F_APPEND, NLM_F_CREATE, Message
from pointsman.kernel.nfnl import build_nftables_message


class BatchItem(NamedTuple):
    """The object that a message of a batch is about."""

    what: str
    where: str = ""
    """Set, map or chain."""
    key: bytes = b""


class Step(NamedTuple):
    """One command that is one message: everything but elements."""

    verb: str
    """`add`, `delete` or `flush`."""
    about: BatchItem
    message: Message


class AddElements(NamedTuple):
    """Add elements of a set or verdict map, each with the label that becomes its comment."""

    spec: SetSpec
    entries: Sequence[tuple[Element, str]]


class AddSlots(NamedTuple):
    """Add endpoints: pairs of key (frontend and slot) and endpoint."""

    spec: SetSpec
    entries: Sequence[tuple[bytes, bytes]] | Slots


class DeleteElements(NamedTuple):
    """Remove elements by key (and end of range)."""

    spec: SetSpec
    entries: Sequence[tuple[bytes, bytes]]


ElementOperation = AddElements | AddSlots | DeleteElements
Operation = Step | ElementOperation


class Steps:
    """Makes the steps of one table."""

    def __init__(self, traits: FamilyTraits) -> None:
        self._traits = traits
        self._table = BatchItem(f"table {traits.keyword} {TABLE}")

    def add_table(self, comment: str) -> Step:
        """Create the table unless it is there."""
        return self._add(self._table, nf.NFT_MSG_NEWTABLE, encode.encode_table(comment))

    def delete_table(self) -> Step:
        return self._build("delete", self._table, nf.NFT_MSG_DELTABLE, encode.TABLE_NAME)

    def flush_rules(self, chain: str = "") -> Step:
        """Remove the rules of one chain, or of every chain."""
        about = BatchItem(f"chain {chain}", chain) if chain else self._table
        body = encode.name_object(nf.NFTA_RULE_CHAIN, chain) if chain else encode.TABLE_NAME
        return self._build("flush", about, nf.NFT_MSG_DELRULE, body)

    def add_set(self, spec: SetSpec) -> Step:
        """Create a set or map unless it is there."""
        return self._add(_describe_set(spec), nf.NFT_MSG_NEWSET, encode.encode_set(spec, self._traits))

    def flush_set(self, spec: SetSpec) -> Step:
        body = encode.encode_element_list(spec.name)
        return self._build("flush", _describe_set(spec), nf.NFT_MSG_DELSETELEM, body)

    def delete_set(self, name: str) -> Step:
        body = encode.name_object(nf.NFTA_SET_NAME, name)
        return self._build("delete", BatchItem(f"set {name}", name), nf.NFT_MSG_DELSET, body)

    def add_timeout(self, timeout: FlowTimeout) -> Step:
        """Create the object of a timeout unless it is there."""
        body = encode.encode_timeout(timeout, self._traits)
        return self._add(_describe_timeout(timeout.name), nf.NFT_MSG_NEWOBJ, body)

    def delete_timeout(self, name: str) -> Step:
        """Remove the object of a timeout that no rule refers to; flows that have it get the kernel's timeouts."""
        body = encode.name_timeout(name)
        return self._build("delete", _describe_timeout(name), nf.NFT_MSG_DELOBJ, body)

    def add_chain(self, chain: Chain) -> Step:
        """Create a chain, without rules, unless it is there."""
        about = BatchItem(f"chain {chain.name}", chain.name)
        return self._add(about, nf.NFT_MSG_NEWCHAIN, encode.encode_chain(chain))

    def delete_chain(self, name: str) -> Step:
        """Remove a chain that nothing leads to any more."""
        body = encode.name_object(nf.NFTA_CHAIN_NAME, name)
        return self._build("delete", BatchItem(f"chain {name}", name), nf.NFT_MSG_DELCHAIN, body)

    def add_rules(self, chain: Chain) -> Iterator[Step]:
        """Append the rules of a chain to it."""
        for rule in chain.rules:
            about = BatchItem(f"rule in chain {chain.name}: {text.format_rule(rule)}", chain.name)
            yield self._add(about, nf.NFT_MSG_NEWRULE, encode.encode_rule(chain.name, rule), NLM_F_APPEND)

    def _add(self, about: BatchItem, kind: int, body: bytes, flags: int = 0) -> Step:
        return self._build("add", about, kind, body, NLM_F_CREATE | flags)

    def _build(self, verb: str, about: BatchItem, kind: int, body: bytes, flags: int = 0) -> Step:
        return Step(verb, about, build_nftables_message(kind, self._traits.nfproto, flags, body))


def _find_keys(operation: ElementOperation) -> Iterator[bytes]:
    if isinstance(operation, AddElements):
        return (element.key for element, _ in operation.entries)
    return (key for key, _ in operation.entries)


def _describe_timeout(name: str) -> BatchItem:
    return BatchItem(f"ct timeout {name}", name)


def _describe_set(spec: SetSpec) -> BatchItem:
    return BatchItem(f"{text.format_set_keyword(spec)} {spec.name}", spec.name)


class Batch:
    """Operations that become one kernel transaction."""

    def __init__(self, traits: FamilyTraits, operations: Sequence[Operation]) -> None:
        self.traits = traits
        self.operations = tuple(operations)

    def __bool__(self) -> bool:
        return bool(self.operations)

    def encode(self, *, one_by_one: bool = False) -> Iterator[Message]:
        """Yield the messages; `one_by_one` gives each element its own, so that a rejection names it."""
        for operation in self.operations:
            if isinstance(operation, Step):
                yield operation.message
                continue
            kind, flags = nf.NFT_MSG_NEWSETELEM, NLM_F_CREATE
            if isinstance(operation, AddElements):
                items = encode.encode_elements(operation.entries)
            elif isinstance(operation, AddSlots):
                items = encode.encode_slots(operation.entries)
            else:
                kind, flags = nf.NFT_MSG_DELSETELEM, 0
                items = encode.encode_keys(operation.entries)
            for body in encode.encode_element_lists(operation.spec.name, items, one_by_one=one_by_one):
                yield build_nftables_message(kind, self.traits.nfproto, flags, body)

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
                for position, key in enumerate(_find_keys(operation), start):
                    if position in wanted:
                        found[position] = self._describe_element(operation.spec, key)
            start = end
        return found

    def _describe_element(self, spec: SetSpec, key: bytes) -> BatchItem:
        what = f"{text.format_set_keyword(spec)} {spec.name} {text.format_key(key, spec, self.traits)}"
        return BatchItem(what, spec.name, key)

    def count_elements(self) -> dict[str, int]:
        """Return the number of elements written per set and map."""
        counts: dict[str, int] = {}
        for operation in self.operations:
            if not isinstance(operation, Step):
                name = operation.spec.name
                counts[name] = counts.get(name, 0) + len(operation.entries)
        return counts
