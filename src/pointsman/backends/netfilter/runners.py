"""The iptables programs of this host, as the modes that write rules with them need them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from pointsman.backends.netfilter import names
from pointsman.kernel.command import SystemCommands
from pointsman.kernel.iptables import Incompatible, Iptables
from pointsman.kernel.iptables_programs import choose_variant, variants_in_use
from pointsman.kernel.nft_ruleset import LEGACY, NftRuleset, Ruleset, list_chain_names
from pointsman.model.addresses import Family


class RuleTool(Protocol):
    """What is needed of `kernel.iptables.Iptables` to read and load whole tables."""

    family: Family

    def save(self, table: str) -> bytes:
        """The table as text."""

    def restore(self, text: bytes) -> None:
        """Load rules without flushing other chains; raises KernelError."""


def runner_for(family: Family) -> Iptables:
    """The programs to use; raises NotSupported when there are none."""
    commands = SystemCommands()
    return Iptables(family, commands, variant=choose_variant(commands, family))


def ruleset_of(runner: Iptables) -> Ruleset:
    """Where the rules that these programs write are kept."""
    return NftRuleset(runner.family) if runner.features.nf_tables else LEGACY


def runners_in_use(families: Iterable[Family]) -> list[Iptables]:
    """Every family and variant that may hold rules here; whether it can be used shows when it is."""
    commands = SystemCommands()
    return [
        Iptables(family, commands, variant=variant)
        for family in families
        for variant in variants_in_use(family)
    ]


def text_to_clean(
    tool: RuleTool,
    table: str,
    unwanted: Callable[[str], bool],
    chains_in: Callable[[Family, str], Collection[str]] = list_chain_names,
) -> bytes:
    """The table as text; empty when it cannot be listed and, as nft sees it, no unwanted chain of a proxy is there."""
    try:
        return tool.save(table)
    except Incompatible:
        if any(unwanted(chain) for chain in chains_in(tool.family, table) if chain not in names.KUBELET_TOO):
            raise
        return b""


def missing_programs(family: Family) -> list[str]:
    """What stands in the way of writing iptables rules; empty when nothing does."""
    obstacle = runner_for(family).obstacle()
    if obstacle is None:
        return []
    if isinstance(obstacle, Incompatible):
        return [f"{obstacle}, or use mode nftables"]
    return [f"{obstacle}; install the package iptables and allow CAP_NET_ADMIN, or use mode nftables"]
