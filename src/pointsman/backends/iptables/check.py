"""Comparison of the tables with the desired ones: what a full sync need not write, drift checks, and the full comparison. Reads, never writes.

Tables are parsed once. Chains are compared as text first, which finds nearly everything right nearly always; only chains that
differ are compared rule by rule.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import msgspec

from pointsman.backends.contract import PRESENT, Difference
from pointsman.backends.iptables import static
from pointsman.backends.iptables.compile import compile_plan
from pointsman.backends.iptables.fragment import (
    NAT_SERVICES,
    SHARED_CHAINS,
    Changes,
    Committed,
    Fragment,
    Fragments,
    SharedChain,
    needs_comments,
)
from pointsman.backends.iptables.isolate import remove_leftovers
from pointsman.backends.iptables.static import Settings
from pointsman.backends.netfilter import names
from pointsman.backends.netfilter.names import FILTER, MANGLE, NAT
from pointsman.backends.netfilter.rule_text import (
    Chains,
    Jump,
    canonicalize,
    canonicalize_rules,
    parse_chains,
)
from pointsman.backends.netfilter.runners import describe_unreadable, diff_dormant, diff_jumps, diff_rules
from pointsman.conditions import Condition
from pointsman.errors import KernelError
from pointsman.kernel.iptables import Incompatible, Iptables
from pointsman.kernel.nft_ruleset import NftRuleset
from pointsman.model.plan import ServicePlan
from pointsman.model.service import ServicePortName

Plans = Mapping[ServicePortName, ServicePlan]
Tables = Mapping[str, Chains]
"""The chains of tables filter and nat as they were saved."""

SAVE_TIMEOUT_SECONDS = 20.0
"""For a comparison; after that the kernel could not be read."""
_SETTLE_SECONDS = 1.0
_POLL_SECONDS = 0.1


# --- a full sync ------------------------------------------------------------------------------------------


def find_full_changes(
    runner: Iptables, settings: Settings, fragments: Fragments, conditions: list[Condition]
) -> Changes:
    """Return what a full sync has to write. Tables that cannot be read are a condition: then everything is, and nothing deleted."""
    try:
        tables = {table: parse_chains(runner.save(table)) for table in (FILTER, NAT)}
    except KernelError as error:
        conditions.append(describe_unreadable(error))
        return Changes(
            own=fragments,
            shared=SHARED_CHAINS,
            frames=(FILTER, NAT),
            jumps=[jump for jump in static.JUMPS if not _is_known_to_exist(runner, jump)],
            create_kubelet_firewall=not runner.has_chain(FILTER, names.KUBELET_FIREWALL),
            create_canary=True,
        )
    remove_leftovers(runner.restore, tables)
    stale = set(filter(names.is_service_chain, tables[NAT]))
    if stale:
        stale.difference_update(*(fragment.chains for fragment in fragments.values()))
    has_jump = partial(_has_jump, runner)
    return msgspec.structs.replace(
        find_table_changes(settings, fragments, tables),
        stale=sorted(stale),
        jumps=[jump for jump in static.JUMPS if not jump.exists_in(tables[jump.table], has_jump)],
        create_kubelet_firewall=names.KUBELET_FIREWALL not in tables[FILTER],
        create_canary=True,
    )


def _has_jump(runner: Iptables, jump: Jump) -> bool:
    return runner.check_rule(jump.table, jump.source, jump.rule)


def _is_known_to_exist(runner: Iptables, jump: Jump) -> bool:
    """Return False among rules that iptables cannot read: a jump that is added twice does no harm."""
    try:
        return _has_jump(runner, jump)
    except Incompatible:
        return False


# --- text against text --------------------------------------------------------------------------------------


def find_table_changes(settings: Settings, fragments: Fragments, tables: Tables) -> Changes:
    """Return what the kernel does not hold as it is written: reading and comparing text is cheaper than writing it again."""
    return Changes(
        own={
            n: fragment for n, fragment in fragments.items() if not _holds_own_chains(fragment, tables[NAT])
        },
        shared=[chain for chain in SHARED_CHAINS if not _holds_shared(settings, fragments, chain, tables)],
        frames=[table for table in (FILTER, NAT) if not _holds_frame(settings, table, tables[table])],
    )


def _holds_own_chains(fragment: Fragment, chains: Chains) -> bool:
    first = fragment.declarations[1:].partition(b" ")[0].decode()
    if first and first not in chains:  # as for every service port of a first sync
        return False
    return b"".join([chains.get(chain, b"?") for chain in fragment.chains]) == fragment.rules


def _holds_shared(settings: Settings, fragments: Fragments, chain: SharedChain, tables: Tables) -> bool:
    """Compare without regard to the order of services; only the jumps to node ports must come last."""
    want = b"".join([fragment.get_lines(chain) for fragment in fragments.values()]).splitlines()
    last = [rule.encode() for rule in _build_last_rules(settings, chain)]
    have = tables[chain.table].get(chain.chain, b"?").splitlines()
    end = len(have) - len(last)
    return have[end:] == last and sorted(have[:end]) == sorted(want)


def _holds_frame(settings: Settings, table: str, chains: Chains) -> bool:
    return all(
        chain in chains and canonicalize_rules(chains[chain]) == rules
        for chain, rules in _build_frame(settings, table).items()
    )


def _build_frame(settings: Settings, table: str) -> dict[str, list[str]]:
    """Return the canonical rules of the chains that no service writes to."""
    frame: dict[str, list[str]] = {chain: [] for chain in static.list_frame_chains(table, settings)}
    for rule in static.build_frame_rules(table, settings):
        frame[rule.split(" ", 2)[1]].append(canonicalize(rule))
    return frame


def _build_last_rules(settings: Settings, chain: SharedChain) -> list[str]:
    return list(static.build_node_port_jumps(settings)) if chain == NAT_SERVICES else []


# --- rule by rule -------------------------------------------------------------------------------------------


def diff_tables(
    settings: Settings,
    fragments: Fragments,
    tables: Tables,
    check: Callable[[Jump], bool],
    *,
    complete: bool = True,
) -> Iterator[Difference]:
    """Yield every difference; `check` decides about jumps in another spelling.

    Unless `complete`, these are the fragments of some service ports: rules of others are then no difference.
    """
    changes = find_table_changes(settings, fragments, tables)
    yield from diff_jumps(static.JUMPS, tables, check)
    for table in changes.frames:
        yield from _diff_frame(settings, table, tables[table])
    for chain in changes.shared:
        yield from _diff_shared(settings, fragments, chain, tables, complete=complete)
    for name, fragment in changes.own.items():
        yield from _diff_own_chains(name, fragment, tables[NAT])
    if complete:
        wanted = {chain for fragment in fragments.values() for chain in fragment.chains}
        for table, chains in tables.items():
            for stale in chains:
                if names.is_service_chain(stale) and stale not in wanted:
                    yield Difference(f"{table} {stale}", "", "a chain of a service that is gone")


def _diff_frame(settings: Settings, table: str, chains: Chains) -> Iterator[Difference]:
    for chain, want in _build_frame(settings, table).items():
        if chain == names.CANARY:
            continue  # the drift check's
        if chain not in chains:
            yield Difference(f"{table} {chain}", "the chain")
            continue
        have = canonicalize_rules(chains[chain])
        if chain == names.KUBELET_FIREWALL:
            have = [rule for rule in have if rule in want]
        yield from diff_rules(f"{table} {chain}", want, have)


def _diff_shared(
    settings: Settings, fragments: Fragments, chain: SharedChain, tables: Tables, *, complete: bool
) -> Iterator[Difference]:
    owners = {
        rule: name
        for name, fragment in fragments.items()
        for rule in canonicalize_rules(fragment.get_lines(chain))
    }
    last = [canonicalize(rule) for rule in _build_last_rules(settings, chain)]
    want = [
        *(rule for fragment in fragments.values() for rule in canonicalize_rules(fragment.get_lines(chain))),
        *last,
    ]
    what = f"{chain.table} {chain.chain}"
    if chain.chain not in tables[chain.table]:
        yield Difference(what, "the chain", "", next(iter(owners.values()), None))
        return
    have = canonicalize_rules(tables[chain.table][chain.chain])
    if not complete:
        have = [rule for rule in have if rule in owners or rule in last]
    ends_right = list(itertools.takewhile(last.__contains__, reversed(have))) == last[::-1]
    yield from diff_rules(what, want, have, owners, ordered=not ends_right)


def _diff_own_chains(name: ServicePortName, fragment: Fragment, chains: Chains) -> Iterator[Difference]:
    want: dict[str, list[str]] = {chain: [] for chain in fragment.chains}
    for rule in canonicalize_rules(fragment.rules):
        want[rule.split(" ", 2)[1]].append(rule)
    for chain, rules in want.items():
        if chain not in chains:
            yield Difference(f"{NAT} {chain}", "the chain", "", name)
        else:
            owners = dict.fromkeys(rules, name)
            yield from diff_rules(f"{NAT} {chain}", rules, canonicalize_rules(chains[chain]), owners)


class LastMatch:
    """When the kernel last held everything as it should; every comparison may run on a thread of its own."""

    def __init__(self) -> None:
        self._match: tuple[int, Settings, Plans] | None = None

    def is_current(self, generation: int | None, settings: Settings, plans: Plans) -> bool:
        """Return whether nothing has changed since."""
        return generation is not None and self._match == (generation, settings, plans)

    def store(self, generation: int | None, settings: Settings, plans: Plans) -> None:
        self._match = None if generation is None else (generation, settings, plans)


def compare_kernel(
    runner: Iptables,
    ruleset: NftRuleset | None,
    settings: Settings,
    committed: Committed,
    plans: Plans,
    compared: Plans,
    *,
    last_match: LastMatch | None,
) -> list[Difference]:
    """Return how the tables differ from the compared plans; `last_match` is given when those are all. Raises KernelError.

    Saving a table takes no lock and runs in a process of its own, so syncs continue meanwhile. Over nf_tables it starts again
    whenever a rule is changed, so it may not finish while syncs follow each other closely.
    """
    generation = ruleset.read_generation() if ruleset is not None else None
    if last_match is not None and last_match.is_current(generation, settings, compared):
        return []
    comments = needs_comments(plans.values())
    fragments = {
        name: committed.find(plan) or compile_plan(plan, settings, comments=comments)
        for name, plan in compared.items()
    }
    tables = {
        table: parse_chains(runner.save(table, seconds=SAVE_TIMEOUT_SECONDS)) for table in (FILTER, NAT)
    }
    found = [
        *diff_dormant(ruleset),
        *diff_tables(
            settings,
            fragments,
            tables,
            partial(_has_jump, runner),
            complete=last_match is not None,
        ),
    ]
    if last_match is not None and not found:
        last_match.store(generation, settings, compared)
    return found


# --- drift --------------------------------------------------------------------------------------------------


def check_canaries(
    runner: Iptables,
    *,
    sleep: Callable[[float], None] = time.sleep,
    settle_seconds: float = _SETTLE_SECONDS,
) -> Difference | None:
    """Return which tables were flushed, None when all canaries exist; raises KernelError when that cannot be read.

    A program that reloads a firewall flushes table after table. The result waits a moment for that to end, or the repair would
    be flushed as well. A held lock or a failing program counts neither as a flush nor as its absence.
    """
    missing = find_flushed_tables(runner)
    waited = 0.0
    while missing and waited < settle_seconds:
        sleep(_POLL_SECONDS)
        waited += _POLL_SECONDS
        before, missing = missing, find_flushed_tables(runner)
        if len(missing) == len(static.CANARY_TABLES) and before == missing:
            break
    if not missing:
        return None
    return Difference(f"{names.CANARY} in {runner.programs.edit} tables {', '.join(missing)}", PRESENT)


def find_flushed_tables(runner: Iptables) -> list[str]:
    """Return tables without a canary; a flush with `-F` keeps the chain, so in nat and filter it also holds a rule."""
    missing = []
    for table in static.CANARY_TABLES:
        rules = runner.list_chain(table, names.CANARY)
        if rules is None or (not rules and table != MANGLE):
            missing.append(table)
    return missing
