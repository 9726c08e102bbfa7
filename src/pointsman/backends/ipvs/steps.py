"""The steps of a sync as data, and the order that leads safely from what the kernel holds to what services want. Pure.

Each step does one thing to many objects, so that they can be sent many per system call.

Real servers are terminated gracefully: one that is no longer wanted gets weight 0, so that no new connection reaches it, and is
removed once its last connection has ended or its timeout is over. Weight 0 is kernel state, so a restarted proxy finds what its
predecessor was draining. UDP and SCTP have no connections worth waiting for: their real servers are removed at once, and
expire_nodest_conn moves the clients. A Service that keeps UDP flows on terminating endpoints has these as rows of weight 0.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from pointsman.backends.ipvs.compile import ADDRESS, DEFAULT_WEIGHT, SERVER
from pointsman.backends.ipvs.rules import RuleSet
from pointsman.backends.ledger import Keys, Ledger
from pointsman.backends.netfilter.rule_text import Jump
from pointsman.kernel import ipvs
from pointsman.kernel.ipvs_objects import IPVS_DEVICE, RealKey, RealOf, RealServer, VirtualKey, VirtualServer

T = TypeVar("T")
TCP = 6
_NOT_FOUND = frozenset((errno.ENOENT, errno.ESRCH, errno.EADDRNOTAVAIL, errno.ENODEV))


class KernelState:
    """What the kernel holds of one IP family, as last read and as acknowledged since; each step updates it."""

    def __init__(self, set_names: Iterable[str] = ()) -> None:
        self.servers: dict[VirtualKey, VirtualServer] = {}
        self.weights: dict[VirtualKey, dict[RealKey, int]] = {}
        self.keys: dict[str, set[Any]] = {name: set() for name in (ADDRESS, *set_names)}
        """Addresses and set entries, by the kind of their rows."""
        self.rules: RuleSet | None = None
        """None until they are written by this process."""
        self.missing_jumps: tuple[Jump, ...] = ()
        self.iptables_mode_serves = False
        """The rules of iptables mode still lead to endpoints, until those of this mode replace them."""
        self.references: dict[str, int] = {}
        """How many rules match on each set."""


class NetlinkStep(msgspec.Struct, Generic[T], frozen=True):
    """What one pipeline of netlink messages can do."""

    items: Sequence[T]
    counts_as: ClassVar[str]
    action: ClassVar[str]
    """For error messages, followed by the object."""
    ignored_errors: ClassVar[frozenset[int]] = frozenset()
    """Error numbers which mean that there is nothing left to do."""

    def apply_to(self, state: KernelState, rejected: Container[object] = ()) -> None:
        """Update the state for what was sent, except for rejected items."""
        self._apply(state, [item for item in self.items if item not in rejected])

    def _apply(self, state: KernelState, items: Sequence[T]) -> None:
        raise NotImplementedError


class AddEntries(NetlinkStep[Any], frozen=True):
    """Add entries to an ipset; one that exists is no error."""

    counts_as: ClassVar[str] = "ipset entries"
    kind: str
    """The kind of their rows: the name of the set."""

    def _apply(self, state: KernelState, items: Sequence[Any]) -> None:
        state.keys[self.kind].update(items)


class DeleteEntries(NetlinkStep[Any], frozen=True):
    """Delete entries from an ipset; one that does not exist is no error."""

    counts_as: ClassVar[str] = "ipset entries"
    kind: str

    def _apply(self, state: KernelState, items: Sequence[Any]) -> None:
        state.keys[self.kind].difference_update(items)


class Bind(AddEntries, frozen=True):
    """Add addresses to the dummy device."""

    counts_as: ClassVar[str] = "addresses"
    kind: str = ADDRESS
    action: ClassVar[str] = f"add to {IPVS_DEVICE} the address"
    ignored_errors: ClassVar[frozenset[int]] = frozenset((errno.EEXIST,))


class Unbind(DeleteEntries, frozen=True):
    """Remove addresses from the dummy device."""

    counts_as: ClassVar[str] = "addresses"
    kind: str = ADDRESS
    action: ClassVar[str] = f"remove from {IPVS_DEVICE} the address"
    ignored_errors: ClassVar[frozenset[int]] = _NOT_FOUND


class IpvsStep(NetlinkStep[T], frozen=True):
    """A change of virtual or real servers."""

    def encode(self) -> Iterator[bytes]:
        """Yield one message per object."""
        raise NotImplementedError


class AddServers(IpvsStep[VirtualServer], frozen=True):
    """Add virtual servers, still without real servers."""

    counts_as: ClassVar[str] = "virtual servers"
    action: ClassVar[str] = "add virtual server"
    command: ClassVar[int] = ipvs.CMD_NEW_SERVICE

    def encode(self) -> Iterator[bytes]:
        return (ipvs.encode_service(self.command, server) for server in self.items)

    def _apply(self, state: KernelState, items: Sequence[VirtualServer]) -> None:
        state.servers.update((server.key, server) for server in items)


class AlterServers(AddServers, frozen=True):
    """Change scheduler, affinity or flags."""

    action: ClassVar[str] = "change virtual server"
    command: ClassVar[int] = ipvs.CMD_SET_SERVICE


class RemoveServers(IpvsStep[VirtualKey], frozen=True):
    """Remove virtual servers together with their real servers."""

    counts_as: ClassVar[str] = "virtual servers"
    action: ClassVar[str] = "remove virtual server"
    ignored_errors: ClassVar[frozenset[int]] = _NOT_FOUND

    def encode(self) -> Iterator[bytes]:
        return map(ipvs.encode_service_removal, self.items)

    def _apply(self, state: KernelState, items: Sequence[VirtualKey]) -> None:
        for key in items:
            state.servers.pop(key, None)
            state.weights.pop(key, None)


class AddReals(IpvsStep[RealOf], frozen=True):
    """Add real servers to their virtual servers."""

    weight: int = DEFAULT_WEIGHT
    counts_as: ClassVar[str] = "real servers"
    action: ClassVar[str] = "add real server"
    command: ClassVar[int] = ipvs.CMD_NEW_DEST

    def encode(self) -> Iterator[bytes]:
        for key, items in groupby(self.items, attrgetter("server")):
            service = ipvs.encode_service_id(key)
            for item in items:
                yield ipvs.encode_destination(self.command, service, item.real, self.weight)

    def _apply(self, state: KernelState, items: Sequence[RealOf]) -> None:
        for server, real in items:
            state.weights.setdefault(server, {})[real] = self.weight


class WeighReals(AddReals, frozen=True):
    """Change weights; with 0 a real server gets no new connections."""

    action: ClassVar[str] = "set the weight of real server"
    command: ClassVar[int] = ipvs.CMD_SET_DEST


class RemoveReals(IpvsStep[RealOf], frozen=True):
    """Remove real servers, whatever connections they have."""

    counts_as: ClassVar[str] = "real servers"
    action: ClassVar[str] = "remove real server"
    ignored_errors: ClassVar[frozenset[int]] = _NOT_FOUND

    def encode(self) -> Iterator[bytes]:
        return (
            ipvs.encode_destination_removal(ipvs.encode_service_id(item.server), item.real)
            for item in self.items
        )

    def _apply(self, state: KernelState, items: Sequence[RealOf]) -> None:
        for server, real in items:
            state.weights.get(server, {}).pop(real, None)


class DrainReals(msgspec.Struct, frozen=True):
    """Remove real servers or set their weight to 0, depending on their open connections; see `Draining`."""

    items: Sequence[RealOf]


class WriteRules(msgspec.Struct, frozen=True):
    """Replace the content of our chains."""

    rules: RuleSet
    jumps: Sequence[Jump] = ()
    """Those that built-in chains lack."""


Step = NetlinkStep[Any] | DrainReals | WriteRules


def list_all_keys(desired: Ledger, state: KernelState) -> Keys:
    """Return the keys of both sides, for a full sync."""
    keys = {kind: {*desired.rows(kind), *held} for kind, held in state.keys.items()}
    return {**keys, SERVER: {*desired.rows(SERVER), *state.servers}}


def plan_steps(
    desired: Ledger, state: KernelState, touched: Keys, rules: RuleSet, excluded: Callable[[VirtualKey], bool]
) -> list[Step]:
    """Return what makes `state` equal to `desired` for the touched keys; `excluded` virtual servers are never removed.

    This is not one transaction, so the order carries the guarantees. Sets and rules come first, so that no packet of a new
    service is balanced without being masqueraded, then virtual servers with their real servers, then addresses; removals
    follow all additions, in the reverse order. Only where the rules of iptables mode still serve, those of this mode come last among the
    additions.
    """
    extend, shrink = _plan_server_steps(desired, state, touched.get(SERVER, set()), excluded)
    missing: list[AddEntries] = []
    surplus: list[DeleteEntries] = []
    bind, unbind = Bind(()), Unbind(())
    for kind, keys in touched.items():
        if kind not in state.keys:
            continue
        rows, held = desired.rows(kind), state.keys[kind]
        lacking = [key for key in keys if key in rows and key not in held]
        stale = [key for key in keys if key in held and key not in rows]
        if kind == ADDRESS:
            bind, unbind = Bind(lacking), Unbind(stale)
        else:
            missing.append(AddEntries(lacking, kind))
            surplus.append(DeleteEntries(stale, kind))
    write = [WriteRules(rules, state.missing_jumps)] if rules != state.rules else []
    extend += _drop_empty(bind)
    return [
        *_drop_empty(*missing),
        *((*extend, *write) if state.iptables_mode_serves else (*write, *extend)),
        *shrink,
        *_drop_empty(unbind, *surplus),
    ]


def _plan_server_steps(
    desired: Ledger, state: KernelState, touched: set[VirtualKey], excluded: Callable[[VirtualKey], bool]
) -> tuple[list[Step], list[Step]]:
    """Return the steps that add and change virtual and real servers, and those that remove them."""
    rows = desired.rows(SERVER)
    added: list[VirtualServer] = []
    altered: list[VirtualServer] = []
    removed: list[VirtualKey] = []
    joining: dict[int, list[RealOf]] = {}
    weighing: dict[int, list[RealOf]] = {}
    draining: list[RealOf] = []
    leaving: list[RealOf] = []
    for key in touched:
        row, have = rows.get(key), state.servers.get(key)
        if row is None:
            if have is not None and not excluded(key):
                removed.append(key)
            continue
        server, wanted, may_drain = row.value
        if have != server:
            (added if have is None else altered).append(server)
        weights = state.weights.get(key, {})
        for real, weight in wanted.items():
            if weights.get(real) != weight:
                by_weight = weighing if real in weights else joining
                by_weight.setdefault(weight, []).append(RealOf(key, real))
        for real in weights.keys() - wanted.keys():
            drains = may_drain is None or real in may_drain
            (draining if drains else leaving).append(RealOf(key, real))
    extend = _drop_empty(
        AddServers(added),
        AlterServers(altered),
        *(AddReals(items, weight) for weight, items in joining.items()),
        *(WeighReals(items, weight) for weight, items in weighing.items()),
    )
    return extend, _drop_empty(DrainReals(draining), RemoveReals(leaving), RemoveServers(removed))


def _drop_empty(*steps: NetlinkStep[Any] | DrainReals) -> list[Step]:
    return [step for step in steps if step.items]


class Draining:
    """The real servers at weight 0, each with its deadline. Times are seconds of one clock."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._deadlines: dict[RealOf, float] = {}

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, item: object) -> bool:
        return item in self._deadlines

    def list_reals(self) -> list[RealOf]:
        return list(self._deadlines)

    def plan_steps(
        self, leaving: Iterable[RealOf], present: Mapping[RealOf, RealServer], now: float
    ) -> tuple[WeighReals, RemoveReals]:
        """Return the steps for real servers that are no longer wanted, given what the kernel reports of the TCP ones."""
        remove: list[RealOf] = []
        quiesce: list[RealOf] = []
        for item in leaving:
            real = present.get(item)
            deadline = self._deadlines.setdefault(item, now + self._timeout)
            if item.server.protocol != TCP or real is None or not real.connections or now >= deadline:
                del self._deadlines[item]
                remove.append(item)
            elif real.weight:
                quiesce.append(item)
        return WeighReals(quiesce, 0), RemoveReals(remove)

    def retain(self, weights: Mapping[VirtualKey, Mapping[RealKey, int]]) -> None:
        """Forget real servers that are wanted again or gone, alone or with their virtual server."""
        for item in self.list_reals():
            if weights.get(item.server, {}).get(item.real) != 0:
                del self._deadlines[item]
