"""Comparison of what the kernel holds with what it should hold, chain by chain. Reads, never writes."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from pointsman.backends.contract import Difference
from pointsman.backends.iptables import static
from pointsman.backends.iptables.fragment import SHARED_CHAINS, Fragment
from pointsman.backends.iptables.settings import Settings
from pointsman.backends.netfilter import names, saved
from pointsman.backends.netfilter.jumps import Jump
from pointsman.backends.netfilter.names import FILTER, NAT
from pointsman.backends.netfilter.spelling import canonical
from pointsman.model.service import ServicePortName

_UNORDERED = frozenset(shared.chain for shared in SHARED_CHAINS)
"""Chains in which the order of services is free; in nat KUBE-SERVICES the node port jump must stay last."""


class Desired:
    """The rules of one table by chain, and which service port each belongs to."""

    def __init__(self, last: Iterable[str] = ()) -> None:
        self.last = frozenset(map(canonical, last))
        """Rules that must stand after all others of their chain."""
        self.chains: dict[str, list[str]] = {}
        self.owners: dict[str, ServicePortName] = {}

    def add_lines(self, lines: Iterable[str], owner: ServicePortName | None = None) -> None:
        for line in lines:
            form = canonical(line)
            self.chains.setdefault(line.split(" ", 2)[1], []).append(form)
            if owner is not None:
                self.owners[form] = owner


def desired_tables(settings: Settings, fragments: Mapping[ServicePortName, Fragment]) -> dict[str, Desired]:
    """What tables filter and nat should hold in our chains."""
    tables = {FILTER: Desired(), NAT: Desired(last=static.node_port_jumps(settings))}
    for chain in static.FILTER_CHAINS:
        tables[FILTER].chains[chain] = []
    for chain in static.NAT_CHAINS:
        tables[NAT].chains[chain] = []
    tables[FILTER].add_lines(static.filter_rules(settings))
    tables[NAT].add_lines(static.nat_rules(settings))
    for name, fragment in fragments.items():
        for chain in fragment.chains:
            tables[NAT].chains[chain] = []
        for table, desired in tables.items():
            desired.add_lines(fragment.rules_in(table).decode().splitlines(), name)
    tables[NAT].add_lines(static.node_port_jumps(settings))
    return tables


def differences(
    settings: Settings,
    fragments: Mapping[ServicePortName, Fragment],
    kernel: Mapping[str, bytes],
    ask: Callable[[Jump], bool],
    *,
    complete: bool = True,
) -> list[Difference]:
    """Every disagreement; `kernel` maps table names to what iptables-save printed, `ask` knows jumps of unfamiliar spelling.

    Unless `complete`, these are the fragments of some service ports: what stands there beside them is none.
    """
    found: list[Difference] = []
    for table, desired in desired_tables(settings, fragments).items():
        held = saved.rules_by_chain(kernel[table])
        found += _missing_jumps(table, saved.outline(kernel[table]), ask)
        for chain, want in desired.chains.items():
            if chain not in held:
                found.append(Difference(f"{table} {chain}", "the chain", "", _owner_of_chain(want, desired)))
            else:
                have = [canonical(line) for line in held[chain]]
                if chain == names.KUBELET_FIREWALL or (not complete and chain in _UNORDERED):
                    own = {*want, *desired.last}
                    have = [rule for rule in have if rule in own]
                found += _chain_differences(table, chain, want, have, desired)
        for chain in held if complete else ():
            if chain not in desired.chains and names.is_service_chain(chain):
                found.append(Difference(f"{table} {chain}", "", "a chain of a service that is gone"))
    return found


def _chain_differences(
    table: str, chain: str, want: list[str], have: list[str], desired: Desired
) -> Iterator[Difference]:
    if want == have:
        return
    missing, surplus = Counter(want) - Counter(have), Counter(have) - Counter(want)
    for rule in missing:
        yield Difference(f"{table} {chain}", rule, "", desired.owners.get(rule))
    for rule in surplus:
        yield Difference(f"{table} {chain}", "", rule)
    if missing or surplus:
        return
    if chain not in _UNORDERED or _tail(want, desired.last) != _tail(have, desired.last):
        owner = _owner_of_chain(want, desired)
        yield Difference(f"{table} {chain}", " / ".join(want), "the same rules in another order", owner)


def _tail(rules: list[str], last: Collection[str]) -> list[str]:
    """The rules at the end that must be there."""
    return list(itertools.takewhile(last.__contains__, reversed(rules)))


def _owner_of_chain(rules: list[str], desired: Desired) -> ServicePortName | None:
    return next((desired.owners[rule] for rule in rules if rule in desired.owners), None)


def _missing_jumps(
    table: str, outline: saved.TableOutline, ask: Callable[[Jump], bool]
) -> Iterator[Difference]:
    for jump in static.JUMPS:
        if jump.table == table and not jump.stands_in(outline, ask):
            yield Difference(f"{table} {jump.source}", f"-A {jump.line}", "")
