"""Finds service ports whose rules the kernel rejects when the program cannot name the line.

The legacy interface replaces a whole table at once and reports only that this failed; a kernel without, say, the SCTP match
would then reject every service because of one. Here the rules of suspects are loaded into scratch chains that no packet
reaches, half of them at a time, until the rejected ones are left. Any match or target may be missing (sctp, recent,
statistic, nfacct), so a check of single features at start would not protect the other services.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from pointsman.backends.iptables.fragment import SHARED_CHAINS, Fragment
from pointsman.backends.netfilter import names
from pointsman.backends.netfilter.names import FILTER, NAT
from pointsman.backends.netfilter.rule_text import format_deletion
from pointsman.kernel.iptables import Iptables, RestoreRejected
from pointsman.model.service import ServicePortName

_REAL = b"KUBE-"
SCRATCH_PREFIX = "PTRY-"
"""As long as the real prefix: chain names have a limit."""
_FILTER_CHAINS = [shared.chain for shared in SHARED_CHAINS if shared.table == FILTER]
_NAT_CHAINS = [*(shared.chain for shared in SHARED_CHAINS if shared.table == NAT), names.MARK_MASQUERADE]
_MAX_FOUND = 20


def find_rejected(runner: Iptables, suspects: Mapping[ServicePortName, Fragment]) -> list[ServicePortName]:
    """Return the suspects that are rejected on their own; empty when each of them would be accepted."""
    found: list[ServicePortName] = []
    groups: list[list[ServicePortName]] = [list(suspects)]
    while groups and len(found) < _MAX_FOUND:
        group = groups.pop()
        if not group or _is_accepted(runner, [suspects[name] for name in group]):
            continue
        if len(group) == 1:
            found += group
        else:
            half = len(group) // 2
            groups += [group[half:], group[:half]]
    return found


def remove_leftovers(
    restore: Callable[[bytes], None], held: Mapping[str, Collection[str]]
) -> dict[str, list[str]]:
    """Remove scratch chains of a search that was killed; return them by table. `held` are the chains of each table."""
    scratch = {
        table: sorted(chain for chain in chains if chain.startswith(SCRATCH_PREFIX))
        for table, chains in held.items()
    }
    found = {table: chains for table, chains in scratch.items() if chains}
    if found:
        restore("".join(format_deletion(table, chains) for table, chains in found.items()).encode())
    return found


def _is_accepted(runner: Iptables, fragments: Sequence[Fragment]) -> bool:
    own = [chain for fragment in fragments for chain in fragment.chains]
    sections = (
        (FILTER, _FILTER_CHAINS, [fragment.join_rules(FILTER) for fragment in fragments]),
        (NAT, (*_NAT_CHAINS, *own), [fragment.join_rules(NAT) for fragment in fragments]),
    )
    load, remove = b"", b""
    for table, chains, rules in sections:
        declared = "".join(f":{chain} - [0:0]\n" for chain in chains)
        load += f"*{table}\n{declared}".encode() + b"".join(rules) + b"COMMIT\n"
        remove += format_deletion(table, chains).encode()
    try:
        runner.restore(load.replace(_REAL, SCRATCH_PREFIX.encode()))
    except RestoreRejected:
        return False
    finally:
        runner.restore(remove.replace(_REAL, SCRATCH_PREFIX.encode()))
    return True
