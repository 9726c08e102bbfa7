"""Whether the kernel holds the table as it should.

Two questions are answered here, both as `Difference`s:

* Did another program change the table? `DriftCheck` asks the kernel for the ruleset generation, which every
  transaction increments. Only when it moved by more than our own commits, the definitions are compared: the table
  with its flags, chains with their hooks and use counts (rules inside plus references from rules and verdict maps),
  sets with their types, catch-all elements and (since Linux 6.16) their number of elements, and every rule.
* Does the table hold what the plans ask for? `compare_kernel` compiles the plans again and compares definitions
  and elements. Elements take long to read, so it has a socket of its own and runs on any thread.
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
from pointsman.backends.nftables.expressions import fingerprint, is_same_rule
from pointsman.backends.nftables.fields import find_traits, pack_slot_numbers
from pointsman.backends.nftables.fragment import Element, Fragment, Owners, Pool
from pointsman.backends.nftables.reader import (
    KernelChain,
    KernelElement,
    KernelTable,
    NarrowReader,
    Reader,
    TableHead,
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

_KUBE_PROXY_COMMENT = "rules for kube-proxy"


# --- definitions: table, chains, sets, rules ----------------------------------------------------------------


def format_table(contents: Contents) -> str:
    return f"table {contents.traits.keyword} {TABLE}"


def format_owner(head: TableHead) -> str:
    return f"owned by another process (netlink port {head.owner}, usually its process id)"


def _compare_flags(contents: Contents, head: TableHead) -> Iterator[Difference]:
    if head.flags & nf.NFT_TABLE_F_OWNER:
        yield Difference(format_table(contents), "changeable", format_owner(head))
    if head.flags & nf.NFT_TABLE_F_DORMANT:
        yield Difference(format_table(contents), "active", "dormant")


def _compare_chains(
    contents: Contents, table: KernelTable, owners: Owners, *, with_unused: bool
) -> Iterator[Difference]:
    """Yield missing, changed and added chains; unused balancer chains count only `with_unused`."""
    wanted = {chain.name: chain for chain in contents.list_chains()}
    unused = {balancer.name for balancer in contents.present if not contents.balancers[balancer]}
    for name, chain in wanted.items():
        held = table.chains.get(name)
        if held is None:
            if with_unused or name not in unused:
                yield Difference(f"chain {name}", PRESENT, "", owners.find(name))
        elif held.hook != chain.hook:
            want, have = text.format_hook(chain.hook), text.format_hook(held.hook)
            yield Difference(f"chain {name}", want, have, owners.find(name))
    for name in sorted(table.chains.keys() - wanted.keys()):
        if with_unused or not is_balancer_name(name):
            yield Difference(f"chain {name}", "", PRESENT)


def _compare_sets(contents: Contents, table: KernelTable, owners: Owners) -> Iterator[Difference]:
    wanted = {spec.name: spec for spec in contents.list_sets()}
    for name, spec in wanted.items():
        what = f"{text.format_set_keyword(spec)} {name}"
        held = table.sets.get(name)
        if held is None:
            yield Difference(what, PRESENT, "", owners.find(name))
        elif held.shape != compute_set_shape(spec, contents.traits):
            definition = text.format_set_statements(spec, contents.traits)[0]
            yield Difference(what, definition, "another type", owners.find(name))
    for name in sorted(table.sets.keys() - wanted.keys()):
        kind = "map" if table.sets[name].shape.flags & nf.NFT_SET_MAP else "set"
        yield Difference(f"{kind} {name}", "", PRESENT)


def _compare_timeouts(contents: Contents, table: KernelTable, *, with_unused: bool) -> Iterator[Difference]:
    """Yield missing, changed and added timeouts; those of unused balancer chains count only `with_unused`."""
    wanted = {timeout.name: timeout for timeout in contents.timeouts}
    for name, timeout in wanted.items():
        held = table.timeouts.get(name)
        if held is None or not held.has_policy_of(timeout):
            yield Difference(f"ct timeout {name}", f"{timeout.seconds} s", "another policy" if held else "")
    if with_unused:
        for name in sorted(table.timeouts.keys() - wanted.keys()):
            yield Difference(f"ct timeout {name}", "", PRESENT)


def _compare_counts(contents: Contents, table: KernelTable) -> Iterator[Difference]:
    """Yield chains and sets of another size than after our last commit."""
    for name, uses in _compute_uses(contents).items():
        held = table.chains[name].uses
        if held != uses:
            yield Difference(f"rules of or references to chain {name}", str(uses), str(held))
    for name, count in contents.count_elements().items():
        elements = table.sets[name].elements
        if elements is not None and elements != count:
            yield Difference(f"elements of {name}", str(count), str(elements))


def _compute_uses(contents: Contents) -> dict[str, int]:
    """Return the kernel's use count of each chain as it must be."""
    chains = contents.list_chains()
    uses: Counter[str] = Counter({chain.name: len(chain.rules) for chain in chains})
    for chain in chains:
        for rule in chain.rules:
            uses.update(rule.targets)
    uses.update(contents.verdicts)
    return dict(uses)


