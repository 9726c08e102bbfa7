"""Removes what iptables mode left in the tables, and its packet counters; on request also where kube-proxy made them.

Both write the same chains and rules. Only Pointsman puts a rule into the canary chains of nat and filter: that is the mark.
Each table is cleaned in one restore, so there is never a jump into a missing chain. Chains that rules of other programs lead to
are emptied and kept. The chain KUBE-FIREWALL is shared with the kubelet: it is removed only when there is no sign of a kubelet
on this host and 127.0.0.0/8 is no longer routed, because until then it protects from neighbours (CVE-2020-8558).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

from pointsman.backends.contract import NOT_OURS, CleanupContext, CleanupItem, CleanupStatus
from pointsman.backends.iptables import isolate, static
from pointsman.backends.iptables.apply import ROUTE_LOCALNET
from pointsman.backends.iptables.static import INVALID_COUNTER, LOCALHOST_COUNTER
from pointsman.backends.netfilter import names
from pointsman.backends.netfilter.names import FILTER, MANGLE, NAT
from pointsman.backends.netfilter.rule_text import canonicalize, format_deletion, parse_chains, split_rules
from pointsman.backends.netfilter.runners import read_text_to_clean
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
    keeps_others = False
    for runner in runners:
        try:
            for item in _clean_family(runner, cleaning):
                keeps_others |= item.why == NOT_OURS
                yield item
        except KernelError as error:
            yield CleanupItem(
                "rules", where=runner.programs.edit, status=CleanupStatus.FAILED, why=str(error)
            )
    if keeps_others:
        return
    for name in (INVALID_COUNTER, LOCALHOST_COUNTER):
        with contextlib.suppress(KernelError):
            if nfacct.has_counter(name) if cleaning.dry_run else delete_counter(name):
                yield CleanupItem("packet counter", name)


def _clean_family(runner: Iptables, cleaning: CleanupContext) -> Iterator[CleanupItem]:
    keep = cleaning.keep
    held: dict[str, dict[str, list[str]]] = {}
    for table in (MANGLE, FILTER, NAT):
        try:
            unwanted = partial(_is_ours, table, keep.get(table, ()))
            text = read_text_to_clean(runner, table, unwanted)
            held[table] = {chain: split_rules(block) for chain, block in parse_chains(text).items()}
        except NotSupported:
            continue  # a kernel that lacks it holds nothing of it
        except KernelError as error:
            yield CleanupItem(
                "rules", where=_describe_place(runner, table), status=CleanupStatus.FAILED, why=str(error)
            )
    has_kubelet = MANGLE not in held or any(chain in held[MANGLE] for chain in names.KUBELET_CHAINS)
    restore = _load_nothing if cleaning.dry_run else runner.restore
    for table, scratch in isolate.remove_leftovers(restore, held).items():
        yield CleanupItem("scratch chains", where=_describe_place(runner, table), count=len(scratch))
    if not cleaning.all_proxies and not any(map(_has_mark, held.values())):
        if any(
            _is_ours(table, keep.get(table, ()), chain) and chain not in names.KUBELET_TOO
            for table, chains in held.items()
            for chain in chains
        ):
            yield CleanupItem("chains", where=runner.programs.edit, status=CleanupStatus.KEPT, why=NOT_OURS)
        return
    loopback_is_routed = _is_loopback_routed(cleaning)
    for table, chains in held.items():
        kept = keep.get(table, ())
        ours = {chain for chain in chains if _is_ours(table, kept, chain)}
        if table == FILTER and not has_kubelet and not loopback_is_routed and _has_only_guard(chains):
            ours |= {names.KUBELET_FIREWALL}.difference(kept)
        if ours:
            yield from _clean_table(restore, _describe_place(runner, table), table, chains, ours)


def _load_nothing(_text: bytes) -> None:
    """Stand in for `Iptables.restore` in a dry run."""


def _has_mark(chains: Mapping[str, list[str]]) -> bool:
    """Return whether Pointsman wrote this table."""
    return any(
        canonicalize(rule) == canonicalize(static.CANARY_RULE) for rule in chains.get(names.CANARY, ())
    )


def _is_loopback_routed(cleaning: CleanupContext) -> bool:
    """Return whether 127.0.0.0/8 is routed once kernel settings are restored, which a dry run does not do."""
    value = cleaning.sysctls.read(ROUTE_LOCALNET)
    change = cleaning.sysctls.changes.get(ROUTE_LOCALNET) if cleaning.dry_run else None
    return (change.before if change is not None and change.after == value else value) == "1"


def _is_ours(table: str, keep: Collection[str], chain: str) -> bool:
    return chain not in keep and (
        chain in static.CHAINS[table] or (table == NAT and names.is_service_chain(chain))
    )


def _describe_place(runner: Iptables, table: str) -> str:
    return f"{runner.programs.edit} table {table}"


def _has_only_guard(chains: dict[str, list[str]]) -> bool:
    """Return whether KUBE-FIREWALL exists and holds nothing but our own rule."""
    rules = chains.get(names.KUBELET_FIREWALL)
    return rules is not None and all(
        canonicalize(rule) == canonicalize(static.build_localnet_guard()) for rule in rules
    )


def _clean_table(
    restore: Callable[[bytes], None], where: str, table: str, chains: dict[str, list[str]], ours: set[str]
) -> Iterator[CleanupItem]:
    jumps = [
        rule
        for chain, rules in chains.items()
        if chain not in ours
        for rule in rules
        if _is_our_jump(table, rule, ours)
    ]
    kept = _find_referenced(chains, ours, jumps)
    restore(format_deletion(table, sorted(ours), jumps, kept).encode())
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
