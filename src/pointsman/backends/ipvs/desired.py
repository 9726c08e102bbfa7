"""What all service ports together want in the kernel, kept up to date one fragment at a time.

Fragments share things: two ports of a service bind one address, two services may reach one local endpoint. So
everything is counted, and what a change touched is returned, so that only that is compared with the kernel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeVar

from pointsman.backends.ipvs.fragment import Fragment, SetMember
from pointsman.backends.ipvs.rules import RuleSet, rule_set
from pointsman.kernel.ipvs_objects import RealKey, RealOf, VirtualKey, VirtualServer
from pointsman.model.node_context import NodeContext
from pointsman.model.service import ServicePortName

T = TypeVar("T")


class Touched:
    """The kernel objects that some changes may concern."""

    def __init__(
        self,
        servers: Iterable[VirtualKey] = (),
        entries: Iterable[SetMember] = (),
        addresses: Iterable[bytes] = (),
    ) -> None:
        self.servers = set(servers)
        self.entries = set(entries)
        self.addresses = set(addresses)


class Desired:
    """The sum of all fragments."""

    def __init__(self, fragments: Mapping[ServicePortName, Fragment] | None = None) -> None:
        self.fragments: dict[ServicePortName, Fragment] = {}
        self.servers: dict[VirtualKey, tuple[VirtualServer, Mapping[RealKey, int]]] = {}
        self.owners: dict[VirtualKey, ServicePortName] = {}
        self.entries: Counter[SetMember] = Counter()
        self.addresses: Counter[bytes] = Counter()
        self.hidden: Counter[VirtualKey] = Counter()
        self.set_sizes: Counter[str] = Counter()
        self._waiting: dict[VirtualKey, list[ServicePortName]] = {}
        self.update(fragments or {})

    def update(self, changes: Mapping[ServicePortName, Fragment | None]) -> Touched:
        """Exchange the fragments of some service ports, None for those that are gone; what that may concern."""
        touched = Touched()
        for name, fragment in changes.items():
            before = self.fragments.get(name)
            if before == fragment:
                continue
            if fragment is not None:
                self.fragments[name] = fragment
                self._add(name, fragment, touched)
            else:
                self.fragments.pop(name, None)
            if before is not None:
                self._remove(name, before, fragment, touched)
        return touched

    def rules(self, context: NodeContext, *, random_fully: bool = True) -> RuleSet:
        """The rules that go with the sets as they are filled."""
        filled = {name for name, size in self.set_sizes.items() if size}
        return rule_set(context, filled, self.hidden, random_fully=random_fully)

    def may_drain(self, item: RealOf) -> bool:
        """Whether a real server that is not wanted any more may wait for the end of its connections."""
        owner = self.owners.get(item.server)
        only = self.fragments[owner].may_drain if owner is not None else None
        return only is None or item.real in only

    def owners_of(self, entries_and_addresses: Iterable[object]) -> dict[object, list[ServicePortName]]:
        """The service ports behind each set entry and bound address; slow, for failures."""
        found: dict[object, list[ServicePortName]] = {item: [] for item in entries_and_addresses}
        for name, fragment in self.fragments.items():
            for item in (*fragment.entries, *fragment.addresses):
                if item in found:
                    found[item].append(name)
        return found

    def _add(self, name: ServicePortName, fragment: Fragment, touched: Touched) -> None:
        for server, reals in fragment.servers:
            key = server.key
            touched.servers.add(key)
            owner = self.owners.setdefault(key, name)
            if owner == name:
                self.servers[key] = (server, reals)
            elif name not in self._waiting.setdefault(key, []):
                self._waiting[key].append(name)
        for entry in fragment.entries:
            if not self.entries[entry]:
                self.set_sizes[entry[0]] += 1
            self.entries[entry] += 1
        self.addresses.update(fragment.addresses)
        self.hidden.update(fragment.hidden)
        touched.entries.update(fragment.entries)
        touched.addresses.update(fragment.addresses)

    def _remove(
        self, name: ServicePortName, before: Fragment, after: Fragment | None, touched: Touched
    ) -> None:
        kept = {server.key for server, _ in after.servers} if after is not None else set()
        for server, _ in before.servers:
            if server.key not in kept:
                self._release(name, server.key, touched)
        for entry in before.entries:
            self.entries[entry] -= 1
            if not self.entries[entry]:
                del self.entries[entry]
                self.set_sizes[entry[0]] -= 1
        _subtract(self.addresses, before.addresses)
        _subtract(self.hidden, before.hidden)
        touched.entries.update(before.entries)
        touched.addresses.update(before.addresses)

    def _release(self, name: ServicePortName, key: VirtualKey, touched: Touched) -> None:
        touched.servers.add(key)
        waiting = self._waiting.get(key, [])
        if self.owners.get(key) != name:
            if name in waiting:
                waiting.remove(name)
            return
        del self.owners[key], self.servers[key]
        while waiting:
            next_owner = waiting.pop(0)
            for server, reals in self.fragments[next_owner].servers if next_owner in self.fragments else ():
                if server.key == key:
                    self.owners[key], self.servers[key] = next_owner, (server, reals)
                    return
        self._waiting.pop(key, None)


def _subtract(counter: Counter[T], items: Iterable[T]) -> None:
    for item in items:
        counter[item] -= 1
        if not counter[item]:
            del counter[item]