def _compare_rules(chain: Chain, held: Sequence[bytes], owners: Owners) -> Iterator[Difference]:
    for number, rule in enumerate(chain.rules):
        what = f"chain {chain.name} rule {number + 1}"
        if number >= len(held):
            yield Difference(what, rule.text, "", owners.find(chain.name))
        elif not is_same_rule(rule.expressions, held[number]):
            yield Difference(what, rule.text, "another rule", owners.find(chain.name))
    for number in range(len(chain.rules), len(held)):
        what = f"chain {chain.name} rule {number + 1}"
        yield Difference(what, "the end of the chain", "a rule", owners.find(chain.name))


def can_be_filled(contents: Contents, table: KernelTable) -> bool:
    """Whether this table takes our contents as it is; some kernels accept wrong types and then drop packets."""
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
    """A policy can be changed in place, a hook cannot."""
    return held.hook == wanted or (
        held.hook is not None and wanted is not None and held.hook[:3] == wanted[:3]
    )


# --- elements -----------------------------------------------------------------------------------------------


def _compare_elements(
    contents: Contents, table: KernelTable, reader: Reader, ordered: Collection[ServicePortName]
) -> Iterator[Difference]:
    """Compare the elements of every set that is of the right type, one set in memory at a time."""
    elements, pools = contents.list_elements(), contents.list_pools()
    owners = Owners(contents.fragments)
    for spec in contents.sets.values():
        held = table.sets.get(spec.name)
        if held is None or held.shape != compute_set_shape(spec, contents.traits):
            continue
        have = reader.read_elements(spec)
        if spec.data is Data.ENDPOINT:
            yield from _compare_slots(contents, spec, pools[spec.name], have, owners, ordered)
        else:
            wanted = [element for element, _ in elements[spec.name]]
            yield from _compare_plain_elements(contents, spec, wanted, have, owners)
        for element in have.values():
            yield _describe_added(contents, spec, element, owners)


def _compare_plain_elements(
    contents: Contents,
    spec: SetSpec,
    wanted: Sequence[Element],
    have: dict[bytes, KernelElement],
    owners: Owners,
) -> Iterator[Difference]:
    """Compare sets and verdict maps; what is wanted is taken out of `have`."""
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
        what = _format_element(contents, spec, element.key, element.key_end)
        yield Difference(what, want, held, owners.find(spec.name, element.key))


def _compare_slots(
    contents: Contents,
    spec: SetSpec,
    wanted: Sequence[Pool],
    have: dict[bytes, KernelElement],
    owners: Owners,
    ordered: Collection[ServicePortName],
) -> Iterator[Difference]:
    """Compare an endpoint map; what is wanted is taken out of `have`.

    Slots that are picked at random may be filled in any order, unless it is known in which they were committed.
    """
    for pool in wanted:
        keys = [pool.prefix + number for number in pack_slot_numbers(pool.size)[: pool.size]]
        found = [have.pop(key, None) for key in keys]
        held = [b"" if element is None else element.data for element in found]
        if held == list(pool.slots):
            continue
        owner = owners.find(spec.name, pool.prefix)
        exact = owner in ordered or (owner is not None and contents.fragments[owner].ordered)
        if not exact and sorted(held) == sorted(pool.slots):
            continue
        for key, want, data in zip(keys, pool.slots, held, strict=True):
            if want != data:
                yield Difference(
                    _format_element(contents, spec, key),
                    text.format_endpoint(want, contents.traits),
                    text.format_endpoint(data, contents.traits) if data else "",
                    owner,
                )


def _describe_added(contents: Contents, spec: SetSpec, element: KernelElement, owners: Owners) -> Difference:
    what = _format_element(contents, spec, element.key, element.key_end)
    value = text.format_endpoint(element.data, contents.traits) if element.data else element.verdict
    # A slot too many is a fault of its frontend; other elements under an unknown key belong to no service port.
    owner = owners.find(spec.name, element.key) if spec.data is Data.ENDPOINT else None
    return Difference(what, "", value or PRESENT, owner)


def _format_element(contents: Contents, spec: SetSpec, key: bytes, key_end: bytes = b"") -> str:
    element = Element(spec.name, key, None, key_end)
    return f"{text.format_set_keyword(spec)} {spec.name} {text.format_element(element, '', spec, contents.traits)}"


