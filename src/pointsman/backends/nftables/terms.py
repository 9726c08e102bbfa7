"""The words and numbers in which IPv4 and IPv6 differ, and the fields that keys are made of."""

from __future__ import annotations

import enum

import msgspec

from pointsman.model.addresses import Family

TABLE = "kube-proxy"
"""kube-proxy's own table name: each takes over from the other and either can clean up."""


class Terms(msgspec.Struct, frozen=True, gc=False):
    """How one IP family is spelled in nft syntax and numbered in netlink."""

    family: Family
    nfproto: int
    keyword: str
    address_type: str
    address_length: int
    source_offset: int
    destination_offset: int
    network_id: int
    """nft's number of the header description, for typeof."""
    destination_id: int
    """nft's number of the destination address field, for typeof."""
    address_datatype: int
    reject_default: int
    """ICMP code of a plain `reject`: port unreachable."""
    loopback: str

    @property
    def address_words(self) -> int:
        return self.address_length // 4


_IPV4 = Terms(Family.IPV4, 2, "ip", "ipv4_addr", 4, 12, 16, 12, 12, 7, 3, "127.0.0.0/8")
_IPV6 = Terms(Family.IPV6, 10, "ip6", "ipv6_addr", 16, 8, 24, 13, 9, 8, 4, "::1/128")


def terms_of(family: Family) -> Terms:
    return _IPV4 if family is Family.IPV4 else _IPV6


class Field(enum.Enum):
    """A part of a key; each is padded to whole 32-bit words in the kernel."""

    SOURCE = "source address"
    DESTINATION = "destination address"
    PROTOCOL = "protocol"
    PORT = "destination port"
    SLOT = "slot"


def field_length(field: Field, terms: Terms) -> int:
    """Significant bytes of a field."""
    if field in (Field.SOURCE, Field.DESTINATION):
        return terms.address_length
    return {Field.PROTOCOL: 1, Field.PORT: 2, Field.SLOT: 4}[field]


def key_length(fields: tuple[Field, ...], terms: Terms) -> int:
    """Bytes of a whole key as the kernel counts it: single fields unpadded, concatenations padded."""
    if len(fields) == 1:
        return field_length(fields[0], terms)
    return sum((field_length(field, terms) + 3) & ~3 for field in fields)


def port_word(port: int) -> bytes:
    """A port as a padded key field."""
    return port.to_bytes(2, "big") + b"\0\0"


def protocol_word(protocol: int) -> bytes:
    """A protocol as a padded key field."""
    return bytes((protocol, 0, 0, 0))
