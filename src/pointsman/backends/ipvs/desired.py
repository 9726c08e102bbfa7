"""What all service ports together want in the kernel, kept up to date one fragment at a time.

Fragments share things: two ports of a service bind one address, two services may reach one local endpoint. So
everything is counted, and what a change touched is returned, so that only that is compared with the kernel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

from pointsman.backends.ipvs.compile import Fragment
from pointsman.kernel.ipset_objects import SetEntry
from pointsman.kernel.ipvs_objects import RealKey, VirtualKey, VirtualServer
from pointsman.model.service import ServicePortName

T = TypeVar("T")


class Touched:
    """The kernel objects that some changes may concern."""

    def __init__(self) -> None:
        self.servers: set[VirtualKey] = set()
        self.entries: set[tuple[str, SetEntry]] = set()
        self.addresses: set[bytes] = set()


class Desired:
    """The sum of all fragments."""

    def __init__(self) -> None:
        self.fragments: dict[ServicePortName, Fragment] = {}
        self.servers: dict[VirtualKey, tuple[VirtualServer, tuple[RealKey, ...]]] = {}
        self.owners: dict[VirtualKey, ServicePortName] = {}
        self.entries: Counter[tuple[str, SetEntry]] = Counter()
        self.addresses: Counter[bytes] = Counter()
        self.hidden: Counter[VirtualKey] = Counter()
        self.set_sizes: Counter[str] = Counter()
        self._waiting: dict[VirtualKey, list[ServicePortName]] = {}

    def replace(self, name: ServicePortName, fragment: Fragment | None, touched: Touched) -> None:
        """Exchange the fragment of a service port; None when it is gone."""
        before = self.fragments.get(name)
        if before == fragment:
            return
        if fragment is not None:
            self.fragments[name] = fragment
            self._add(name, fragment, touched)
        else:
            self.fragments.pop(name, None)
        if before is not None:
            self._remove(name, before, fragment, touched)

    def owners_of(
        self, entries: Iterable[tuple[str, SetEntry]], addresses: Iterable[bytes]
    ) -> dict[ServicePortName, str]:
        """The service ports behind set entries and addresses, with a word about which; slow, for failures."""
        bad_entries, bad_addresses = set(entries), set(addresses)
        found: dict[ServicePortName, str] = {}
        for name, fragment in self.fragments.items():
            for owned in fragment.entries:
                if owned in bad_entries:
                    found[name] = f"ipset {owned[0]} {owned[1]}"
            if not bad_addresses.isdisjoint(fragment.addresses):
                found[name] = "its address could not be bound"
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
            heir = waiting.pop(0)
            for server, reals in self.fragments[heir].servers if heir in self.fragments else ():
                if server.key == key:
                    self.owners[key], self.servers[key] = heir, (server, reals)
                    return
        self._waiting.pop(key, None)


def _subtract(counter: Counter[T], items: Iterable[T]) -> None:
    for item in items:
        counter[item] -= 1
        if not counter[item]:
            del counter[item]
