"""Canaries: chains whose disappearance tells that somebody flushed the tables.

One per table. A flush with `-F` alone keeps the chains, so the ones in nat and filter also hold a rule. Somebody who
reloads a firewall flushes table after table; reporting waits a moment for that to be over, or the repair would be
flushed as well. A lock that is taken, or a tool that fails, is taken neither for a flush nor for tables in order.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from pointsman.backends.contract import PRESENT, Difference
from pointsman.backends.iptables.static import CANARY_TABLES
from pointsman.backends.netfilter import names
from pointsman.kernel.iptables import MANGLE, Iptables

_SETTLE_SECONDS = 1.0
_POLL_SECONDS = 0.1


def flushed_tables(runner: Iptables) -> list[str]:
    """Tables whose canary is gone."""
    missing = []
    for table in CANARY_TABLES:
        rules = runner.list_chain(table, names.CANARY)
        if rules is None or (not rules and table != MANGLE):
            missing.append(table)
    return missing


def flush_report(
    runner: Iptables,
    *,
    sleep: Callable[[float], None] = time.sleep,
    settle_seconds: float = _SETTLE_SECONDS,
) -> Difference | None:
    """What was flushed, or None when all canaries live; raises KernelError when nothing can be said."""
    missing = flushed_tables(runner)
    waited = 0.0
    while missing and waited < settle_seconds:
        sleep(_POLL_SECONDS)
        waited += _POLL_SECONDS
        before, missing = missing, flushed_tables(runner)
        if len(missing) == len(CANARY_TABLES) and before == missing:
            break
    if not missing:
        return None
    return Difference(f"{names.CANARY} in {runner.programs.edit} tables {', '.join(missing)}", PRESENT)