# --- drift --------------------------------------------------------------------------------------------------


class DriftCheck:
    """Finds changes by other programs; remembers the generation up to which the table is known to be ours."""

    def __init__(self, commits: CommitLog) -> None:
        self._commits = commits
        self.external_changes = 0
        """Transactions of other programs after which the definitions were right; elements may have changed."""
        self._generation = -1
        self._handle = 0
        self._right_rules: dict[str, tuple[int, int]] = {}
        """Per chain, fingerprints of rules found right: those we wanted and those the kernel listed."""

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
        owners = Owners(contents.fragments)
        found = itertools.chain(
            _compare_flags(contents, table.head),
            _compare_chains(contents, table, owners, with_unused=True),
            _compare_sets(contents, table, owners),
            _compare_timeouts(contents, table, with_unused=True),
            _compare_counts(contents, table),
            self._compare_catch_alls(contents, reader, owners),
            self._compare_rules(contents, reader, owners),
        )
        first = next(found, None)
        return first and msgspec.structs.replace(first, other_proxy=other)

    def _compare_catch_alls(self, contents: Contents, reader: Reader, owners: Owners) -> Iterator[Difference]:
        """Yield catch-all elements, which the kernel does not count; there must be none."""
        for name, element in reader.read_catch_alls(list(contents.sets.values())).items():
            yield _describe_added(contents, contents.sets[name], element, owners)

    def _compare_rules(self, contents: Contents, reader: Reader, owners: Owners) -> Iterator[Difference]:
        """Compare each listing once and recognise it by its fingerprint afterwards: comparing rules is slow."""
        listed = reader.read_rules()
        right: dict[str, tuple[int, int]] = {}
        for chain in contents.list_chains():
            held = listed.get(chain.name, [])
            prints = hash(chain.rules), fingerprint(held)
            if self._right_rules.get(chain.name) != prints:
                yield from _compare_rules(chain, held, owners)
            right[chain.name] = prints
        self._right_rules = right

    def _find_other_proxy(self, table: KernelTable) -> OtherProxy | None:
        """Return the other proxy that made this table or writes into it.

        Without a base chain no packet passes through the table, so no other proxy serves by it.
        """
        if not any(chain.hook for chain in table.chains.values()):
            return None
        if is_made_by_kube_proxy(table):
            return OtherProxy.KUBE_PROXY
        if table.head.handle == self._handle:
            return None
        ours = table.head.comment.startswith(COMMENT_PREFIX)
        return OtherProxy.POINTSMAN if ours else OtherProxy.UNKNOWN


def is_made_by_kube_proxy(table: KernelTable) -> bool:
    """Return whether kube-proxy made this table or took it over: that keeps the comment and adds chains named by Services."""
    return table.head.comment == _KUBE_PROXY_COMMENT or any("/" in name for name in table.chains)


# --- comparison ---------------------------------------------------------------------------------------------


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
    says which slot each endpoint has. `complete` when these are all service ports: everything else in the table is a
    difference then.
    """

    def compile_one(plan: ServicePlan) -> Fragment:
        held = committed.get(plan.name)
        fragment = compile_fragment(plan, context, held, counters=counters)
        return held if held is not None and fragment == held else fragment

    contents = Contents(context, counters=counters)
    contents.load(compile_each(plans, compile_one, {}))
    traits = find_traits(context.family)
    with NftablesSocket() as socket:
        reader = Reader(socket, traits) if complete else NarrowReader(socket, traits, contents)
        return list(_compare_all(contents, reader, committed.keys()))


def _compare_all(
    contents: Contents, reader: Reader, ordered: Collection[ServicePortName]
) -> Iterator[Difference]:
    """Yield every difference; in fragments of `ordered` it matters which slot an endpoint has."""
    name = format_table(contents)
    table = reader.read_table()
    if table is None:
        yield Difference(name, PRESENT)
        return
    owned = table.head.flags & nf.NFT_TABLE_F_OWNER
    if table.head.comment != contents.comment and not owned:
        yield Difference(name, contents.comment, table.head.comment or "a table without comment")
        return
    yield from _compare_flags(contents, table.head)
    if owned:
        return
    owners = Owners(contents.fragments)
    yield from _compare_sets(contents, table, owners)
    yield from _compare_timeouts(contents, table, with_unused=False)
    yield from _compare_chains(contents, table, owners, with_unused=False)
    listed = reader.read_rules()
    for chain in contents.list_chains():
        if chain.name in table.chains:
            yield from _compare_rules(chain, listed.get(chain.name, []), owners)
    yield from _compare_elements(contents, table, reader, ordered)
