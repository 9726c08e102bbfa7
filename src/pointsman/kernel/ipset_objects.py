"""The objects of ipset as plain values, for pure code. Does no I/O."""

from __future__ import annotations

import enum
from typing import NamedTuple

from pointsman.model.addresses import Family, address_text
from pointsman.model.service import PROTOCOL_NAMES


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
