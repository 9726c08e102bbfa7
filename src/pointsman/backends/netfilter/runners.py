"""The iptables programs of this host, and how the tables that they save differ from those that are wanted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from pointsman.backends.contract import Difference
from pointsman.backends.netfilter import names
from pointsman.backends.netfilter.rule_text import Chains, Jump
from pointsman.conditions import Condition
from pointsman.errors import KernelError
from pointsman.kernel.command import SystemCommands
from pointsman.kernel.iptables import Incompatible, Iptables
from pointsman.kernel.iptables_programs import choose_variant, find_variants_in_use
from pointsman.kernel.nft_ruleset import NftRuleset, list_chain_names
from pointsman.model.addresses import Family
from pointsman.model.service import ServicePortName

_TABLES = (names.FILTER, names.NAT)


class RuleTool(Protocol):
    """The part of `kernel.iptables.Iptables` that reads and loads whole tables."""

    family: Family

    def save(self, table: str) -> bytes:
        """Return the table as text."""

    def restore(self, text: bytes) -> None:
        """Load rules without flushing other chains; raises KernelError."""


def choose_runner(family: Family) -> Iptables:
    """Return the programs to use; raises NotSupported when there are none."""
    commands = SystemCommands()
    return Iptables(family, commands, variant=choose_variant(commands, family))


def find_nft_ruleset(runner: Iptables) -> NftRuleset | None:
    """Return where nf_tables keeps the rules of these programs; None for legacy iptables."""
    return NftRuleset(runner.family) if runner.features.nf_tables else None


def diff_rules(
    what: str,
    want: Sequence[str],
    have: Sequence[str],
    owners: Mapping[str, ServicePortName] = {},
    *,
    ordered: bool = True,
) -> Iterator[Difference]:
    """Yield the differences between canonical rules of one chain; `owners` are the service ports of the rules."""
    if want == have:
        return
    missing, surplus = Counter(want) - Counter(have), Counter(have) - Counter(want)
    for rule in missing:
        yield Difference(what, rule, "", owners.get(rule))
    for rule in surplus:
        yield Difference(what, "", rule)
    if ordered and not missing and not surplus:
        owner = next((owners[rule] for rule in want if rule in owners), None)
        yield Difference(what, " / ".join(want), "the same rules in another order", owner)


def diff_jumps(
    jumps: Iterable[Jump], tables: Mapping[str, Chains], check: Callable[[Jump], bool]
) -> Iterator[Difference]:
    """Yield the jumps that built-in chains lack."""
    for jump in jumps:
        if not jump.exists_in(tables[jump.table], check):
            yield Difference(f"{jump.table} {jump.source}", f"-A {jump.line}")


def diff_dormant(ruleset: NftRuleset | None) -> list[Difference]:
    """Return our tables that are dormant: listed as usual, but no packet passes through them. Raises KernelError."""
    if ruleset is None:
        return []
    return [
        Difference(ruleset.describe(table), "active", "dormant") for table in ruleset.find_dormant(_TABLES)
    ]


def activate_dormant(ruleset: NftRuleset | None) -> list[Difference]:
    """Activate dormant tables; return what they were. Raises KernelError."""
    found = diff_dormant(ruleset)
    if ruleset is not None and found:
        ruleset.activate(ruleset.find_dormant(_TABLES))
    return found


def describe_unreadable(error: KernelError) -> Condition:
    """Return the condition of tables that iptables cannot list."""
    return Condition.false("TablesReadable", "Unreadable", f"leftover rules are not removed: {error}")


def find_runners_in_use(families: Iterable[Family]) -> list[Iptables]:
    """Return the programs of every family and variant that may hold rules; they are not tried out here."""
    commands = SystemCommands()
    return [
        Iptables(family, commands, variant=variant)
        for family in families
        for variant in find_variants_in_use(family)
    ]


def read_text_to_clean(
    tool: RuleTool,
    table: str,
    unwanted: Callable[[str], bool],
    chains_in: Callable[[Family, str], Collection[str]] = list_chain_names,
) -> bytes:
    """Return the table as text; empty when iptables cannot list it and nf_tables shows no unwanted chain of a proxy."""
    try:
        return tool.save(table)
    except Incompatible:
        if any(unwanted(chain) for chain in chains_in(tool.family, table) if chain not in names.KUBELET_TOO):
            raise
        return b""


def find_missing_programs(family: Family) -> list[str]:
    """Return why iptables rules cannot be written here; empty when they can."""
    obstacle = choose_runner(family).find_obstacle()
    if obstacle is None:
        return []
    if isinstance(obstacle, Incompatible):
        return [f"{obstacle}, or use mode nftables"]
    return [f"{obstacle}; install the package iptables and allow CAP_NET_ADMIN, or use mode nftables"]
