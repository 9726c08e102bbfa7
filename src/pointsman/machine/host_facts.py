"""What the host does with packets besides our own rules (settings, routes, rules of other programs), and its addresses."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from pointsman.errors import KernelError, PointsmanError
from pointsman.kernel.ipvs_objects import IPVS_DEVICE
from pointsman.kernel.rtnl import AddressMonitor, Link, Route, RouteSocket, list_local_addresses
from pointsman.kernel.sysctl import Sysctls
from pointsman.machine.foreign_chains import ForeignChains
from pointsman.machine.packet_filter import FilterChain
from pointsman.machine.settings import LOOSE_TRACKING
from pointsman.model.addresses import Cidr, Family, network_of
from pointsman.obs.log import get_log

_FORWARDING: Final = {Family.IPV4: "net/ipv4/ip_forward", Family.IPV6: "net/ipv6/conf/all/forwarding"}
_CONNTRACK: Final = "net/netfilter/nf_conntrack_"
_STRICT: Final = 1
BRIDGE_CALLS: Final = {
    Family.IPV4: "net/bridge/bridge-nf-call-iptables",
    Family.IPV6: "net/bridge/bridge-nf-call-ip6tables",
}
_COUNTERS: Final = "/proc/thread-self/net/netstat"
_DEBOUNCE_SECONDS = 0.2
"""Addresses change in bursts (an interface going up); they are read once after each."""

_log = get_log(__name__)


class HostFacts(msgspec.Struct, frozen=True):
    """What the host does with packets besides the rules of the proxy, for one IP family."""

    family: Family
    forwarding: bool | None = None
    """None when unknown, or when it is off and some interfaces forward all the same."""
    not_forwarding: tuple[str, ...] = ()
    """Interfaces whose incoming packets are not forwarded."""
    strict_reverse_path: frozenset[str] = frozenset()
    """Interfaces that drop packets from addresses that are not reached through them."""
    reverse_path_drops: int | None = None
    """Packets that the kernel has dropped for that since it started."""
    unfiltered_bridges: Mapping[str, tuple[Cidr, ...]] = {}
    """Networks of each bridge that passes packets between its ports without netfilter."""
    interfaces: frozenset[str] = frozenset()
    interface_addresses: Mapping[bytes, str] = {}
    """The interface that has each of this node's addresses."""
    routes: Mapping[bytes, Route] = {}
    """To the requested addresses."""
    chains: Mapping[tuple[str, str], FilterChain] = {}
    """External base chains, and the chains they jump to, by table and name."""
    conntrack_count: int | None = None
    conntrack_max: int | None = None
    conntrack_loose: bool | None = None
    """Conntrack picks up TCP connections mid-stream."""
    not_read: tuple[str, ...] = ()
    """What could not be read, and why."""


class HostReader(Protocol):
    """Reads facts about the host."""

    def look(self, family: Family, addresses: Sequence[bytes]) -> HostFacts:
        """Return the facts of one family, with the routes to these addresses; never raises, `not_read` lists what is missing."""


