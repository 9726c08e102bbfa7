"""Links, addresses and routes over rtnetlink: what this node's own addresses are, and the dummy device of ipvs mode.

Reading works on every kernel and needs no privileges; `AddressMonitor` reports when to read again.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from pointsman.errors import KernelError
from pointsman.kernel import attributes as nla
from pointsman.kernel import netlink
from pointsman.kernel.netlink import Closable, Message, NetlinkSocket, Reply
from pointsman.model.addresses import Family, family_of

RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK, RTM_SETLINK = 16, 17, 18, 19
RTM_NEWADDR, RTM_DELADDR, RTM_GETADDR = 20, 21, 22
RTM_GETROUTE = 26
RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR = 0x10, 0x100
IFLA_IFNAME, IFLA_MASTER, IFLA_LINKINFO, IFLA_IFALIAS, IFLA_INFO_KIND, IFLA_INFO_DATA = 3, 10, 18, 20, 1, 2
IFLA_BR_NF_CALL = {Family.IPV4: 36, Family.IPV6: 37}
IFA_ADDRESS, IFA_LOCAL = 1, 2
RTA_DST, RTA_OIF, RTA_PREFSRC = 1, 4, 7
RTN_LOCAL = 2
RTM_F_FIB_MATCH = 0x2000
"""Answer with the route itself. Otherwise IPv6 also chooses a source address, among all that the interface has."""
_NO_ROUTE = {
    errno.ENETUNREACH: "no route leads there",
    errno.EHOSTUNREACH: "the route is of type unreachable",
    errno.EACCES: "the route is of type prohibit",
    errno.EINVAL: "the route is a blackhole",
}

_NEW = netlink.NLM_F_CREATE | netlink.NLM_F_EXCL
_MIN_PAUSE_SECONDS = 0.001
_ROUTE_SECONDS = 50e-6
"""Less than the kernel needs for the route of one new address, so that asking again costs little beside it."""
_MONITOR_BYTES = 1 << 16
"""Kept for a monitor; what does not fit means the same as what does: addresses have changed."""
_LINK = struct.Struct("=BxHiII")
_ADDRESS = struct.Struct("=BBBBI")
_ROUTE = struct.Struct("=BBBBBBBBI")
_AF = {Family.IPV4: socket.AF_INET, Family.IPV6: socket.AF_INET6}
_FAMILY = {socket.AF_INET: Family.IPV4, socket.AF_INET6: Family.IPV6}


class InterfaceAddress(NamedTuple):
    """An address and the index of the interface that has it."""

    address: bytes
    interface: int
    prefix: int


class Route(msgspec.Struct, frozen=True):
    """How this node reaches an address."""

    error: str = ""
    """Why the address is unreachable; empty when it is reachable."""
    interface: str = ""
    source: bytes = b""
    """The source address of the node's own packets to it."""
    local: bool = False
    """It is an address of this node."""


class Link(msgspec.Struct, frozen=True):
    """A network interface."""

    name: str
    index: int
    is_port: bool = False
    """It belongs to another one: a bridge, a bond."""
    alias: str = ""
    is_bridge: bool = False
    filtered: frozenset[Family] = frozenset()
    """Families of which this bridge passes the packets between its ports to netfilter, whatever the sysctls are."""


