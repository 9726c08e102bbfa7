"""The objects of IPVS and ipset as plain values, for pure code. Does no I/O."""

from __future__ import annotations

import enum
from typing import NamedTuple

from pointsman.model.addresses import Family, address_text, host_port_text
from pointsman.model.service import PROTOCOL_NAMES

IPVS_DEVICE = "kube-ipvs0"
"""The dummy device of ipvs mode. It carries service addresses, so its addresses are not the node's own."""
IPVS_DEVICE_ALIAS = "Pointsman"
"""Description of the device, by which clean-up recognises that the virtual servers, sets and rules are Pointsman's and not kube-proxy's."""

PERSISTENT = 0x1
HASHED = 0x2
SCHEDULER_1 = 0x8
SCHEDULER_2 = 0x10
"""Scheduler-specific; for mh it means: hash the source port too (`-b mh-port`)."""

_PROTOCOL_OPTIONS = {6: "-t", 17: "-u", 132: "--sctp-service"}


class VirtualKey(NamedTuple):
    """What identifies a virtual server: IP protocol number, packed address, port."""

    protocol: int
    address: bytes
    port: int

    def __str__(self) -> str:
        return f"{PROTOCOL_NAMES.get(self.protocol, self.protocol)} {host_port_text(self.address, self.port)}"

    @property
    def option(self) -> str:
        """The options of ipvsadm that name it."""
        name = _PROTOCOL_OPTIONS.get(self.protocol, f"--protocol-{self.protocol}")
        return f"{name} {host_port_text(self.address, self.port)}"


class VirtualServer(NamedTuple):
    """A virtual server and how it balances."""

    key: VirtualKey
    scheduler: str
    flags: int = 0
    timeout: int = 0
    """Seconds a client keeps its real server; only with the flag PERSISTENT."""

    def __str__(self) -> str:
        return f"{self.key} with scheduler {self.scheduler}"


class RealKey(NamedTuple):
    """What identifies a real server within its virtual server."""

    address: bytes
    port: int

    def __str__(self) -> str:
        return host_port_text(self.address, self.port)


class RealOf(NamedTuple):
    """Which real server of which virtual server."""

    server: VirtualKey
    real: RealKey

    def __str__(self) -> str:
        return f"{self.real} of {self.server}"


class RealServer(NamedTuple):
    """A real server as the kernel reports it."""

    key: RealKey
    weight: int
    active: int = 0
    inactive: int = 0

    @property
    def connections(self) -> int:
        return self.active + self.inactive


class ServerCounters(NamedTuple):
    """Counters of a virtual server since it was added."""

    connections: int
    packets_in: int
    packets_out: int
    bytes_in: int
    bytes_out: int


class SetType(enum.Enum):
    """The ipset types in use; the value is the kernel's name."""

    BITMAP_PORT = "bitmap:port"
    HASH_IP = "hash:ip"
    HASH_IP_PORT = "hash:ip,port"
    HASH_IP_PORT_IP = "hash:ip,port,ip"
    HASH_IP_PORT_NET = "hash:ip,port,net"

    @property
    def has_family(self) -> bool:
        return self is not SetType.BITMAP_PORT


class SetHeader(NamedTuple):
    """A set without its entries; `family` is None for types without one."""

    name: str
    type: SetType
    family: Family | None = None
    max_elements: int = 65536
    references: int = 0
    """How many rules match on it, as the kernel reports."""
    elements: int = -1
    """How many entries it has, as the kernel reports; negative where it does not report them."""


class SetEntry(NamedTuple):
    """An entry of an ipset; parts its type does not have are empty."""

    address: bytes = b""
    protocol: int = 0
    port: int = 0
    second: bytes = b""
    prefix: int = 0
    """Of `second`, in sets of networks."""

    def __str__(self) -> str:
        parts = []
        if self.address:
            parts.append(address_text(self.address))
        if self.protocol:
            parts.append(f"{PROTOCOL_NAMES.get(self.protocol, self.protocol)}:{self.port}")
        elif not self.address:
            parts.append(str(self.port))
        if self.second:
            suffix = f"/{self.prefix}" if self.prefix else ""
            parts.append(address_text(self.second) + suffix)
        return ",".join(parts)
