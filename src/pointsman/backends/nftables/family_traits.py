"""What IPv4 and IPv6 differ in: keywords of nft's syntax and numbers of netlink."""

from __future__ import annotations

import msgspec

from pointsman.kernel import nf_tables
from pointsman.model.addresses import Family


class FamilyTraits(msgspec.Struct, frozen=True, gc=False):
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
    def address_registers(self) -> int:
        """How many 32-bit registers an address takes."""
        return self.address_length // 4


_IPV4 = FamilyTraits(
    Family.IPV4,
    nfproto=nf_tables.NFPROTO_IPV4,
    keyword="ip",
    address_type="ipv4_addr",
    address_length=4,
    source_offset=12,
    destination_offset=16,
    network_id=12,
    destination_id=12,
    address_datatype=7,
    reject_default=3,
    loopback="127.0.0.0/8",
)
_IPV6 = FamilyTraits(
    Family.IPV6,
    nfproto=nf_tables.NFPROTO_IPV6,
    keyword="ip6",
    address_type="ipv6_addr",
    address_length=16,
    source_offset=8,
    destination_offset=24,
    network_id=13,
    destination_id=9,
    address_datatype=8,
    reject_default=4,
    loopback="::1/128",
)


def traits_of(family: Family) -> FamilyTraits:
    return _IPV4 if family is Family.IPV4 else _IPV6
