"""Differences between what services want and what the kernel holds, in words an operator can act on. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator, Mapping
from typing import TypeVar

from pointsman.backends.contract import Difference
from pointsman.backends.ipvs.desired import Desired
from pointsman.backends.ipvs.known import Known
from pointsman.backends.ipvs.rules import CHAINS, JUMPS, RuleSet
from pointsman.backends.netfilter import saved, spelling
from pointsman.kernel.ipvs_objects import IPVS_DEVICE, PERSISTENT, RealOf, VirtualKey, VirtualServer
from pointsman.model.addresses import address_text
from pointsman.model.service import ServicePortName

_T = TypeVar("_T")


def describe(server: VirtualServer) -> str:
    """A virtual server's settings on one line."""
    affinity = f", affinity {server.timeout} s" if server.flags & PERSISTENT else ""
    return f"scheduler {server.scheduler}{affinity}, flags {server.flags:#x}"


def server_differences(
    desired: Desired, found: Known, draining: Container[RealOf], excluded: Callable[[VirtualKey], bool]
) -> Iterator[Difference]:
    """Virtual and real servers; real servers that are draining and virtual servers of others are no difference."""
    for key, (server, reals) in desired.servers.items():
        owner, what = desired.owners[key], f"virtual server {key}"
        have = found.servers.get(key)
        if have is None:
            yield Difference(what, describe(server), "", owner)
            continue
        if have != server:
            yield Difference(what, describe(server), describe(have), owner)
        weights = found.weights.get(key, {})
        for real, weight in reals.items():
            if weights.get(real) != weight:
                seen = f"weight {weights[real]}" if real in weights else ""
                yield Difference(f"real server {real} of {key}", f"weight {weight}", seen, owner)
        for real in weights.keys() - reals.keys():
            if weights[real] or RealOf(key, real) not in draining:
                yield Difference(f"real server {real} of {key}", "", f"weight {weights[real]}", owner)
    for key, server in found.servers.items():
        if key not in desired.servers and not excluded(key):
            yield Difference(f"virtual server {key}", "", describe(server))


def entry_differences(desired: Desired, found: Known) -> Iterator[Difference]:
    """Entries of our sets."""
    missing = [(name, entry) for name, entry in desired.entries if entry not in found.entries.get(name, ())]
    for (name, entry), owner in _with_owners(missing, desired):
        yield Difference(f"ipset {name}", str(entry), "", owner)
    for name, entries in found.entries.items():
        for entry in entries:
            if (name, entry) not in desired.entries:
                yield Difference(f"ipset {name}", "", str(entry))


def address_differences(desired: Desired, found: Known) -> Iterator[Difference]:
    """Addresses of the dummy device."""
    missing = desired.addresses.keys() - found.addresses
    for address, owner in _with_owners(missing, desired):
        yield Difference(f"address on {IPVS_DEVICE}", address_text(address), "", owner)
    for address in found.addresses - desired.addresses.keys():
        yield Difference(f"address on {IPVS_DEVICE}", "", address_text(address))


def _with_owners(items: Collection[_T], desired: Desired) -> Iterator[tuple[_T, ServicePortName]]:
    """Set entries or addresses, each with one of the service ports that want it."""
    owners = desired.owners_of(items) if items else {}
    for item in items:
        yield item, owners[item][0]


def rule_differences(rules: RuleSet, tables: Mapping[str, bytes]) -> Iterator[Difference]:
    """Rules of our chains, and the jumps that lead there."""
    for table, wanted in rules.tables():
        have = saved.rules_by_chain(tables[table])
        outline = saved.outline(tables[table])
        for chain in CHAINS[table]:
            want = [spelling.canonical(rule) for rule in wanted if rule.startswith(f"-A {chain} ")]
            seen = [spelling.canonical(rule) for rule in have.get(chain, ())]
            for rule in want:
                if rule not in seen:
                    yield Difference(f"{table} rule in {chain}", rule, "")
            for rule in seen:
                if rule not in want:
                    yield Difference(f"{table} rule in {chain}", "", rule)
            if sorted(want) == sorted(seen) and want != seen:
                yield Difference(
                    f"{table} chain {chain}", "its rules in order", "the same rules in another order"
                )
        for jump in JUMPS:
            if jump.table == table and not jump.is_in(outline):
                yield Difference(f"{table} rule in {jump.source}", f"-A {jump.line}", "")