class LinuxHost:
    """The host in whose network namespace the calling thread is; opens its own sockets, so it never delays a sync."""

    def __init__(self, sysctls: Sysctls, chains: ForeignChains) -> None:
        self._sysctls = sysctls
        self._chains = chains

    def look(self, family: Family, addresses: Sequence[bytes]) -> HostFacts:
        not_read: list[str] = []
        network = _Network()
        try:
            network = _read_network(family, addresses)
        except PointsmanError as error:
            not_read.append(f"routes: {error}")
        rules = self._chains.read(family)
        loose = self._sysctls.read_int(LOOSE_TRACKING)
        ports = {link.name for link in network.links if link.is_port}
        names = sorted({name for name, _ in network.held.values()} - {"lo"} - ports)
        refusing = tuple(name for name in names if self._refuses_forwarding(family, name))
        return HostFacts(
            family=family,
            forwarding=self._is_forwarding(family, names),
            not_forwarding=refusing,
            strict_reverse_path=frozenset(name for name in names if self._is_strict(family, name)),
            reverse_path_drops=_count_reverse_path_drops() if family is Family.IPV4 else None,
            unfiltered_bridges=self._find_unfiltered_bridges(family, network),
            interfaces=frozenset(link.name for link in network.links),
            interface_addresses={address: name for address, (name, _) in network.held.items()},
            routes=network.routes,
            chains=rules.chains,
            conntrack_count=self._sysctls.read_int(f"{_CONNTRACK}count"),
            conntrack_max=self._sysctls.read_int(f"{_CONNTRACK}max"),
            conntrack_loose=None if loose is None else loose != 0,
            not_read=(*not_read, *rules.not_read),
        )

    def _is_forwarding(self, family: Family, interfaces: Sequence[str]) -> bool | None:
        """Return None where interfaces decide for themselves: in IPv4, where `ip_forward` sets all at once, and from Linux 6.17 on in IPv6."""
        found = self._sysctls.read_int(_FORWARDING[family])
        own = "ipv4/conf/{}/forwarding" if family is Family.IPV4 else "ipv6/conf/{}/force_forwarding"
        if found == 0 and any(self._sysctls.read_int(f"net/{own.format(name)}") for name in interfaces):
            return None
        return None if found is None else found != 0

    def _refuses_forwarding(self, family: Family, interface: str) -> bool:
        return family is Family.IPV4 and self._sysctls.read_int(f"net/ipv4/conf/{interface}/forwarding") == 0

    def _is_strict(self, family: Family, interface: str) -> bool:
        if family is not Family.IPV4:
            return False
        values = [
            self._sysctls.read_int(f"net/ipv4/conf/{name}/rp_filter") or 0 for name in ("all", interface)
        ]
        return max(values) == _STRICT

    def _find_unfiltered_bridges(self, family: Family, network: _Network) -> dict[str, tuple[Cidr, ...]]:
        bridges = [link.name for link in network.links if link.is_bridge and family not in link.filtered]
        if not bridges or self._sysctls.read_int(BRIDGE_CALLS[family]):
            return {}
        held = network.held.items()
        return {
            bridge: tuple(network_of(address, prefix) for address, (name, prefix) in held if name == bridge)
            for bridge in bridges
        }


class _Network(msgspec.Struct):
    """Interfaces, addresses and routes of one family."""

    links: Sequence[Link] = ()
    held: Mapping[bytes, tuple[str, int]] = {}
    """Interface and prefix length of each address."""
    routes: Mapping[bytes, Route] = {}


def _read_network(family: Family, addresses: Sequence[bytes]) -> _Network:
    with RouteSocket() as socket:
        links = socket.list_links()
        names = {link.index: link.name for link in links}
        held = {
            item.address: (names.get(item.interface, ""), item.prefix)
            for item in socket.list_addresses(family)
        }
        wanted = [address for address in addresses if len(address) == family.address_length]
        return _Network(links, held, socket.find_routes(wanted, links))


def _count_reverse_path_drops() -> int | None:
    """Return the counter of this network namespace; None where there is none."""
    try:
        lines = Path(_COUNTERS).read_text().splitlines()
    except OSError:
        return None
    for names, values in zip(lines[::2], lines[1::2], strict=False):
        found = dict(zip(names.split(), values.split(), strict=False)).get("IPReversePathFilter")
        if found is not None:
            return int(found)
    return None


# --- addresses ----------------------------------------------------------------------------------------------


class LinuxMachine:
    """The machine this process runs on, in its current network namespace."""

    def local_addresses(self, family: Family) -> tuple[bytes, ...]:
        try:
            return list_local_addresses(family, exclude=(IPVS_DEVICE,))
        except KernelError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.EAFNOSUPPORT):
                return ()
            raise

    async def address_changes(self) -> AsyncIterator[None]:
        try:
            monitor = AddressMonitor()
        except KernelError as error:
            _log.warning("Address changes will not be noticed until the next restart", err=error)
            return
        changed = asyncio.Event()
        loop = asyncio.get_running_loop()

        def readable() -> None:
            if monitor.drain():
                changed.set()

        loop.add_reader(monitor.fileno(), readable)
        try:
            while True:
                await changed.wait()
                await asyncio.sleep(_DEBOUNCE_SECONDS)
                changed.clear()
                yield
        finally:
            loop.remove_reader(monitor.fileno())
            monitor.close()


def detect_families() -> tuple[Family, ...]:
    """Return the IP families of this network namespace."""
    disabled = Path("/proc/sys/net/ipv6/conf/all/disable_ipv6")
    try:
        has_ipv6 = Path("/proc/net/if_inet6").exists() and disabled.read_text().strip() != "1"
    except OSError:
        has_ipv6 = False
    return (Family.IPV4, Family.IPV6) if has_ipv6 else (Family.IPV4,)
