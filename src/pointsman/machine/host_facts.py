"""What the host does with packets besides our own rules: settings, routes, and the rules of other programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec

from pointsman.errors import PointsmanError
from pointsman.kernel.rtnl import Route, RouteSocket
from pointsman.kernel.sysctl import Sysctls
from pointsman.machine.foreign_chains import ForeignChains
from pointsman.machine.packet_filter import FilterChain
from pointsman.machine.settings import LOOSE_TRACKING
from pointsman.model.addresses import Family

_FORWARDING: Final = {Family.IPV4: "net/ipv4/ip_forward", Family.IPV6: "net/ipv6/conf/all/forwarding"}
_CONNTRACK: Final = "net/netfilter/nf_conntrack_"
_STRICT: Final = 1


class HostFacts(msgspec.Struct, frozen=True):
    """What the host does with packets besides the rules of the proxy, for one IP family."""

    family: Family
    forwarding: bool | None = None
    """None when unknown."""
    not_forwarding: tuple[str, ...] = ()
    """Interfaces whose incoming packets are not forwarded although forwarding is on."""
    strict_reverse_path: frozenset[str] = frozenset()
    """Interfaces that drop packets from addresses that are not reached through them."""
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
        """Return the facts of one family, with the routes to these addresses; never raises, `not_read` says what is missing."""


class LinuxHost:
    """The host in whose network namespace the calling thread is; opens its own sockets, so it never delays a sync."""

    def __init__(self, sysctls: Sysctls, chains: ForeignChains) -> None:
        self._sysctls = sysctls
        self._chains = chains

    def look(self, family: Family, addresses: Sequence[bytes]) -> HostFacts:
        not_read: list[str] = []
        routes: dict[bytes, Route] = {}
        held: dict[bytes, str] = {}
        ports: frozenset[str] = frozenset()
        try:
            routes, held, ports = _routing(family, addresses)
        except PointsmanError as error:
            not_read.append(f"routes: {error}")
        rules = self._chains.read(family)
        forwarding = self._sysctls.read_int(_FORWARDING[family])
        loose = self._sysctls.read_int(LOOSE_TRACKING)
        interfaces = sorted(set(held.values()) - {"lo"} - ports)
        return HostFacts(
            family=family,
            forwarding=None if forwarding is None else forwarding != 0,
            not_forwarding=tuple(name for name in interfaces if self._refuses_forwarding(family, name)),
            strict_reverse_path=frozenset(name for name in interfaces if self._is_strict(family, name)),
            interface_addresses=held,
            routes=routes,
            chains=rules.chains,
            conntrack_count=self._sysctls.read_int(f"{_CONNTRACK}count"),
            conntrack_max=self._sysctls.read_int(f"{_CONNTRACK}max"),
            conntrack_loose=None if loose is None else loose != 0,
            not_read=(*not_read, *rules.not_read),
        )

    def _refuses_forwarding(self, family: Family, interface: str) -> bool:
        """Only IPv4 decides about forwarding per interface."""
        return family is Family.IPV4 and self._sysctls.read_int(f"net/ipv4/conf/{interface}/forwarding") == 0

    def _is_strict(self, family: Family, interface: str) -> bool:
        if family is not Family.IPV4:
            return False
        values = [
            self._sysctls.read_int(f"net/ipv4/conf/{name}/rp_filter") or 0 for name in ("all", interface)
        ]
        return max(values) == _STRICT


def _routing(
    family: Family, addresses: Sequence[bytes]
) -> tuple[dict[bytes, Route], dict[bytes, str], frozenset[str]]:
    route = RouteSocket()
    try:
        names = {index: name for name, index in route.links().items()}
        held = {item.address: names.get(item.interface, "") for item in route.addresses(family)}
        return (
            route.routes([a for a in addresses if len(a) == family.address_length]),
            held,
            route.bridge_ports(),
        )
    finally:
        route.close()
