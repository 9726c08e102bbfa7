"""What the kernel holds, as last read and as changed by us since, and the only place that changes it.

Every method sends one batch and brings the memory up to date by what the kernel acknowledged, object by object,
so the memory stays right when some of them are refused. Putting what exists and removing what is gone succeed.
"""

from __future__ import annotations

import errno
from collections.abc import Container, Iterable, Mapping, Sequence

from pointsman.backends.ipvs import sets
from pointsman.errors import KernelError
from pointsman.kernel import ipvs, netlink
from pointsman.kernel.ipset import IpsetSocket
from pointsman.kernel.ipset_objects import SetEntry, SetHeader
from pointsman.kernel.ipvs import IpvsSocket
from pointsman.kernel.ipvs_objects import RealKey, RealServer, Traffic, VirtualKey, VirtualServer
from pointsman.kernel.rtnl import RouteSocket
from pointsman.model.addresses import Family, is_link_local

DUMMY_DEVICE = "kube-ipvs0"
WEIGHT = 1

_GONE = frozenset((errno.ENOENT, errno.ESRCH, errno.EADDRNOTAVAIL, errno.ENODEV))


class KernelState:
    """Virtual servers, set entries and bound addresses of one IP family in this network namespace."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self.servers: dict[VirtualKey, VirtualServer] = {}
        self.weights: dict[VirtualKey, dict[RealKey, int]] = {}
        self.entries: dict[str, set[SetEntry]] = {}
        self.addresses: set[bytes] = set()
        self._device = 0
        self._ipvs = IpvsSocket()
        self._ipset = IpsetSocket()
        self._route = RouteSocket()

    def close(self) -> None:
        for sock in (self._ipvs, self._ipset, self._route):
            sock.close()

    # --- reading ---

    def make_containers(self) -> None:
        """Create the dummy device and the sets that are missing."""
        self._device = self._route.ensure_dummy(DUMMY_DEVICE)
        present = self._ipset.headers()
        for header in sets.headers(self.family):
            if header.name not in present or present[header.name].type is not header.type:
                self._ipset.create(header)

    def read(self, wanted: Container[VirtualKey]) -> None:
        """Replace the memory by what the kernel holds; real servers only of virtual servers in `wanted`."""
        self.servers = {server.key: server for server in self.listed_servers()}
        self.weights = {
            key: {real.key: real.weight for real in self._ipvs.destinations(key)}
            for key in self.servers
            if key in wanted
        }
        ours = {header.name for header in sets.headers(self.family)}
        found = self._ipset.entries()
        self.entries = {name: found.get(name, set()) for name in ours}
        self.addresses = self.listed_addresses()

    def listed_servers(self) -> dict[VirtualServer, Traffic]:
        """The virtual servers of this family, straight from the kernel."""
        length = self.family.address_length
        return {s: t for s, t in self._ipvs.services().items() if len(s.key.address) == length}

    def listed_addresses(self) -> set[bytes]:
        """The addresses on the dummy device, straight from the kernel, without the device's own link-local."""
        device = self._route.links().get(DUMMY_DEVICE)
        if device is None:
            return set()
        listed = (item.address for item in self._route.addresses(self.family, device))
        return {a for a in listed if len(a) == 4 or not is_link_local(a)}

    def listed_sets(self) -> dict[str, SetHeader]:
        """Our sets without their entries, straight from the kernel."""
        present = self._ipset.headers()
        names = (header.name for header in sets.headers(self.family))
        return {name: present[name] for name in names if name in present}

    def real_servers(self, key: VirtualKey) -> list[RealServer]:
        """The real servers of a virtual server with their connections, straight from the kernel."""
        return self._ipvs.destinations(key)

    def has_scheduler(self, name: str) -> bool:
        return self._ipvs.has_scheduler(name)

    # --- changing ---

    def put_servers(self, servers: Sequence[VirtualServer]) -> dict[VirtualKey, KernelError]:
        """Add or alter virtual servers; returns the refused ones."""
        return self._put_servers(servers, retry=True)

    def _put_servers(self, servers: Sequence[VirtualServer], *, retry: bool) -> dict[VirtualKey, KernelError]:
        commands = [
            ipvs.CMD_SET_SERVICE if server.key in self.servers else ipvs.CMD_NEW_SERVICE for server in servers
        ]
        payloads = [ipvs.service_change(c, server) for c, server in zip(commands, servers, strict=True)]
        failed: dict[VirtualKey, KernelError] = {}
        again: list[VirtualServer] = []
        for server, reply in zip(servers, self._ipvs.apply(payloads), strict=True):
            if reply.ok:
                self.servers[server.key] = server
            elif retry and reply.errno in (errno.EEXIST, errno.ESRCH):
                self._forget_or_learn(server.key, exists=reply.errno == errno.EEXIST)
                again.append(server)
            else:
                failed[server.key] = netlink.kernel_error(
                    reply.errno, f"virtual server {server.key} with scheduler {server.scheduler}", reply.text
                )
        return failed | self._put_servers(again, retry=False) if again else failed

    def _forget_or_learn(self, key: VirtualKey, *, exists: bool) -> None:
        """Somebody else removed or added a virtual server since we looked."""
        if exists:
            self.servers[key] = VirtualServer(key, "")
            self.weights[key] = {real.key: real.weight for real in self._ipvs.destinations(key)}
        else:
            self.servers.pop(key, None)
            self.weights.pop(key, None)

    def put_reals(self, reals: Mapping[VirtualKey, Mapping[RealKey, int]]) -> dict[VirtualKey, KernelError]:
        """Add real servers or alter their weights; returns virtual servers with a refused one."""
        return self._put_reals(reals, retry=True)

    def _put_reals(
        self, reals: Mapping[VirtualKey, Mapping[RealKey, int]], *, retry: bool
    ) -> dict[VirtualKey, KernelError]:
        payloads: list[bytes] = []
        subjects: list[tuple[VirtualKey, RealKey, int]] = []
        for key, weights in reals.items():
            service, have = ipvs.service_id(key), self.weights.setdefault(key, {})
            for real, weight in weights.items():
                command = ipvs.CMD_SET_DEST if real in have else ipvs.CMD_NEW_DEST
                payloads.append(ipvs.destination_change(command, service, real, weight))
                subjects.append((key, real, weight))
        failed: dict[VirtualKey, KernelError] = {}
        again: dict[VirtualKey, dict[RealKey, int]] = {}
        for (key, real, weight), reply in zip(subjects, self._ipvs.apply(payloads), strict=True):
            if reply.ok:
                self.weights[key][real] = weight
            elif retry and reply.errno in (errno.EEXIST, errno.ENOENT):
                if reply.errno == errno.EEXIST:
                    self.weights[key][real] = -1
                else:
                    self.weights[key].pop(real, None)
                again.setdefault(key, {})[real] = weight
            else:
                failed[key] = netlink.kernel_error(
                    reply.errno, f"real server {real} of virtual server {key}", reply.text
                )
        return failed | self._put_reals(again, retry=False) if again else failed

    def remove_reals(self, reals: Mapping[VirtualKey, Iterable[RealKey]]) -> None:
        """Remove real servers."""
        subjects = [(key, real) for key, leaving in reals.items() for real in leaving]
        payloads = [ipvs.destination_removal(ipvs.service_id(key), real) for key, real in subjects]
        for (key, real), reply in zip(subjects, self._ipvs.apply(payloads), strict=True):
            if reply.errno and reply.errno not in _GONE:
                raise netlink.kernel_error(reply.errno, f"remove real server {real} of {key}", reply.text)
            self.weights.get(key, {}).pop(real, None)

    def remove_servers(self, keys: Sequence[VirtualKey]) -> None:
        """Remove virtual servers together with their real servers."""
        for key, reply in zip(keys, self._ipvs.apply([ipvs.service_removal(k) for k in keys]), strict=True):
            if reply.errno and reply.errno not in _GONE:
                raise netlink.kernel_error(reply.errno, f"remove virtual server {key}", reply.text)
            self.servers.pop(key, None)
            self.weights.pop(key, None)

    def bind(self, addresses: Sequence[bytes]) -> dict[bytes, KernelError]:
        """Put addresses on the dummy device; returns the refused ones."""
        failed: dict[bytes, KernelError] = {}
        for address, reply in zip(addresses, self._route.add_addresses(self._device, addresses), strict=True):
            if reply.ok or reply.errno == errno.EEXIST:
                self.addresses.add(address)
            else:
                failed[address] = netlink.kernel_error(reply.errno, f"bind to {DUMMY_DEVICE}", reply.text)
        return failed

    def unbind(self, addresses: Sequence[bytes]) -> None:
        """Take addresses off the dummy device."""
        for address, reply in zip(
            addresses, self._route.delete_addresses(self._device, addresses), strict=True
        ):
            if reply.errno and reply.errno not in _GONE:
                raise netlink.kernel_error(reply.errno, f"unbind from {DUMMY_DEVICE}", reply.text)
            self.addresses.discard(address)

    def add_entries(self, name: str, entries: Sequence[SetEntry]) -> dict[SetEntry, KernelError]:
        """Add to a set; returns the refused entries."""
        failed = self._ipset.add(name, entries)
        self.entries[name].update(entry for entry in entries if entry not in failed)
        return failed

    def delete_entries(self, name: str, entries: Sequence[SetEntry]) -> None:
        """Delete from a set."""
        for error in self._ipset.delete(name, entries).values():
            raise error
        self.entries[name].difference_update(entries)
