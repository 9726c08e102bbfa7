"""The table's inventory against what it should be: flags, chains with their hooks, sets with their types, rules.

Pure. `drift` reports the first finding, `verify` all of them, and a full load asks whether the table can be filled
as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pointsman.backends.contract import PRESENT, Damage, Rival
from pointsman.backends.nftables import text
from pointsman.backends.nftables.contents import Contents
from pointsman.backends.nftables.expressions import same_expressions
from pointsman.backends.nftables.reader import KernelChain, KernelElement, KernelTable, TableHead
from pointsman.backends.nftables.schema import COMMENT_PREFIX, TABLE, Chain, Hook
from pointsman.backends.nftables.set_shape import set_shape
from pointsman.kernel import nf_tables as nf

_KUBE_PROXY_COMMENT = "rules for kube-proxy"


class Finding(NamedTuple):
    """One object that differs from what it should be."""

    what: str
    damage: Damage
    want: str = ""
    have: str = ""
    name: str = ""
    """Of the chain or set."""


def table_words(contents: Contents) -> str:
    return f"table {contents.traits.keyword} {TABLE}"


def flag_findings(contents: Contents, head: TableHead) -> Iterator[Finding]:
    if head.flags & nf.NFT_TABLE_F_OWNER:
        yield Finding(table_words(contents), Damage.CHANGED, "changeable", owner_words(head))
    if head.flags & nf.NFT_TABLE_F_DORMANT:
        yield Finding(table_words(contents), Damage.CHANGED, "active", "dormant")


def owner_words(head: TableHead) -> str:
    return f"owned by another process (netlink port {head.owner}, usually its process id)"


def chain_findings(contents: Contents, table: KernelTable) -> Iterator[Finding]:
    wanted = {chain.name: chain for chain in contents.all_chains()}
    for name, chain in wanted.items():
        held = table.chains.get(name)
        if held is None:
            yield Finding(f"chain {name}", Damage.DELETED, PRESENT, "", name)
        elif held.hook != chain.hook:
            want, have = text.hook_words(chain.hook), text.hook_words(held.hook)
            yield Finding(f"chain {name}", Damage.CHANGED, want, have, name)
    for name in sorted(table.chains.keys() - wanted.keys()):
        yield Finding(f"chain {name}", Damage.ADDED, "", PRESENT, name)


def set_findings(contents: Contents, table: KernelTable) -> Iterator[Finding]:
    wanted = {spec.name: spec for spec in contents.all_sets()}
    for name, spec in wanted.items():
        what = f"{text.set_keyword(spec)} {name}"
        held = table.sets.get(name)
        if held is None:
            yield Finding(what, Damage.DELETED, PRESENT, "", name)
        elif held.shape != set_shape(spec, contents.traits):
            definition = text.set_statements(spec, contents.traits)[0]
            yield Finding(what, Damage.REPLACED, definition, "another type", name)
    for name in sorted(table.sets.keys() - wanted.keys()):
        kind = "map" if table.sets[name].shape.flags & nf.NFT_SET_MAP else "set"
        yield Finding(f"{kind} {name}", Damage.ADDED, "", PRESENT, name)


def count_findings(contents: Contents, table: KernelTable) -> Iterator[Finding]:
    """Chains and sets of another size than after our last commit."""
    for name, uses in expected_uses(contents).items():
        if table.chains[name].uses != uses:
            yield Finding(f"rules of or references to chain {name}", Damage.CHANGED, name=name)
    for name, count in contents.element_counts().items():
        held = table.sets[name].elements
        if held is not None and held != count:
            yield Finding(f"elements of {name}", Damage.CHANGED, str(count), str(held), name)


def catch_all_findings(contents: Contents, held: Mapping[str, KernelElement]) -> Iterator[Finding]:
    """We never put one there."""
    for name, element in held.items():
        value = element.verdict or (
            text.endpoint_words(element.data, contents.traits) if element.data else PRESENT
        )
        spec = contents.sets[name]
        what = f"{text.set_keyword(spec)} {name} {text.key_words(element.key, spec, contents.traits)}"
        yield Finding(what, Damage.ADDED, "", value, name)


def expected_uses(contents: Contents) -> dict[str, int]:
    """What the kernel's use count of each chain must be."""
    chains = contents.all_chains()
    uses: Counter[str] = Counter({chain.name: len(chain.rules) for chain in chains})
    for chain in chains:
        for rule in chain.rules:
            uses.update(rule.targets)
    uses.update(contents.verdicts)
    return dict(uses)


def rule_findings(chain: Chain, held: Sequence[bytes]) -> Iterator[Finding]:
    """The rules of one chain against those the kernel lists for it."""
    for number, rule in enumerate(chain.rules):
        what = f"chain {chain.name} rule {number + 1}"
        if number >= len(held):
            yield Finding(what, Damage.DELETED, rule.text, "", chain.name)
        elif not same_expressions(rule.expressions, held[number]):
            yield Finding(what, Damage.REPLACED, rule.text, "another rule", chain.name)
    for number in range(len(chain.rules), len(held)):
        what = f"chain {chain.name} rule {number + 1}"
        yield Finding(what, Damage.ADDED, "the end of the chain", "a rule", chain.name)


def can_be_filled(contents: Contents, table: KernelTable) -> bool:
    """Whether this table takes our contents as it stands; some kernels would not say so themselves."""
    hooks = {chain.name: chain.hook for chain in contents.all_chains()}
    shapes = {spec.name: set_shape(spec, contents.traits) for spec in contents.all_sets()}
    return (
        table.head.comment == contents.comment
        and all(_attached_alike(held, hooks[name]) for name, held in table.chains.items() if name in hooks)
        and all(held.shape == shapes[name] for name, held in table.sets.items() if name in shapes)
    )


def rival_in(head: TableHead, handle: int, chains: Mapping[str, KernelChain]) -> Rival | None:
    """Whose table this is or who writes into it, if another proxy; `handle` is that of the table we made.

    Without a base chain no packet passes through the table: whoever made it, nobody serves.
    """
    if not any(chain.hook for chain in chains.values()):
        return None
    if head.comment == _KUBE_PROXY_COMMENT or any("/" in name for name in chains):
        return Rival.KUBE_PROXY
    if head.handle == handle:
        return None
    return Rival.POINTSMAN if head.comment.startswith(COMMENT_PREFIX) else Rival.UNKNOWN


def _attached_alike(held: KernelChain, wanted: Hook | None) -> bool:
    """A policy can be changed in place, a hook cannot."""
    return held.hook == wanted or (
        held.hook is not None and wanted is not None and held.hook[:3] == wanted[:3]
    )
