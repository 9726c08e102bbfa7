"""A table in memory that obeys the kernel's rules, to run batches against without a kernel.

It refuses what the kernel refuses: elements that exist with another value, deletions of what is not there, chains
that are still referred to, verdicts to chains that do not exist.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from pointsman.backends.nftables.batch import AddElements, AddSlots, Batch, BatchItem, DeleteElements, Step
from pointsman.backends.nftables.contents import Contents


class Refused(Exception):
    pass


@dataclass
class TableModel:
    sets: dict[str, dict[bytes, object]] = field(default_factory=dict)
    chains: dict[str, list[str]] = field(default_factory=dict)
    timeouts: set[str] = field(default_factory=set)

    def run(self, batch: Batch) -> None:
        for operation in batch.operations:
            if isinstance(operation, Step):
                self._step(operation.verb, operation.about)
            elif isinstance(operation, AddElements):
                for element, _ in operation.entries:
                    self._add(operation.spec.name, element.key, (element.chain, element.key_end))
            elif isinstance(operation, AddSlots):
                for key, data in operation.entries:
                    self._add(operation.spec.name, key, data)
            else:
                assert isinstance(operation, DeleteElements)
                for key, _ in operation.entries:
                    if self.sets[operation.spec.name].pop(key, None) is None:
                        raise Refused(f"no such element in {operation.spec.name}")

    def _add(self, name: str, key: bytes, value: object) -> None:
        if self.sets[name].setdefault(key, value) != value:
            raise Refused(f"{name}: another value for the same key")
        if isinstance(value, tuple) and value[0] and value[0] not in self.chains:
            raise Refused(f"{name}: no chain {value[0]}")

    def _step(self, verb: str, about: BatchItem) -> None:
        kind = about.what.split()[0]
        if kind == "table":
            if verb == "delete":
                self.sets, self.chains, self.timeouts = {}, {}, set()
            elif verb == "flush":
                self.chains = {name: [] for name in self.chains}
        elif kind in ("set", "map"):
            self._set(verb, about.where)
        elif kind == "chain":
            self._chain(verb, about.where)
        elif kind == "ct":
            self._timeout(verb, about.where)
        else:
            assert (verb, kind) == ("add", "rule")
            rule = about.what.partition(": ")[2]
            missing = {*re.findall(r'ct timeout set "(\S+)"', rule)} - self.timeouts
            if missing:
                raise Refused(f"no timeout {missing}")
            self.chains[about.where].append(rule)

    def _set(self, verb: str, name: str) -> None:
        if verb == "add":
            self.sets.setdefault(name, {})
        elif verb == "flush":
            self.sets[name] = {}
        elif any(f"@{name} " in rule for rules in self.chains.values() for rule in rules):
            raise Refused(f"set {name} is in use")
        else:
            del self.sets[name]

    def _timeout(self, verb: str, name: str) -> None:
        if verb == "add":
            self.timeouts.add(name)
        elif any(f'"{name}"' in rule for rules in self.chains.values() for rule in rules):
            raise Refused(f"timeout {name} is in use")
        else:
            self.timeouts.remove(name)

    def _chain(self, verb: str, name: str) -> None:
        if verb == "add":
            self.chains.setdefault(name, [])
        elif verb == "flush":
            self.chains[name] = []
        elif self._uses(name):
            raise Refused(f"chain {name} is in use by {self._uses(name)}")
        else:
            del self.chains[name]

    def _uses(self, name: str) -> list[str]:
        rules = [r for rules in self.chains.values() for r in rules if name in _targets(r.split())]
        elements = [
            s for s, es in self.sets.items() for v in es.values() if isinstance(v, tuple) and v[0] == name
        ]
        return [*self.chains[name], *rules, *elements]

    def meaning(self, contents: Contents) -> tuple[object, ...]:
        """The table up to what does not matter: the order of slots and idle balancer chains."""
        idle = {b.name for b in contents.present if not contents.balancers[b]}
        sets = {
            name: sorted((key[:-4], data) for key, data in elements.items())
            if name.endswith("endpoints")
            else sorted(elements.items(), key=repr)
            for name, elements in self.sets.items()
        }
        slots = {name: sorted(elements) for name, elements in self.sets.items() if name.endswith("endpoints")}
        chains = {name: rules for name, rules in self.chains.items() if name not in idle}
        return sets, slots, chains


def _targets(words: Sequence[str]) -> list[str]:
    return [after for word, after in itertools.pairwise(words) if word in ("goto", "jump")]
