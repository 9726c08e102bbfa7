"""IP addresses and ranges as packed bytes, parsed as Kubernetes does.

An address is `bytes`: 4 for IPv4, 16 for IPv6. Packed bytes hash fast, compare in network order and go to
netlink as they are. Old objects may hold sloppy text ("010.0.0.1", accepted before validation was tightened):
leading zeros are read as decimal, never as octal, and an IPv4-mapped IPv6 address is IPv4.
"""

from __future__ import annotations

import enum
import ipaddress

import msgspec


class Family(enum.Enum):
    """An IP family, spelled as in Kubernetes objects and metric labels."""

    IPV4 = "IPv4"
    IPV6 = "IPv6"

    @property
    def address_length(self) -> int:
        return 4 if self is Family.IPV4 else 16

    @property
    def any_address(self) -> bytes:
        return bytes(self.address_length)


_MAPPED_PREFIX = bytes(10) + b"\xff\xff"
_OCTETS = {str(number): number for number in range(256)}


def family_of(address: bytes) -> Family:
    return Family.IPV4 if len(address) == 4 else Family.IPV6


def address_from_text(text: str) -> bytes | None:
    """Return the packed address, or None when the text is not an address."""
    if ":" not in text:
        return _parse_ipv4(text)
    if "%" in text:
        return None
    head, _, tail = text.rpartition(":")
    if "." in tail:
        v4 = _parse_ipv4(tail)
        if v4 is None:
            return None
        text = f"{head}:{v4[0]:02x}{v4[1]:02x}:{v4[2]:02x}{v4[3]:02x}"
    try:
        packed = ipaddress.IPv6Address(text).packed
    except ValueError:
        return None
    return packed[12:] if packed.startswith(_MAPPED_PREFIX) else packed


def address_and_text(text: str) -> tuple[bytes, str] | None:
    """Return the packed address and its canonical text, or None when the text is not an address."""
    try:
        first, second, third, fourth = text.split(".")
        return bytes((_OCTETS[first], _OCTETS[second], _OCTETS[third], _OCTETS[fourth])), text
    except (ValueError, KeyError):
        address = address_from_text(text)
    return None if address is None else (address, address_text(address))


def _parse_ipv4(text: str) -> bytes | None:
    parts = text.split(".")
    if len(parts) != 4:
        return None
    try:
        return bytes([_OCTETS[part] for part in parts])
    except KeyError:
        return _parse_sloppy_ipv4(parts)


def _parse_sloppy_ipv4(parts: list[str]) -> bytes | None:
    for part in parts:
        if not part or not part.isascii() or not part.isdigit():
            return None
    numbers = [int(part.lstrip("0")[:4] or "0") for part in parts]
    return bytes(numbers) if max(numbers) <= 255 else None


_BYTES = [str(number) for number in range(256)]
"""Lookup is several times faster than formatting, for hundreds of thousands of addresses."""


def address_text(address: bytes) -> str:
    """Return the canonical text of a packed address."""
    if len(address) == 4:
        first, second, third, fourth = address
        return f"{_BYTES[first]}.{_BYTES[second]}.{_BYTES[third]}.{_BYTES[fourth]}"
    return str(ipaddress.IPv6Address(address))


def host_port_text(address: bytes, port: int | str) -> str:
    """Return `ip:port`, with brackets around IPv6, as kube-proxy orders and hashes endpoints."""
    return f"{address_text(address)}:{port}" if len(address) == 4 else f"[{address_text(address)}]:{port}"


def split_host_port(text: str) -> tuple[str, str] | None:
    """Split `host:port` or `[host]:port` as Go does; return None for any other form."""
    host, colon, port = text.rpartition(":")
    if not colon:
        return None
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        return None
    return None if any(bracket in host + port for bracket in "[]") else (host, port)


def port_from_text(text: str) -> int | None:
    """Return a port from 0 to 65535, or None."""
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        return None
    return int(text) if int(text) <= 65535 else None


class Cidr(msgspec.Struct, frozen=True, gc=False, order=True):
    """An address range; `network` has its host bits cleared."""

    network: bytes
    prefix: int

    @property
    def family(self) -> Family:
        return family_of(self.network)

    @property
    def is_everything(self) -> bool:
        return self.prefix == 0

    @property
    def first(self) -> int:
        return int.from_bytes(self.network, "big")

    @property
    def last(self) -> int:
        return self.first | ((1 << (len(self.network) * 8 - self.prefix)) - 1)

    def contains(self, address: bytes) -> bool:
        if len(address) != len(self.network):
            return False
        shift = len(address) * 8 - self.prefix
        return int.from_bytes(address, "big") >> shift == self.first >> shift

    def __str__(self) -> str:
        return f"{address_text(self.network)}/{self.prefix}"


def cidr_from_text(text: str) -> Cidr | None:
    """Return the range with host bits cleared, or None; surrounding white space is accepted, as by kube-proxy."""
    address_part, slash, prefix_part = text.strip().partition("/")
    if not slash or not prefix_part.isascii() or not prefix_part.isdigit() or len(prefix_part) > 3:
        return None
    address = address_from_text(address_part)
    if address is None:
        return None
    prefix, bits = int(prefix_part), len(address) * 8
    if ":" in address_part and bits == 32:
        prefix -= 96
    if not 0 <= prefix <= bits:
        return None
    return network_of(address, prefix)


def network_of(address: bytes, prefix: int) -> Cidr:
    """Return the range with this prefix length that contains the address."""
    shift = len(address) * 8 - prefix
    network = (int.from_bytes(address, "big") >> shift) << shift
    return Cidr(network.to_bytes(len(address), "big"), prefix)


LOOPBACK = {
    Family.IPV4: Cidr(b"\x7f\0\0\0", 8),
    Family.IPV6: Cidr(bytes(15) + b"\x01", 128),
}
LOCALHOST = {Family.IPV4: b"\x7f\0\0\x01", Family.IPV6: bytes(15) + b"\x01"}


def is_loopback(address: bytes) -> bool:
    return address[0] == 127 if len(address) == 4 else address == LOCALHOST[Family.IPV6]


def is_link_local(address: bytes) -> bool:
    """Return whether the address is in 169.254.0.0/16 or fe80::/10."""
    if len(address) == 4:
        return address[0] == 169 and address[1] == 254
    return address[0] == 0xFE and address[1] & 0xC0 == 0x80


def find_unusable_reason(address: bytes) -> str | None:
    """Return why neither an endpoint nor a Service may have this address, or None when they may.

    CVE-2021-25737 for endpoints; CVE-2020-8554 and CVE-2021-25736 for Services.
    """
    if len(address) == 4 and 0 < address[0] < 127:
        return None
    if not any(address):
        return "unspecified"
    if is_loopback(address):
        return "loopback"
    if is_link_local(address):
        return "link-local"
    if len(address) == 4:
        if 224 <= address[0] <= 239:
            return "multicast"
        return "broadcast" if address == b"\xff\xff\xff\xff" else None
    return "multicast" if address[0] == 0xFF else None