class RouteSocket(Closable):
    """Links and addresses of the network namespace it was opened in."""

    def __init__(self) -> None:
        self._netlink = NetlinkSocket(netlink.NETLINK_ROUTE)

    def close(self) -> None:
        self._netlink.close()

    def list_links(self) -> list[Link]:
        """Return every interface."""
        request = Message(RTM_GETLINK, 0, _LINK.pack(0, 0, 0, 0, 0))
        return [
            _parse_link(answer.payload) for answer in self._netlink.dump(request, "list network interfaces")
        ]

    def list_indexes(self) -> dict[str, int]:
        """Return the index of every interface by name."""
        return {link.name: link.index for link in self.list_links()}

    def list_addresses(self, family: Family, interface: int = 0) -> list[InterfaceAddress]:
        """Return every address of the family, or only those of one interface."""
        request = Message(RTM_GETADDR, 0, _ADDRESS.pack(_AF[family], 0, 0, 0, interface))
        found: list[InterfaceAddress] = []
        for answer in self._netlink.dump(request, f"list {family.value} addresses"):
            if answer.kind != RTM_NEWADDR:
                continue
            number, prefix, _, _, index = _ADDRESS.unpack_from(answer.payload)
            if _FAMILY.get(number) is not family or (interface and index != interface):
                continue
            address = _parse_own_address(answer.payload)
            if address is not None:
                found.append(InterfaceAddress(address, index, prefix))
        return found

    def find_routes(
        self, addresses: Iterable[bytes], links: Iterable[Link] = (), *, flags: int = 0
    ) -> dict[bytes, Route]:
        """Return how packets of this node's own reach each address; interfaces are named from `links`."""
        wanted = list(dict.fromkeys(addresses))
        names = {link.index: link.name for link in links}
        replies = self._netlink.request(
            [Message(RTM_GETROUTE, 0, _encode_route_request(one, flags)) for one in wanted]
        )
        return {address: _parse_route(reply, names) for address, reply in zip(wanted, replies, strict=True)}

    def wait_until_local(self, addresses: Sequence[bytes], timeout: float) -> list[bytes]:
        """Wait until packets to these addresses are routed locally; return the rest when none became local for `timeout` seconds.

        An IPv6 address is added at once, but its route follows later, from a thread of the kernel.
        """
        until = time.monotonic() + timeout
        while late := self._find_not_local(addresses):
            now = time.monotonic()
            if len(late) < len(addresses):
                until = now + timeout
            elif now > until:
                break
            time.sleep(max(_ROUTE_SECONDS * len(late), _MIN_PAUSE_SECONDS))
            addresses = late
        return late

    def _find_not_local(self, addresses: Iterable[bytes]) -> list[bytes]:
        routes = self.find_routes(addresses, flags=RTM_F_FIB_MATCH)
        return [address for address, route in routes.items() if not route.local]

    def ensure_dummy(self, name: str, alias: str = "") -> int:
        """Return the index of the dummy device, which is created (down, as it only carries addresses) when missing.

        `alias` becomes the description that `ip link` shows.
        """
        payload = (
            _LINK.pack(0, 0, 0, 0, 0)
            + nla.pack_text(IFLA_IFNAME, name)
            + nla.pack_nested(IFLA_LINKINFO, nla.pack_text(IFLA_INFO_KIND, "dummy"))
        )
        if name not in self.list_indexes():
            reply = self._netlink.request((Message(RTM_NEWLINK, _NEW, payload),))[0]
            if reply.errno not in (0, errno.EEXIST):
                what = f"create dummy device {name}"
                raise netlink.build_kernel_error(
                    reply.errno, what, reply.text, needs="CONFIG_DUMMY (module dummy)"
                )
        index = self.list_indexes().get(name)
        if index is None:
            raise KernelError(f"dummy device {name} vanished while it was created", errno.ENODEV)
        if alias:
            described = _LINK.pack(0, 0, index, 0, 0) + nla.pack_text(IFLA_IFALIAS, alias)
            self._netlink.request_one(Message(RTM_SETLINK, 0, described), "describe a network interface")
        return index

    def delete_link(self, name: str) -> bool:
        """Remove an interface; False when there was none."""
        index = self.list_indexes().get(name)
        if index is None:
            return False
        self._netlink.request_one(
            Message(RTM_DELLINK, 0, _LINK.pack(0, 0, index, 0, 0)), f"delete network interface {name}"
        )
        return True

    def add_addresses(self, interface: int, addresses: Iterable[bytes]) -> list[Reply]:
        """Bind host addresses (/32, /128); EEXIST in a reply means the interface has it already."""
        return self._netlink.request(
            [Message(RTM_NEWADDR, _NEW, _encode_host(interface, a)) for a in addresses]
        )

    def delete_addresses(self, interface: int, addresses: Iterable[bytes]) -> list[Reply]:
        """Unbind host addresses; EADDRNOTAVAIL in a reply means it was gone already."""
        return self._netlink.request([Message(RTM_DELADDR, 0, _encode_host(interface, a)) for a in addresses])


