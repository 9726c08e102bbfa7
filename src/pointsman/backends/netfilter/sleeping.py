"""Tables of ours that somebody put to sleep: they look as they should, and no packet meets them."""

from __future__ import annotations

from pointsman.backends.contract import Difference
from pointsman.backends.netfilter.names import FILTER, NAT
from pointsman.kernel.nft_ruleset import Ruleset

_OURS = (FILTER, NAT)


def sleeping(ruleset: Ruleset) -> list[Difference]:
    """Raises KernelError when that cannot be read."""
    return [
        Difference(ruleset.words(table), want="active", have="dormant") for table in ruleset.dormant(_OURS)
    ]


def wake(ruleset: Ruleset) -> list[str]:
    """Wake what sleeps; says so, for an operator."""
    asleep = ruleset.dormant(_OURS)
    ruleset.wake(asleep)
    return [f"{ruleset.words(table)} was dormant" for table in asleep]
