"""Removes what iptables mode, ours or upstream's, left in the tables, and undoes changed kernel settings.

Each table is cleaned in one restore, so there is never a jump into a chain that is gone. Chains that rules of others
lead to are emptied and kept. The chain KUBE-FIREWALL is shared with the kubelet: it goes only when no kubelet has left
its marks on this host and 127.0.0.0/8 is no longer routed, because until then it keeps neighbours out (CVE-2020-8558).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from pointsman.backends.iptables import isolate, names, saved, static
from pointsman.backends.iptables.apply import ROUTE_LOCALNET
from pointsman.backends.iptables.settings import INVALID_COUNTER, LOCALHOST_COUNTER
from pointsman.backends.iptables.text import canonical
from pointsman.errors import KernelError
from pointsman.kernel import nfacct
from pointsman.kernel.iptables import FILTER, MANGLE, NAT, Iptables
from pointsman.kernel.sysctl import Sysctls

_TARGET = re.compile(r" -[jg] (\S+)")
_FIXED = {
    MANGLE: (names.CANARY,),
    FILTER: (*static.FILTER_CHAINS, names.CANARY),
    NAT: (*static.NAT_CHAINS, names.CANARY),
}


def cleanup(
    runners: Sequence[Iptables],
    sysctls: Sysctls,
    *,
    undo_sysctls: bool = True,
    keep: Mapping[str, Collection[str]] = {},
    delete_counter: Callable[[str], bool] = nfacct.delete,
) -> list[str]:
    """Clean every family; says what was removed, restored, or could not be removed. Fine to repeat.

    A switch of modes passes `undo_sysctls=False`: the new mode has settings on the same record. `keep` names chains
    by table that it shares, as ipvs mode does.
    """
    done = [change.message for change in sysctls.undo()] if undo_sysctls else []
    loopback_is_routed = sysctls.read_int(ROUTE_LOCALNET) == 1
    for runner in runners:
        try:
            done += _clean_family(runner, loopback_is_routed, keep)
        except KernelError as error:
            done.append(f"not cleaned: {error}")
    for name in (INVALID_COUNTER, LOCALHOST_COUNTER):
        with contextlib.suppress(KernelError):
            if delete_counter(name):
                done.append(f"packet counter {name}")
    return done


def _clean_family(
    runner: Iptables, loopback_is_routed: bool, keep: Mapping[str, Collection[str]]
) -> list[str]:
    held = {table: saved.rules_by_chain(runner.save(table)) for table in (MANGLE, FILTER, NAT)}
    has_kubelet = any(chain in held[MANGLE] for chain in names.KUBELET_CHAINS)
    done = isolate.remove_leftovers(runner, held)
    for table, chains in held.items():
        ours = {chain for chain in chains if chain in _FIXED[table]}
        if table == NAT:
            ours |= {chain for chain in chains if names.is_service_chain(chain)}
        if table == FILTER and not has_kubelet and not loopback_is_routed and _guards_only(chains):
            ours.add(names.KUBELET_FIREWALL)
        ours.difference_update(keep.get(table, ()))
        if ours:
            done += _clean_table(runner, table, chains, ours)
    return done


def _guards_only(chains: dict[str, list[str]]) -> bool:
    """KUBE-FIREWALL exists and holds nothing but the rule that we put there."""
    rules = chains.get(names.KUBELET_FIREWALL)
    return rules is not None and all(canonical(rule) == canonical(static.localnet_guard()) for rule in rules)


def _clean_table(runner: Iptables, table: str, chains: dict[str, list[str]], ours: set[str]) -> list[str]:
    jumps = [
        rule
        for chain, rules in chains.items()
        if chain not in ours
        for rule in rules
        if _is_our_jump(table, rule, ours)
    ]
    kept = _referred_to(chains, ours, jumps)
    text = [f"*{table}", *(f":{chain} - [0:0]" for chain in sorted(ours))]
    text += [f"-D {rule.removeprefix('-A ')}" for rule in jumps]
    text += [f"-X {chain}" for chain in sorted(ours - kept)]
    runner.restore(("\n".join(text) + "\nCOMMIT\n").encode())
    where = f"{runner.programs.edit} table {table}"
    done = [f"{where}: jump from {rule.split()[1]} to {_target(rule)}" for rule in jumps]
    done += [f"{where}: chain {chain}" for chain in sorted(ours - kept) if not names.is_service_chain(chain)]
    services = sum(1 for chain in ours - kept if names.is_service_chain(chain))
    if services:
        done.append(f"{where}: {services} chains of services")
    done += [
        f"{where}: chain {chain} emptied but kept, a rule of somebody else leads to it"
        for chain in sorted(kept)
    ]
    return done


def _is_our_jump(table: str, rule: str, ours: set[str]) -> bool:
    """A jump from a built-in chain, in upstream's spelling; others may jump to our chains on purpose."""
    if _target(rule) not in ours:
        return False
    words = sorted(rule.removeprefix("-A ").split())
    return any(jump.table == table and sorted(jump.line.split()) == words for jump in static.JUMPS)


def _referred_to(chains: dict[str, list[str]], ours: set[str], jumps: Iterable[str]) -> set[str]:
    removed = set(jumps)
    targets = (
        _target(rule)
        for chain, rules in chains.items()
        if chain not in ours
        for rule in rules
        if rule not in removed
    )
    return {target for target in targets if target in ours}


def _target(rule: str) -> str:
    found = _TARGET.findall(rule)
    return found[-1] if found else ""