def _parse_link(payload: bytes) -> Link:
    found = nla.parse_attributes(payload, _LINK.size)
    info = nla.parse_attributes(found.get(IFLA_LINKINFO, b""))
    data = nla.parse_attributes(info.get(IFLA_INFO_DATA, b""))
    is_bridge = nla.parse_text(info.get(IFLA_INFO_KIND, b"")) == "bridge"
    calls = {family for family, kind in IFLA_BR_NF_CALL.items() if any(data.get(kind, b""))}
    return Link(
        name=nla.parse_text(found.get(IFLA_IFNAME, b"")),
        index=_LINK.unpack_from(payload)[2],
        is_port=IFLA_MASTER in found,
        alias=nla.parse_text(found.get(IFLA_IFALIAS, b"")),
        is_bridge=is_bridge,
        filtered=frozenset(calls) if is_bridge else frozenset(),
    )


def _encode_route_request(address: bytes, flags: int = 0) -> bytes:
    family = _AF[family_of(address)]
    return _ROUTE.pack(family, len(address) * 8, 0, 0, 0, 0, 0, 0, flags) + nla.pack_attribute(
        RTA_DST, address
    )


def _parse_route(reply: Reply, names: Mapping[int, str]) -> Route:
    if reply.errno or not reply.answers:
        return Route(error=_NO_ROUTE.get(reply.errno, os.strerror(reply.errno)))
    payload = reply.answers[0].payload
    found = nla.parse_attributes(payload, _ROUTE.size)
    index = int.from_bytes(found.get(RTA_OIF, b""), sys.byteorder)
    kind = _ROUTE.unpack_from(payload)[7]
    return Route("", names.get(index, ""), found.get(RTA_PREFSRC, b""), local=kind == RTN_LOCAL)


def _encode_host(interface: int, address: bytes) -> bytes:
    family = socket.AF_INET if len(address) == 4 else socket.AF_INET6
    return (
        _ADDRESS.pack(family, len(address) * 8, 0, 0, interface)
        + nla.pack_attribute(IFA_LOCAL, address)
        + nla.pack_attribute(IFA_ADDRESS, address)
    )


def _parse_own_address(payload: bytes) -> bytes | None:
    """Return the node's end of an address: IFA_LOCAL, or IFA_ADDRESS where there is no other end."""
    address = None
    for kind, value in nla.iter_attributes(payload, _ADDRESS.size):
        if kind == IFA_LOCAL:
            return value
        if kind == IFA_ADDRESS:
            address = value
    return address


def list_local_addresses(family: Family, *, exclude: Collection[str] = ()) -> tuple[bytes, ...]:
    """Return every address on this node's interfaces, sorted, loopback included; `exclude` names interfaces to skip.

    An address that an excluded and another interface share counts (k8s 114815).
    """
    with RouteSocket() as route:
        skipped = (
            {index for name, index in route.list_indexes().items() if name in exclude} if exclude else set()
        )
        found = {item.address for item in route.list_addresses(family) if item.interface not in skipped}
        return tuple(sorted(found))


class AddressMonitor:
    """Becomes readable when an address is added to or removed from any interface of this network namespace."""

    def __init__(self) -> None:
        groups = RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR
        self._netlink = NetlinkSocket(netlink.NETLINK_ROUTE, groups=groups, receive_buffer=_MONITOR_BYTES)

    def fileno(self) -> int:
        return self._netlink.fileno()

    def drain(self) -> bool:
        """Take everything that is waiting; True when addresses may have changed."""
        changed = False
        while True:
            try:
                answers = self._netlink.receive(wait=False)
            except KernelError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                changed = True
                continue
            if not answers:
                return changed
            changed = changed or any(answer.kind in (RTM_NEWADDR, RTM_DELADDR) for answer in answers)

    def close(self) -> None:
        self._netlink.close()
