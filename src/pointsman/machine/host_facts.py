"""What the host does with packets besides our own rules: settings, routes, and the rules of other programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec

from pointsman.backends.netfilter.names import PROXY_TABLE, is_proxy_chain
from pointsman.errors import KernelError, PointsmanError
from pointsman.kernel.command import Commands
from pointsman.kernel.iptables_programs import LEGACY, programs, variants_in_use
from pointsman.kernel.nfnl import NftablesSocket
from pointsman.kernel.rtnl import Route, RouteSocket
from pointsman.kernel.sysctl import Sysctls
from pointsman.machine.legacy_chains import parse_legacy_chains
from pointsman.machine.nft_chains import ChainReader
from pointsman.machine.packet_filter import FilterChain
from pointsman.machine.settings import LOOSE_TRACKING
from pointsman.model.addresses import Family

Chains = dict[tuple[str, str], FilterChain]

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

    def __init__(self, sysctls: Sysctls, commands: Commands) -> None:
        self._sysctls = sysctls
        self._commands = commands

    def look(self, family: Family, addresses: Sequence[bytes]) -> HostFacts:
        not_read: list[str] = []
        routes: dict[bytes, Route] = {}
        held: dict[bytes, str] = {}
        ports: frozenset[str] = frozenset()
        try:
            routes, held, ports = _routing(family, addresses)
        except PointsmanError as error:
            not_read.append(f"routes: {error}")
        chains: Chains = {}
        for read in (self._nft_chains, self._legacy_chains):
            try:
                chains |= read(family)
            except PointsmanError as error:
                not_read.append(f"rules of other programs: {error}")
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
            chains=chains,
            conntrack_count=self._sysctls.read_int(f"{_CONNTRACK}count"),
            conntrack_max=self._sysctls.read_int(f"{_CONNTRACK}max"),
            conntrack_loose=None if loose is None else loose != 0,
            not_read=tuple(not_read),
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

    def _nft_chains(self, family: Family) -> Chains:
        socket = NftablesSocket()
        try:
            reader = ChainReader(socket, family)
            return reader.with_rules(reader.base_chains(PROXY_TABLE), _is_external)
        finally:
            socket.close()

    def _legacy_chains(self, family: Family) -> Chains:
        if LEGACY not in variants_in_use(family):
            return {}
        found = self._commands.run((programs(family, LEGACY).save,))
        if found.status != 0:
            raise KernelError(f"{programs(family, LEGACY).save} failed: {found.error_text}")
        return parse_legacy_chains(found.stdout.decode(errors="replace"), _is_external)


def _is_external(chain: str) -> bool:
    return not is_proxy_chain(chain)


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
