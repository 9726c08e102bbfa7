"""Comparison of the table in the kernel with the one that it should hold.

Two questions are answered here, both as `Difference`s:

* Did another program change the table? `DriftCheck` reads the ruleset generation, which every
  transaction increments. Only when it moved by more than our own commits, the definitions are compared: the table
  with its flags, chains with their hooks and use counts (rules inside plus references from rules and verdict maps),
  sets with their types, catch-all elements and (since Linux 6.16) their number of elements, and every rule.
* Does the table hold what the plans need? `compare_kernel` compiles the plans again and compares definitions
  and elements. Elements take long to read, so it has a socket of its own and runs on any thread.

`TableComparison` makes the comparisons of both.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from pointsman.backends.contract import PRESENT, Difference, OtherProxy, compile_each
from pointsman.backends.nftables import text
from pointsman.backends.nftables.balancers import is_balancer_name
from pointsman.backends.nftables.compile import compile_fragment
from pointsman.backends.nftables.contents import Contents
from pointsman.backends.nftables.expressions import compute_fingerprint, is_same_rule
from pointsman.backends.nftables.fragment import Element, Fragment, Owners, Pool
from pointsman.backends.nftables.reader import (
    KernelChain,
    KernelElement,
    KernelTable,
    NarrowReader,
    Reader,
)
from pointsman.backends.nftables.schema import (
    COMMENT_PREFIX,
    TABLE,
    Chain,
    Data,
    Hook,
    SetSpec,
    compute_set_shape,
)
from pointsman.kernel import nf_tables as nf
from pointsman.kernel.nfnl import CommitLog, NftablesSocket
from pointsman.model.node_context import NodeContext
from pointsman.model.plan import ServicePlan
from pointsman.model.service import ServicePortName

_Prints = tuple[int, int]
"""Fingerprints of the rules of a chain: those we want and those the kernel lists."""


def format_table(contents: Contents) -> str:
    return f"table {contents.traits.keyword} {TABLE}"


def can_be_filled(contents: Contents, table: KernelTable) -> bool:
    """Return whether this table takes our contents as it is; some kernels accept wrong types and then drop packets."""
    hooks = {chain.name: chain.hook for chain in contents.list_chains()}
    shapes = {spec.name: compute_set_shape(spec, contents.traits) for spec in contents.list_sets()}
    return (
        table.head.comment == contents.comment
        and all(_is_same_hook(held, hooks[name]) for name, held in table.chains.items() if name in hooks)
        and all(held.shape == shapes[name] for name, held in table.sets.items() if name in shapes)
        and all(
            table.timeouts[one.name].has_policy_of(one)
            for one in contents.timeouts
            if one.name in table.timeouts
        )
    )


def _is_same_hook(held: KernelChain, wanted: Hook | None) -> bool:
    """Return whether only the policy differs at most, which can be changed in place."""
    return held.hook == wanted or (
        held.hook is not None and wanted is not None and held.hook[:3] == wanted[:3]
    )


class TableComparison:
    """The table in the kernel against the contents that it should have."""

    def __init__(self, contents: Contents, table: KernelTable, reader: Reader) -> None:
        self._contents, self._table, self._reader = contents, table, reader
        self._traits = contents.traits
        self._owners = Owners(contents.fragments)
        self.right_rules: dict[str, _Prints] = {}
        """Per chain, what `compare_rules` found right."""

    def compare_flags(self) -> Iterator[Difference]:
        head, name = self._table.head, format_table(self._contents)
        if head.flags & nf.NFT_TABLE_F_OWNER:
            yield Difference(name, "changeable", head.describe_owner())
        if head.flags & nf.NFT_TABLE_F_DORMANT:
            yield Difference(name, "active", "dormant")

    def compare_chains(self, *, with_unused: bool) -> Iterator[Difference]:
        """Yield missing, changed and added chains; unused balancer chains count only `with_unused`."""
        contents = self._contents
        wanted = {chain.name: chain for chain in contents.list_chains()}
        unused = {balancer.name for balancer in contents.present if not contents.balancers[balancer]}
        for name, chain in wanted.items():
            held = self._table.chains.get(name)
            if held is None:
                if with_unused or name not in unused:
                    yield Difference(f"chain {name}", PRESENT, "", self._owners.find(name))
            elif held.hook != chain.hook:
                want, have = text.format_hook(chain.hook), text.format_hook(held.hook)
                yield Difference(f"chain {name}", want, have, self._owners.find(name))
        for name in sorted(self._table.chains.keys() - wanted.keys()):
            if with_unused or not is_balancer_name(name):
                yield Difference(f"chain {name}", "", PRESENT)

    def compare_sets(self) -> Iterator[Difference]:
        wanted = {spec.name: spec for spec in self._contents.list_sets()}
        for name, spec in wanted.items():
            what = f"{text.format_set_keyword(spec)} {name}"
            held = self._table.sets.get(name)
            if held is None:
                yield Difference(what, PRESENT, "", self._owners.find(name))
            elif held.shape != compute_set_shape(spec, self._traits):
                definition = text.format_set_statements(spec, self._traits)[0]
                yield Difference(what, definition, "another type", self._owners.find(name))
        for name in sorted(self._table.sets.keys() - wanted.keys()):
            kind = "map" if self._table.sets[name].shape.flags & nf.NFT_SET_MAP else "set"
            yield Difference(f"{kind} {name}", "", PRESENT)

    def compare_timeouts(self, *, with_unused: bool) -> Iterator[Difference]:
        """Yield missing, changed and added timeouts; those of unused balancer chains count only `with_unused`."""
        wanted = {timeout.name: timeout for timeout in self._contents.timeouts}
        for name, timeout in wanted.items():
            held = self._table.timeouts.get(name)
            if held is None or not held.has_policy_of(timeout):
                yield Difference(
                    f"ct timeout {name}", f"{timeout.seconds} s", "another policy" if held else ""
                )
        if with_unused:
            for name in sorted(self._table.timeouts.keys() - wanted.keys()):
                yield Difference(f"ct timeout {name}", "", PRESENT)

    def compare_counts(self) -> Iterator[Difference]:
        """Yield chains and sets of another size than after our last commit."""
        contents = self._contents
        chains = contents.list_chains()
        uses = contents.verdicts + Counter({chain.name: len(chain.rules) for chain in chains})
        uses.update(target for chain in chains for rule in chain.rules for target in rule.targets)
        for chain in chains:
            held = self._table.chains[chain.name].uses
            if held != uses[chain.name]:
                what = f"rules of or references to chain {chain.name}"
                yield Difference(what, str(uses[chain.name]), str(held))
        for name, count in contents.count_elements().items():
            elements = self._table.sets[name].elements
            if elements is not None and elements != count:
                yield Difference(f"elements of {name}", str(count), str(elements))

    def compare_catch_alls(self) -> Iterator[Difference]:
        """Yield catch-all elements, which the kernel does not count; there must be none."""
        sets = self._contents.sets
        for name, element in self._reader.read_catch_alls(list(sets.values())).items():
            yield self._describe_added(sets[name], element)

    def compare_rules(self, known: Mapping[str, _Prints] = {}) -> Iterator[Difference]:
        """Compare the rules of each chain, but not those in `known`, which were right before: comparing rules is slow."""
        listed = self._reader.read_rules()
        for chain in self._contents.list_chains():
            if chain.name not in self._table.chains:
                continue
            held = listed.get(chain.name, [])
            prints = hash(chain.rules), compute_fingerprint(held)
            if known.get(chain.name) != prints:
                yield from self._compare_rules_of(chain, held)
            self.right_rules[chain.name] = prints

    def _compare_rules_of(self, chain: Chain, held: Sequence[bytes]) -> Iterator[Difference]:
        owner = self._owners.find(chain.name)
        for number, (rule, have) in enumerate(itertools.zip_longest(chain.rules, held), 1):
            what = f"chain {chain.name} rule {number}"
            if rule is None:
                yield Difference(what, "the end of the chain", "a rule", owner)
            elif have is None:
                yield Difference(what, rule.text, "", owner)
            elif not is_same_rule(rule.expressions, have):
                yield Difference(what, rule.text, "another rule", owner)

    def compare_elements(self, ordered: Collection[ServicePortName]) -> Iterator[Difference]:
        """Compare the elements of every set that is of the right type, one set in memory at a time.

        In fragments of `ordered` it matters which slot an endpoint has.
        """
        elements, pools = self._contents.list_elements(), self._contents.list_pools()
        for spec in self._contents.sets.values():
            held = self._table.sets.get(spec.name)
            if held is None or held.shape != compute_set_shape(spec, self._traits):
                continue
            have = self._reader.read_elements(spec)
            if spec.data is Data.ENDPOINT:
                yield from self._take_slots(spec, pools[spec.name], have, ordered)
            else:
                yield from self._take_elements(spec, [element for element, _ in elements[spec.name]], have)
            for element in have.values():
                yield self._describe_added(spec, element)

    def _take_elements(
        self, spec: SetSpec, wanted: Sequence[Element], have: dict[bytes, KernelElement]
    ) -> Iterator[Difference]:
        """Compare a set or verdict map; what is wanted is taken out of `have`."""
        for element in wanted:
            found = have.pop(element.key, None)
            want = PRESENT if element.chain is None else text.format_verdict(element.chain)
            if found is None:
                held = ""
            elif element.chain is not None and found.verdict != want:
                held = found.verdict
            elif found.key_end != element.key_end:
                held = "another range"
            else:
                continue
            what = self._format_element(spec, element.key, element.key_end)
            yield Difference(what, want, held, self._owners.find(spec.name, element.key))

    def _take_slots(
        self,
        spec: SetSpec,
        wanted: Sequence[Pool],
        have: dict[bytes, KernelElement],
        ordered: Collection[ServicePortName],
    ) -> Iterator[Difference]:
        """Compare an endpoint map; what is wanted is taken out of `have`.

        Slots that are picked at random may be filled in any order, unless it is known in which they were committed.
        """
        for pool in wanted:
            keys = [key for key, _ in pool.iterate()]
            found = [have.pop(key, None) for key in keys]
            held = [b"" if element is None else element.data for element in found]
            if held == list(pool.slots):
                continue
            owner = self._owners.find(spec.name, pool.prefix)
            exact = owner in ordered or (owner is not None and self._contents.fragments[owner].ordered)
            if not exact and sorted(held) == sorted(pool.slots):
                continue
            for key, want, data in zip(keys, pool.slots, held, strict=True):
                if want != data:
                    has = text.format_endpoint(data, self._traits) if data else ""
                    what, expected = self._format_element(spec, key), text.format_endpoint(want, self._traits)
                    yield Difference(what, expected, has, owner)

    def _describe_added(self, spec: SetSpec, element: KernelElement) -> Difference:
        value = text.format_endpoint(element.data, self._traits) if element.data else element.verdict
        # A slot too many is a fault of its frontend; other elements under an unknown key belong to no service port.
        owner = self._owners.find(spec.name, element.key) if spec.data is Data.ENDPOINT else None
        return Difference(
            self._format_element(spec, element.key, element.key_end), "", value or PRESENT, owner
        )

    def _format_element(self, spec: SetSpec, key: bytes, key_end: bytes = b"") -> str:
        element = Element(spec.name, key, None, key_end)
        formatted = text.format_element(element, "", spec, self._traits)
        return f"{text.format_set_keyword(spec)} {spec.name} {formatted}"


class DriftCheck:
    """Finds changes by other programs; stores the generation up to which no other program changed the table."""

    def __init__(self, commits: CommitLog) -> None:
        self._commits = commits
        self.external_changes = 0
        """Transactions of other programs after which the definitions were right; elements may have changed."""
        self._generation = -1
        self._handle = 0
        self._right_rules: dict[str, _Prints] = {}

    def on_loaded(self, generation: int, reader: Reader) -> None:
        """Start from a full load, which made this generation unless another program committed at the same time."""
        head = reader.read_head()
        self._handle = head.handle if head else 0
        self._generation = generation
        self._right_rules = {}

    def find_drift(self, contents: Contents, socket: NftablesSocket, reader: Reader) -> Difference | None:
        generation, external = self._commits.read(socket, self._generation)
        if external:
            found = self.find_changed_definition(contents, reader)
            if found is not None:
                return found
            self.external_changes += 1
        self._generation = generation
        return None

    def find_changed_definition(self, contents: Contents, reader: Reader) -> Difference | None:
        """Return the first difference that shows without reading elements."""
        table = reader.read_table()
        name = format_table(contents)
        if table is None:
            return Difference(name, PRESENT)
        other = self._find_other_proxy(table)
        if table.head.handle != self._handle or table.head.comment != contents.comment:
            have = table.head.comment or "a table without comment"
            if have == contents.comment:
                have = "another table with this comment"
            return Difference(name, contents.comment, have, other_proxy=other)
        comparison = TableComparison(contents, table, reader)
        found = itertools.chain(
            comparison.compare_flags(),
            comparison.compare_chains(with_unused=True),
            comparison.compare_sets(),
            comparison.compare_timeouts(with_unused=True),
            comparison.compare_counts(),
            comparison.compare_catch_alls(),
            comparison.compare_rules(self._right_rules),
        )
        first = next(found, None)
        if first is not None:
            return msgspec.structs.replace(first, other_proxy=other)
        self._right_rules = comparison.right_rules
        return None

    def _find_other_proxy(self, table: KernelTable) -> OtherProxy | None:
        """Return the other proxy that made this table or writes into it.

        Without a base chain no packet passes through the table, so no other proxy serves by it.
        """
        if not any(chain.hook for chain in table.chains.values()):
            return None
        if table.is_made_by_kube_proxy:
            return OtherProxy.KUBE_PROXY
        if table.head.handle == self._handle:
            return None
        is_pointsman = table.head.comment.startswith(COMMENT_PREFIX)
        return OtherProxy.POINTSMAN if is_pointsman else OtherProxy.UNKNOWN


def compare_kernel(
    context: NodeContext,
    plans: Mapping[ServicePortName, ServicePlan],
    committed: Mapping[ServicePortName, Fragment],
    *,
    counters: bool,
    complete: bool,
) -> list[Difference]:
    """Return how the table differs from the plans; raises KernelError.

    Compiles the plans again instead of trusting the committed contents, so that it also finds mistakes in those; `committed`
    has the slot of each endpoint. `complete` when these are all service ports: everything else in the table is a
    difference then.
    """

    def compile_one(plan: ServicePlan) -> Fragment:
        held = committed.get(plan.name)
        fragment = compile_fragment(plan, context, held, counters=counters)
        return held if held is not None and fragment == held else fragment

    contents = Contents(context, counters=counters)
    contents.load(compile_each(plans, compile_one, {}))
    with NftablesSocket() as socket:
        traits = contents.traits
        reader = Reader(socket, traits) if complete else NarrowReader(socket, traits, contents)
        return list(_compare_all(contents, reader, committed.keys()))


def _compare_all(
    contents: Contents, reader: Reader, ordered: Collection[ServicePortName]
) -> Iterator[Difference]:
    table = reader.read_table()
    if table is None:
        yield Difference(format_table(contents), PRESENT)
        return
    owned = table.head.flags & nf.NFT_TABLE_F_OWNER
    if table.head.comment != contents.comment and not owned:
        have = table.head.comment or "a table without comment"
        yield Difference(format_table(contents), contents.comment, have)
        return
    comparison = TableComparison(contents, table, reader)
    yield from comparison.compare_flags()
    if not owned:
        yield from comparison.compare_sets()
        yield from comparison.compare_timeouts(with_unused=False)
        yield from comparison.compare_chains(with_unused=False)
        yield from comparison.compare_rules()
        yield from comparison.compare_elements(ordered)
