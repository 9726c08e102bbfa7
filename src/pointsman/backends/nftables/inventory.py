"""The table's inventory against what it should be: flags, chains with their hooks, sets with their types, rules.

Pure. `drift` reports the first finding, `verify` all of them, and a full load asks whether the table can be filled
as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from pointsman.backends.contract import PRESENT, Difference, OtherProxy
from pointsman.backends.nftables import text
from pointsman.backends.nftables.balancers import is_balancer_name
from pointsman.backends.nftables.contents import Contents
from pointsman.backends.nftables.expressions import same_expressions
from pointsman.backends.nftables.fragment import Owners
from pointsman.backends.nftables.reader import KernelChain, KernelElement, KernelTable, TableHead
from pointsman.backends.nftables.schema import COMMENT_PREFIX, TABLE, Chain, Hook
from pointsman.backends.nftables.set_shape import set_shape
from pointsman.kernel import nf_tables as nf

_KUBE_PROXY_COMMENT = "rules for kube-proxy"


def table_words(contents: Contents) -> str:
    return f"table {contents.traits.keyword} {TABLE}"


def flag_differences(contents: Contents, head: TableHead) -> Iterator[Difference]:
    if head.flags & nf.NFT_TABLE_F_OWNER:
        yield Difference(table_words(contents), "changeable", owner_words(head))
    if head.flags & nf.NFT_TABLE_F_DORMANT:
        yield Difference(table_words(contents), "active", "dormant")


def owner_words(head: TableHead) -> str:
    return f"owned by another process (netlink port {head.owner}, usually its process id)"


def chain_differences(
    contents: Contents, table: KernelTable, owners: Owners, *, with_unused: bool
) -> Iterator[Difference]:
    """Missing, changed and added chains; balancer chains without users may be there or not unless `with_unused`."""
    wanted = {chain.name: chain for chain in contents.all_chains()}
    unused = {balancer.name for balancer in contents.present if not contents.balancers[balancer]}
    for name, chain in wanted.items():
        held = table.chains.get(name)
        if held is None:
            if with_unused or name not in unused:
                yield Difference(f"chain {name}", PRESENT, "", owners.find(name))
        elif held.hook != chain.hook:
            want, have = text.hook_words(chain.hook), text.hook_words(held.hook)
            yield Difference(f"chain {name}", want, have, owners.find(name))
    for name in sorted(table.chains.keys() - wanted.keys()):
        if with_unused or not is_balancer_name(name):
            yield Difference(f"chain {name}", "", PRESENT)


def set_differences(contents: Contents, table: KernelTable, owners: Owners) -> Iterator[Difference]:
    wanted = {spec.name: spec for spec in contents.all_sets()}
    for name, spec in wanted.items():
        what = f"{text.set_keyword(spec)} {name}"
        held = table.sets.get(name)
        if held is None:
            yield Difference(what, PRESENT, "", owners.find(name))
        elif held.shape != set_shape(spec, contents.traits):
            definition = text.set_statements(spec, contents.traits)[0]
            yield Difference(what, definition, "another type", owners.find(name))
    for name in sorted(table.sets.keys() - wanted.keys()):
        kind = "map" if table.sets[name].shape.flags & nf.NFT_SET_MAP else "set"
        yield Difference(f"{kind} {name}", "", PRESENT)


def count_differences(contents: Contents, table: KernelTable) -> Iterator[Difference]:
    """Chains and sets of another size than after our last commit."""
    for name, uses in expected_uses(contents).items():
        held = table.chains[name].uses
        if held != uses:
            yield Difference(f"rules of or references to chain {name}", str(uses), str(held))
    for name, count in contents.element_counts().items():
        elements = table.sets[name].elements
        if elements is not None and elements != count:
            yield Difference(f"elements of {name}", str(count), str(elements))


def catch_all_differences(contents: Contents, held: Mapping[str, KernelElement]) -> Iterator[Difference]:
    """We never put one there."""
    for name, element in held.items():
        value = element.verdict or (
            text.endpoint_words(element.data, contents.traits) if element.data else PRESENT
        )
        spec = contents.sets[name]
        what = f"{text.set_keyword(spec)} {name} {text.key_words(element.key, spec, contents.traits)}"
        yield Difference(what, "", value)


def expected_uses(contents: Contents) -> dict[str, int]:
    """What the kernel's use count of each chain must be."""
    chains = contents.all_chains()
    uses: Counter[str] = Counter({chain.name: len(chain.rules) for chain in chains})
    for chain in chains:
        for rule in chain.rules:
            uses.update(rule.targets)
    uses.update(contents.verdicts)
    return dict(uses)


def rule_differences(chain: Chain, held: Sequence[bytes], owners: Owners) -> Iterator[Difference]:
    """The rules of one chain against those the kernel lists for it."""
    for number, rule in enumerate(chain.rules):
        what = f"chain {chain.name} rule {number + 1}"
        if number >= len(held):
            yield Difference(what, rule.text, "", owners.find(chain.name))
        elif not same_expressions(rule.expressions, held[number]):
            yield Difference(what, rule.text, "another rule", owners.find(chain.name))
    for number in range(len(chain.rules), len(held)):
        what = f"chain {chain.name} rule {number + 1}"
        yield Difference(what, "the end of the chain", "a rule", owners.find(chain.name))


def can_be_filled(contents: Contents, table: KernelTable) -> bool:
    """Whether this table takes our contents as it stands; some kernels would not say so themselves."""
    hooks = {chain.name: chain.hook for chain in contents.all_chains()}
    shapes = {spec.name: set_shape(spec, contents.traits) for spec in contents.all_sets()}
    return (
        table.head.comment == contents.comment
        and all(_attached_alike(held, hooks[name]) for name, held in table.chains.items() if name in hooks)
        and all(held.shape == shapes[name] for name, held in table.sets.items() if name in shapes)
    )


def find_other_proxy(head: TableHead, handle: int, chains: Mapping[str, KernelChain]) -> OtherProxy | None:
    """Whose table this is or who writes into it, if another proxy; `handle` is that of the table we made.

    Without a base chain no packet passes through the table: whoever made it, nobody serves.
    """
    if not any(chain.hook for chain in chains.values()):
        return None
    if head.comment == _KUBE_PROXY_COMMENT or any("/" in name for name in chains):
        return OtherProxy.KUBE_PROXY
    if head.handle == handle:
        return None
    return OtherProxy.POINTSMAN if head.comment.startswith(COMMENT_PREFIX) else OtherProxy.UNKNOWN


def _attached_alike(held: KernelChain, wanted: Hook | None) -> bool:
    """A policy can be changed in place, a hook cannot."""
    return held.hook == wanted or (
        held.hook is not None and wanted is not None and held.hook[:3] == wanted[:3]
    )
