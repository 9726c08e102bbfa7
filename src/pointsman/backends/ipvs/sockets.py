"""The netlink sockets of ipvs mode: what the kernel holds, and sending it steps. Remembers nothing of either."""

from __future__ import annotations

import errno
from collections.abc import Container, Iterable, Sequence
from typing import Any

from pointsman.backends.ipvs import sets
from pointsman.backends.ipvs.batch import (
    AddEntries,
    Bind,
    DeleteEntries,
    IpvsStep,
    NetlinkStep,
    RemoveServers,
)
from pointsman.backends.ipvs.fragment import SetMember
from pointsman.backends.ipvs.known import Known
from pointsman.errors import Busy, KernelError
from pointsman.kernel import netlink
from pointsman.kernel.ipset import IpsetSocket
from pointsman.kernel.ipset_objects import SetEntry, SetHeader
from pointsman.kernel.ipvs import IpvsSocket
from pointsman.kernel.ipvs_objects import (
    IPVS_DEVICE,
    RealKey,
    RealOf,
    RealServer,
    ServerCounters,
    VirtualKey,
    VirtualServer,
)
from pointsman.kernel.rtnl import AddressMonitor, RouteSocket
from pointsman.model.addresses import Family, address_text, is_link_local

_ROUTE_PATIENCE = 2.0
"""Seconds in which a thread of the kernel makes the route of at least one new IPv6 address, on a busy machine, too."""


class Sockets:
    """One IP family in the network namespace they were opened in."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self._device = 0
        self._set_names = [header.name for header in sets.headers(family)]
        self._ipvs = IpvsSocket()
        self._ipset = IpsetSocket()
        self._route = RouteSocket()
        self._monitor = AddressMonitor()

    def close(self) -> None:
        for sock in (self._ipvs, self._ipset, self._route, self._monitor):
            sock.close()

    # --- reading ---

    def read(self, wanted: Container[VirtualKey]) -> Known:
        """What the kernel holds; real servers only of virtual servers in `wanted`."""
        known = Known(self._set_names)
        known.servers = {server.key: server for server in self.servers()}
        known.weights = {key: self._weights(key) for key in known.servers if key in wanted}
        found = self._ipset.entries()
        known.entries |= {name: found[name] for name in self._set_names if name in found}
        known.addresses = self.addresses()
        return known

    def read_some(
        self, servers: Iterable[VirtualKey], entries: Container[SetMember], addresses: Container[bytes]
    ) -> Known:
        """What the kernel holds of these; virtual servers are asked for one by one."""
        known = Known(self._set_names)
        for key in servers:
            self.read_again(key, known)
        for name, found in self._ipset.entries().items():
            if name in known.entries:
                known.entries[name] = {entry for entry in found if (name, entry) in entries}
        known.addresses = {address for address in self.addresses() if address in addresses}
        return known

    def read_again(self, key: VirtualKey, known: Known) -> None:
        """Somebody else changed a virtual server since it was read."""
        RemoveServers((key,)).adopt(known)
        server = self._ipvs.service(key)
        if server is not None:
            known.servers[key], known.weights[key] = server, self._weights(key)

    def _weights(self, key: VirtualKey) -> dict[RealKey, int]:
        return {real.key: real.weight for real in self._ipvs.destinations(key)}

    def servers(self) -> dict[VirtualServer, ServerCounters]:
        """The virtual servers, each with what it carried."""
        return {server: counted for server, counted in self._ipvs.services().items() if self.ours(server)}

    def server_listing(self) -> list[bytes]:
        """The virtual servers of both families, undecoded."""
        return self._ipvs.service_listing()

    def ours(self, server: VirtualServer) -> bool:
        return len(server.key.address) == self._family.address_length

    def addresses_may_have_changed(self) -> bool:
        """Whether the kernel told of any change since the last call, our own included."""
        return self._monitor.drain()

    def addresses(self) -> set[bytes]:
        """The addresses on the dummy device without its own link-local one."""
        device = self._route.links().get(IPVS_DEVICE)
        if device is None:
            return set()
        listed = (item.address for item in self._route.addresses(self._family, device))
        return {a for a in listed if len(a) == 4 or not is_link_local(a)}

    def sets(self) -> dict[str, SetHeader]:
        """Our sets without their entries."""
        present = self._ipset.headers()
        return {name: present[name] for name in self._set_names if name in present}

    def connections(self, keys: Iterable[VirtualKey]) -> dict[RealOf, RealServer]:
        """The real servers of some virtual servers with their connections."""
        return {RealOf(key, real.key): real for key in keys for real in self._ipvs.destinations(key)}

    def has_scheduler(self, name: str) -> bool:
        return self._ipvs.has_scheduler(name)

    # --- changing ---

    def make_containers(self) -> None:
        """Create the dummy device and the sets; one that was made in another way would refuse our entries one by one."""
        self._device = self._route.ensure_dummy(IPVS_DEVICE)
        present = self._ipset.headers()
        for header in sets.headers(self._family):
            held = present.get(header.name)
            # The kernel compares everything else when it is asked for a set that exists.
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
                f"ipset {header.name} was made by somebody else with another type, family or options, and rules use it: "
                "remove them, or stop the proxy and run `pointsman cleanup`",
                error.errno,
            ) from error

    def send(self, step: NetlinkStep[Any]) -> dict[Any, KernelError]:
        """Do it as far as the kernel lets us; what it refused."""
        if isinstance(step, AddEntries | DeleteEntries):
            return self._send_entries(step)
        if isinstance(step, IpvsStep):
            replies = self._ipvs.apply(list(step.payloads()))
        elif isinstance(step, Bind):
            replies = self._route.add_addresses(self._device, step.items)
        else:
            replies = self._route.delete_addresses(self._device, step.items)
        return {
            item: netlink.kernel_error(reply.errno, f"{step.action} {_text(item)}", reply.text)
            for item, reply in zip(step.items, replies, strict=True)
            if reply.errno and reply.errno not in step.done_before
        }

    def not_in_force(self, addresses: Sequence[bytes]) -> list[bytes]:
        """Addresses on the dummy device that packets are not led to, although the kernel had time to see to it."""
        if self._family is Family.IPV4:
            return []
        return self._route.await_local(addresses, _ROUTE_PATIENCE)

    def _send_entries(self, step: AddEntries | DeleteEntries) -> dict[SetMember, KernelError]:
        by_set: dict[str, list[SetEntry]] = {}
        for name, entry in step.items:
            by_set.setdefault(name, []).append(entry)
        send = self._ipset.add if isinstance(step, AddEntries) else self._ipset.delete
        return {
            (name, entry): error
            for name, entries in by_set.items()
            for entry, error in send(name, entries).items()
        }


def _text(item: object) -> str:
    return address_text(item) if isinstance(item, bytes) else str(item)
