"""Follow the rules of other programs for one packet, as far as its properties are known. Pure.

A match on an unknown property may or may not hold; what follows from it is possible, not certain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from pointsman.machine.packet_filter import Action, FilterChain, FilterRule, Match, PacketField

_MAX_DEPTH = 16
_MAX_CHAINS_ENTERED = 2000
"""Chains entered for one packet. Where each rule may or may not jump, the number of ways multiplies with every level."""


class Packet(msgspec.Struct, frozen=True):
    """What is known of a packet at one place; a field that is not here may have any value."""

    values: Mapping[PacketField, tuple[bytes, bytes]]
    """First and last possible value."""
    bits: Mapping[PacketField, int] = {}


class RuleResult(NamedTuple):
    """What may happen to the packet in a base chain."""

    action: Action
    rule: FilterRule | None
    """None for the policy of the chain."""
    certain: bool


def evaluate_match(match: Match, packet: Packet) -> bool | None:
    """Return whether the packet matches; None when that is unknown."""
    if match.field is None:
        return None
    if match.field in packet.bits:
        found = bool(packet.bits[match.field] & match.bits)
        return found != match.negated
    known = packet.values.get(match.field)
    if not match.ranges:
        return match.negated
    if known is None:
        return None
    low, high = known
    if any(first <= low and high <= last for first, last in match.ranges):
        return not match.negated
    if all(last < low or high < first for first, last in match.ranges):
        return match.negated
    return None


def find_results(
    chain: FilterChain, chains: Mapping[tuple[str, str], FilterChain], packet: Packet
) -> list[RuleResult]:
    """Return everything that may happen to the packet in this base chain, in the order of its rules."""
    walk = _Walk(chains, packet)
    falls, sure = walk.follow(chain.table, chain.rules, sure=True, depth=0)
    if falls:
        walk.found.append(RuleResult(chain.policy, None, sure))
    return walk.found


def select_result(found: Sequence[RuleResult], wanted: frozenset[Action]) -> RuleResult | None:
    """Return the first result of the wanted kinds; certain when it is always reached, or when there is no other."""
    hits = [result for result in found if result.action in wanted]
    if not hits:
        return None
    certain = next((result for result in hits if result.certain), None)
    if certain is None and len(hits) == len(found):
        return hits[0]._replace(certain=True)
    return certain or hits[0]


class _Walk:
    """Follows one packet through chains, and collects what may happen to it."""

    def __init__(self, chains: Mapping[tuple[str, str], FilterChain], packet: Packet) -> None:
        self._chains = chains
        self._packet = packet
        self._entered = 0
        self.found: list[RuleResult] = []

    def follow(self, table: str, rules: Sequence[FilterRule], *, sure: bool, depth: int) -> tuple[bool, bool]:
        """Return whether the packet may come out at the end of these rules, and whether it is sure to."""
        escapes = False
        for rule, outcome in self._select_rules(rules):
            certain = sure and outcome
            if rule.action is Action.RETURN:
                if outcome:
                    return True, sure
                escapes, sure = True, False
            elif rule.action in (Action.JUMP, Action.GOTO):
                falls, still = self._enter(table, rule, sure=certain, depth=depth)
                sure = sure and (still if outcome else not self._has_verdict(table, rule))
                if outcome and (not falls or rule.action is Action.GOTO):
                    return escapes or falls, sure
                if rule.action is Action.GOTO:
                    # From the end of that chain the packet does not come back to the rules that follow here.
                    escapes, sure = escapes or falls, False
            else:
                self.found.append(RuleResult(rule.action, rule, certain))
                if rule.action is Action.UNTRACK:
                    continue
                if outcome:
                    return escapes, False
                sure = False
        return True, sure

    def _select_rules(self, rules: Sequence[FilterRule]) -> Iterator[tuple[FilterRule, bool]]:
        """Yield the rules that decide something and match: True for certainly, False for possibly."""
        for rule in rules:
            if rule.action is Action.PASS:
                continue
            outcomes = [evaluate_match(match, self._packet) for match in rule.matches]
            if False not in outcomes:
                yield rule, None not in outcomes

    def _enter(self, table: str, rule: FilterRule, *, sure: bool, depth: int) -> tuple[bool, bool]:
        target = self._chains.get((table, rule.target))
        self._entered += 1
        if target is None or depth >= _MAX_DEPTH or self._entered > _MAX_CHAINS_ENTERED:
            # A chain of a service proxy, or too much to follow: it may let the packet through for good.
            self.found.append(RuleResult(Action.ACCEPT, rule, certain=False))
            return True, False
        before = len(self.found)
        falls, still = self.follow(table, target.rules, sure=sure, depth=depth + 1)
        return falls, still and len(self.found) == before

    def _has_verdict(self, table: str, rule: FilterRule) -> bool:
        target = self._chains.get((table, rule.target))
        return target is None or any(inner.action is not Action.PASS for inner in target.rules)
