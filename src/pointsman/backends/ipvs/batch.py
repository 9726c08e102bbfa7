"""The steps of a sync as data: each does one thing to many objects, so that they can be sent many per system call."""

from __future__ import annotations

import errno
from collections.abc import Container, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from pointsman.backends.ipvs.fragment import WEIGHT, SetMember
from pointsman.backends.ipvs.known import Known
from pointsman.backends.ipvs.rules import RuleSet
from pointsman.backends.netfilter.jumps import Jump
from pointsman.kernel import ipvs
from pointsman.kernel.ipvs_objects import IPVS_DEVICE, RealOf, VirtualKey, VirtualServer

T = TypeVar("T")
_GONE = frozenset((errno.ENOENT, errno.ESRCH, errno.EADDRNOTAVAIL, errno.ENODEV))


class NetlinkStep(msgspec.Struct, Generic[T], frozen=True):
    """What one pipeline of netlink messages can do."""

    items: Sequence[T]
    counts_as: ClassVar[str]
    action: ClassVar[str]
    """For error messages, followed by the object."""
    done_before: ClassVar[frozenset[int]] = frozenset()
    """Refusals that leave nothing to do."""

    def adopt(self, known: Known, refused: Container[object] = ()) -> None:
        """It was sent: bring the memory of the kernel's state up to date, except for what was refused."""
        self._do(known, [item for item in self.items if item not in refused])

    def _do(self, known: Known, items: Sequence[T]) -> None:
        raise NotImplementedError


class _EntryStep(NetlinkStep[SetMember], frozen=True):
    counts_as: ClassVar[str] = "ipset entries"


class AddEntries(_EntryStep, frozen=True):
    """To any of our sets; one that is there already is fine."""

    def _do(self, known: Known, items: Sequence[SetMember]) -> None:
        for name, entry in items:
            known.entries[name].add(entry)


class DeleteEntries(_EntryStep, frozen=True):
    """From any of our sets; one that is not there is fine."""

    def _do(self, known: Known, items: Sequence[SetMember]) -> None:
        for name, entry in items:
            known.entries[name].discard(entry)


class IpvsStep(NetlinkStep[T], frozen=True):
    """Something about virtual or real servers."""

    def payloads(self) -> Iterator[bytes]:
        """One message per object."""
        raise NotImplementedError


class AddServers(IpvsStep[VirtualServer], frozen=True):
    """Still without real servers."""

    counts_as: ClassVar[str] = "virtual servers"
    action: ClassVar[str] = "add virtual server"
    command: ClassVar[int] = ipvs.CMD_NEW_SERVICE

    def payloads(self) -> Iterator[bytes]:
        return (ipvs.service_change(self.command, server) for server in self.items)

    def _do(self, known: Known, items: Sequence[VirtualServer]) -> None:
        known.servers.update((server.key, server) for server in items)


class AlterServers(AddServers, frozen=True):
    """Another scheduler, affinity or flags."""

    action: ClassVar[str] = "change virtual server"
    command: ClassVar[int] = ipvs.CMD_SET_SERVICE


class RemoveServers(IpvsStep[VirtualKey], frozen=True):
    """Together with their real servers."""

    counts_as: ClassVar[str] = "virtual servers"
    action: ClassVar[str] = "remove virtual server"
    done_before: ClassVar[frozenset[int]] = _GONE

    def payloads(self) -> Iterator[bytes]:
        return map(ipvs.service_removal, self.items)

    def _do(self, known: Known, items: Sequence[VirtualKey]) -> None:
        for key in items:
            known.servers.pop(key, None)
            known.weights.pop(key, None)


class AddReals(IpvsStep[RealOf], frozen=True):
    """Real servers join their virtual servers."""

    weight: int = WEIGHT
    counts_as: ClassVar[str] = "real servers"
    action: ClassVar[str] = "add real server"
    command: ClassVar[int] = ipvs.CMD_NEW_DEST

    def payloads(self) -> Iterator[bytes]:
        for key, items in groupby(self.items, attrgetter("server")):
            service = ipvs.service_id(key)
            for item in items:
                yield ipvs.destination_change(self.command, service, item.real, self.weight)

    def _do(self, known: Known, items: Sequence[RealOf]) -> None:
        for server, real in items:
            known.weights.setdefault(server, {})[real] = self.weight


class WeighReals(AddReals, frozen=True):
    """Another weight; with 0 they get no new connections."""

    action: ClassVar[str] = "set the weight of real server"
    command: ClassVar[int] = ipvs.CMD_SET_DEST


class RemoveReals(IpvsStep[RealOf], frozen=True):
    """Whatever connections they have."""

    counts_as: ClassVar[str] = "real servers"
    action: ClassVar[str] = "remove real server"
    done_before: ClassVar[frozenset[int]] = _GONE

    def payloads(self) -> Iterator[bytes]:
        return (ipvs.destination_removal(ipvs.service_id(item.server), item.real) for item in self.items)

    def _do(self, known: Known, items: Sequence[RealOf]) -> None:
        for server, real in items:
            known.weights.get(server, {}).pop(real, None)


class Bind(NetlinkStep[bytes], frozen=True):
    """Put addresses on the dummy device."""

    counts_as: ClassVar[str] = "addresses"
    action: ClassVar[str] = f"add to {IPVS_DEVICE} the address"
    done_before: ClassVar[frozenset[int]] = frozenset((errno.EEXIST,))

    def _do(self, known: Known, items: Sequence[bytes]) -> None:
        known.addresses.update(items)


class Unbind(NetlinkStep[bytes], frozen=True):
    """Take addresses off the dummy device."""

    counts_as: ClassVar[str] = "addresses"
    action: ClassVar[str] = f"take from {IPVS_DEVICE} the address"
    done_before: ClassVar[frozenset[int]] = _GONE

    def _do(self, known: Known, items: Sequence[bytes]) -> None:
        known.addresses.difference_update(items)


class RetireReals(msgspec.Struct, frozen=True):
    """Becomes other steps, once the kernel has said who still has connections; see `drain`."""

    items: Sequence[RealOf]


class WriteRules(msgspec.Struct, frozen=True):
    """Replace the content of our chains."""

    rules: RuleSet
    jumps: Sequence[Jump] = ()
    """Those that built-in chains lack."""


Step = NetlinkStep[Any] | RetireReals | WriteRules
