"""Removes what iptables mode, ours or upstream's, left in the tables, and its packet counters.

Each table is cleaned in one restore, so there is never a jump into a missing chain. Chains that rules of other programs lead to
are emptied and kept. The chain KUBE-FIREWALL is shared with the kubelet: it is removed only when there is no sign of a kubelet
on this host and 127.0.0.0/8 is no longer routed, because until then it protects from neighbours (CVE-2020-8558).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

from pointsman.backends.contract import CleanupContext, CleanupItem, CleanupStatus
from pointsman.backends.iptables import isolate, static
from pointsman.backends.iptables.apply import ROUTE_LOCALNET
from pointsman.backends.iptables.settings import INVALID_COUNTER, LOCALHOST_COUNTER
from pointsman.backends.netfilter import names
from pointsman.backends.netfilter.names import FILTER, MANGLE, NAT
from pointsman.backends.netfilter.runners import text_to_clean
from pointsman.backends.netfilter.spelling import canonical
from pointsman.backends.netfilter.tables import parse_chains, rules_in
from pointsman.errors import KernelError, NotSupported
from pointsman.kernel import nfacct
from pointsman.kernel.iptables import Iptables

_TARGET = re.compile(r" -[jg] (\S+)")


def cleanup(
    runners: Sequence[Iptables],
    cleaning: CleanupContext,
    *,
    delete_counter: Callable[[str], bool] = nfacct.delete,
) -> Iterator[CleanupItem]:
    """Clean every family, even if another one fails; a second run has no effect."""
    loopback_is_routed = cleaning.sysctls.read_int(ROUTE_LOCALNET) == 1
    for runner in runners:
        try:
            yield from _clean_family(runner, loopback_is_routed, cleaning.keep)
        except KernelError as error:
            yield CleanupItem(
                "rules", where=runner.programs.edit, status=CleanupStatus.FAILED, why=str(error)
            )
    for name in (INVALID_COUNTER, LOCALHOST_COUNTER):
        with contextlib.suppress(KernelError):
            if delete_counter(name):
                yield CleanupItem("packet counter", name)


def _clean_family(
    runner: Iptables, loopback_is_routed: bool, keep: Mapping[str, Collection[str]]
) -> Iterator[CleanupItem]:
    held: dict[str, dict[str, list[str]]] = {}
    for table in (MANGLE, FILTER, NAT):
        try:
            unwanted = partial(_is_ours, table, keep.get(table, ()))
            text = text_to_clean(runner, table, unwanted)
            held[table] = {chain: rules_in(block) for chain, block in parse_chains(text).items()}
        except NotSupported:
            continue  # a kernel that lacks it holds nothing of it
        except KernelError as error:
            yield CleanupItem(
                "rules", where=_where(runner, table), status=CleanupStatus.FAILED, why=str(error)
            )
    has_kubelet = MANGLE not in held or any(chain in held[MANGLE] for chain in names.KUBELET_CHAINS)
    for table, scratch in isolate.remove_leftovers(runner, held).items():
        yield CleanupItem("scratch chains", where=_where(runner, table), count=len(scratch))
    for table, chains in held.items():
        kept = keep.get(table, ())
        ours = {chain for chain in chains if _is_ours(table, kept, chain)}
        if table == FILTER and not has_kubelet and not loopback_is_routed and _has_only_guard(chains):
            ours |= {names.KUBELET_FIREWALL}.difference(kept)
        if ours:
            yield from _clean_table(runner, table, chains, ours)


def _is_ours(table: str, keep: Collection[str], chain: str) -> bool:
    return chain not in keep and (
        chain in static.CHAINS[table] or (table == NAT and names.is_service_chain(chain))
    )


def _where(runner: Iptables, table: str) -> str:
    return f"{runner.programs.edit} table {table}"


def _has_only_guard(chains: dict[str, list[str]]) -> bool:
    """Return whether KUBE-FIREWALL exists and holds nothing but our own rule."""
    rules = chains.get(names.KUBELET_FIREWALL)
    return rules is not None and all(canonical(rule) == canonical(static.localnet_guard()) for rule in rules)


def _clean_table(
    runner: Iptables, table: str, chains: dict[str, list[str]], ours: set[str]
) -> Iterator[CleanupItem]:
    jumps = [
        rule
        for chain, rules in chains.items()
        if chain not in ours
        for rule in rules
        if _is_our_jump(table, rule, ours)
    ]
    kept = _find_referenced(chains, ours, jumps)
    text = [f"*{table}", *(f":{chain} - [0:0]" for chain in sorted(ours))]
    text += [f"-D {rule.removeprefix('-A ')}" for rule in jumps]
    text += [f"-X {chain}" for chain in sorted(ours - kept)]
    runner.restore(("\n".join(text) + "\nCOMMIT\n").encode())
    where = _where(runner, table)
    for rule in jumps:
        yield CleanupItem("jump", f"{rule.split()[1]} -> {_find_target(rule)}", where)
    removed = sorted(ours - kept)
    for chain in removed:
        if not names.is_service_chain(chain):
            yield CleanupItem("chain", chain, where)
    services = sum(map(names.is_service_chain, removed))
    if services:
        yield CleanupItem("chains of services", where=where, count=services)
    for chain in sorted(kept):
        yield CleanupItem(
            "chain", chain, where, CleanupStatus.KEPT, "emptied; another program's rule leads to it"
        )


def _is_our_jump(table: str, rule: str, ours: set[str]) -> bool:
    """Return whether a rule is one of upstream's jumps; other programs may jump to our chains on purpose."""
    return _find_target(rule) in ours and any(
        jump.table == table and jump.is_rule(rule) for jump in static.JUMPS
    )


def _find_referenced(chains: dict[str, list[str]], ours: set[str], jumps: Iterable[str]) -> set[str]:
    removed = set(jumps)
    targets = (
        _find_target(rule)
        for chain, rules in chains.items()
        if chain not in ours
        for rule in rules
        if rule not in removed
    )
    return {target for target in targets if target in ours}


def _find_target(rule: str) -> str:
    found = _TARGET.findall(rule)
    return found[-1] if found else ""
