"""Readings of the chains of other programs: kept while the ruleset is unchanged, repeated after one that failed."""

from __future__ import annotations

import pytest

from pointsman.errors import KernelError
from pointsman.kernel.command import SystemCommands
from pointsman.machine import foreign_chains
from pointsman.machine.foreign_chains import CachedChains, Chains
from pointsman.machine.packet_filter import FilterChain
from pointsman.model.addresses import Family

CHAIN = FilterChain("inet fw", "forward", hook="forward")


class Ruleset:
    """A rule set of which every reading is counted; the next ones fail where `failing` says so."""

    generation: int | None = 1

    def __init__(self) -> None:
        self.now = 0.0
        self.readings = 0
        self.failing = False

    def __call__(self, _family: Family) -> Ruleset:
        return self

    def read_generation(self) -> int | None:
        return self.generation

    def read(self, _family: Family) -> Chains:
        self.readings += 1
        self.now += 0.1
        if self.failing:
            raise KernelError("dump interrupted")
        return {(CHAIN.table, CHAIN.name): CHAIN}


@pytest.fixture
def ruleset(monkeypatch: pytest.MonkeyPatch) -> Ruleset:
    made = Ruleset()
    monkeypatch.setattr(foreign_chains, "NftRuleset", made)
    monkeypatch.setattr(foreign_chains, "find_variants_in_use", lambda _family: frozenset())
    return made


def cached(ruleset: Ruleset, monkeypatch: pytest.MonkeyPatch) -> CachedChains:
    chains = CachedChains(SystemCommands(), clock=lambda: ruleset.now)
    monkeypatch.setattr(chains, "_read_nft", ruleset.read)
    return chains


def test_an_unchanged_rule_set_is_read_once(ruleset: Ruleset, monkeypatch: pytest.MonkeyPatch) -> None:
    chains = cached(ruleset, monkeypatch)
    first = chains.read(Family.IPV4)
    ruleset.now += 3600
    assert chains.read(Family.IPV4) is first
    ruleset.generation = 2
    chains.read(Family.IPV4)
    assert ruleset.readings == 2


def test_a_reading_that_failed_is_repeated_although_nothing_changed(
    ruleset: Ruleset, monkeypatch: pytest.MonkeyPatch
) -> None:
    chains = cached(ruleset, monkeypatch)
    ruleset.failing = True
    assert chains.read(Family.IPV4).not_read
    ruleset.failing = False
    assert chains.read(Family.IPV4).not_read, "not before the pause has passed"
    ruleset.now += 60
    found = chains.read(Family.IPV4)
    assert (found.not_read, len(found.chains)) == ((), 1)
