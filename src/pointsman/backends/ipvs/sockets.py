"""The netlink sockets of ipvs mode: read what the kernel holds, and send it steps. Keeps no state of either."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from typing import Any

from pointsman.backends.ipvs import sets
from pointsman.backends.ipvs.compile import ADDRESS, SERVER
from pointsman.backends.ipvs.steps import (
    AddEntries,
    Bind,
    DeleteEntries,
    IpvsStep,
    KernelState,
    NetlinkStep,
    RemoveServers,
    Unbind,
)
from pointsman.backends.ledger import Ledger
from pointsman.errors import Busy, KernelError
from pointsman.kernel import netlink
from pointsman.kernel.ipset import IpsetSocket
from pointsman.kernel.ipvs import IpvsSocket
from pointsman.kernel.ipvs_objects import (
    IPVS_DEVICE,
    IPVS_DEVICE_ALIAS,
    RealKey,
    RealOf,
    RealServer,
    ServerCounters,
    SetHeader,
    VirtualKey,
    VirtualServer,
)
from pointsman.kernel.netlink import Closable
from pointsman.kernel.rtnl import AddressMonitor, RouteSocket
from pointsman.model.addresses import Family, address_text, is_link_local

_ROUTE_TIMEOUT_SECONDS = 2.0
"""A thread of the kernel creates the routes of new IPv6 addresses; on a busy machine it needs this long for the next one."""


class KernelReader(Closable):
    """Reads one IP family in the network namespace it was made in; never changes anything."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self._device = 0
        self._set_names = sets.list_names(family)
        self._ipvs = IpvsSocket()
        self._ipset = IpsetSocket()
        self._route = RouteSocket()
        self._monitor = AddressMonitor()

    def close(self) -> None:
        for sock in (self._ipvs, self._ipset, self._route, self._monitor):
            sock.close()

    def read(self, desired: Ledger, *, only_desired: bool = False) -> KernelState:
        """Return what the kernel holds, real servers only of desired virtual servers.

        With `only_desired`, of the desired rows alone: virtual servers are then looked up one by one.
        """
        state = KernelState(self._set_names)
        state.keys |= self._ipset.list_entries(self._set_names)
        state.keys[ADDRESS] = self.read_addresses()
        if only_desired:
            state.keys = {kind: keys & desired.rows(kind).keys() for kind, keys in state.keys.items()}
            for key in desired.rows(SERVER):
                self.reread(key, state)
        else:
            state.servers = {server.key: server for server in self.read_servers()}
            state.weights = {
                key: self._read_weights(key) for key in state.servers if key in desired.rows(SERVER)
            }
        return state

    def reread(self, key: VirtualKey, state: KernelState) -> None:
        """Read a virtual server again that was changed externally."""
        RemoveServers((key,)).apply_to(state)
        server = self._ipvs.find_service(key)
        if server is not None:
            state.servers[key], state.weights[key] = server, self._read_weights(key)

    def _read_weights(self, key: VirtualKey) -> dict[RealKey, int]:
        return {real.key: real.weight for real in self._ipvs.list_destinations(key)}

    def read_servers(self) -> dict[VirtualServer, ServerCounters]:
        """Return the virtual servers with their counters."""
        return {
            server: counted
            for server, counted in self._ipvs.list_services().items()
            if self.is_of_family(server)
        }

    def dump_servers(self) -> list[bytes]:
        """Return the virtual servers of both families, undecoded."""
        return self._ipvs.dump_services()

    def is_of_family(self, server: VirtualServer) -> bool:
        return len(server.key.address) == self._family.address_length

    def take_address_changes(self) -> bool:
        """Return whether the kernel reported any change since the last call, our own included."""
        return self._monitor.drain()

    def read_addresses(self) -> set[bytes]:
        """Return the addresses on the dummy device without its own link-local one."""
        device = self._route.list_indexes().get(IPVS_DEVICE)
        if device is None:
            return set()
        listed = (item.address for item in self._route.list_addresses(self._family, device))
        return {a for a in listed if len(a) == 4 or not is_link_local(a)}

    def read_sets(self) -> dict[str, SetHeader]:
        """Return our sets without their entries."""
        present = self._ipset.list_headers()
        return {name: present[name] for name in self._set_names if name in present}

    def read_connections(self, keys: Iterable[VirtualKey]) -> dict[RealOf, RealServer]:
        """Return the real servers of some virtual servers with their connections."""
        return {RealOf(key, real.key): real for key in keys for real in self._ipvs.list_destinations(key)}


class Sockets(KernelReader):
    """Reads and changes one IP family."""

    def has_scheduler(self, name: str) -> bool:
        """Return whether the kernel has a scheduler; it is tried with a virtual server of its own."""
        return self._ipvs.has_scheduler(name)

    def make_containers(self) -> None:
        """Create the dummy device and the sets; a set of another type or family is replaced, because it rejects our entries."""
        self._device = self._route.ensure_dummy(IPVS_DEVICE, IPVS_DEVICE_ALIAS)
        present = self._ipset.list_headers()
        for header in sets.build_headers(self._family):
            held = present.get(header.name)
            # The kernel compares everything but the family when a set exists already.
            if held is not None and held.family is not header.family:
                self._remove_set(header)
            try:
                self._ipset.create(header)
            except KernelError as error:
                if error.errno != errno.EEXIST:
                    raise
                self._remove_set(header)
                self._ipset.create(header)

    def _remove_set(self, header: SetHeader) -> None:
        try:
            self._ipset.destroy(header.name)
        except Busy as error:
            raise KernelError(
                f"ipset {header.name} was created externally with another type, family or options, and rules use it: "
                "remove them, or stop the proxy and run `pointsman cleanup`",
                error.errno,
            ) from error

    def send(self, step: NetlinkStep[Any]) -> dict[Any, KernelError]:
        """Send a step as far as the kernel accepts it; return the rejected items."""
        match step:
            case IpvsStep():
                replies = self._ipvs.apply(list(step.encode()))
            case Bind():
                replies = self._route.add_addresses(self._device, step.items)
            case Unbind():
                replies = self._route.delete_addresses(self._device, step.items)
            case AddEntries(kind=name):
                return dict(self._ipset.add(name, step.items))
            case DeleteEntries(kind=name):
                return dict(self._ipset.delete(name, step.items))
            case _:
                raise TypeError(step)
        return {
            item: netlink.build_kernel_error(reply.errno, f"{step.action} {_format_item(item)}", reply.text)
            for item, reply in zip(step.items, replies, strict=True)
            if reply.errno and reply.errno not in step.ignored_errors
        }

    def find_unrouted(self, addresses: Sequence[bytes]) -> list[bytes]:
        """Return addresses on the dummy device without a local route, after the time that the kernel needs for one."""
        if self._family is Family.IPV4:
            return []
        return self._route.wait_until_local(addresses, _ROUTE_TIMEOUT_SECONDS)


def _format_item(item: object) -> str:
    return address_text(item) if isinstance(item, bytes) else str(item)
