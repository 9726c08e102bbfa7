"""Where node ports answer: `nodePortAddresses` and the node's addresses into one resolved value per family."""

from __future__ import annotations

from collections.abc import Sequence

from pointsman.model.addresses import LOOPBACK, Cidr, Family, cidr_from_text
from pointsman.model.node_context import NodePortAddresses


def node_port_addresses(
    configured: Sequence[str],
    family: Family,
    *,
    node_ips: Sequence[bytes],
    local_addresses: Sequence[bytes],
) -> NodePortAddresses:
    """Resolve ranges and keywords against the addresses the node has now.

    A list without any entry for this family means every address, as in kube-proxy, and so does an empty one (the
    defaults of a mode have been filled in before).
    """
    ranges = node_port_ranges(configured or ("all",), family, node_ips)
    loopback = LOOPBACK[family]
    asked = any(loopback.contains(cidr.network) for cidr in ranges)
    if not ranges or any(cidr.is_everything for cidr in ranges):
        return NodePortAddresses(loopback_asked=asked)
    found = {address for address in local_addresses if any(cidr.contains(address) for cidr in ranges)}
    return NodePortAddresses(
        match_all=False,
        addresses=tuple(sorted(found)),
        loopback=asked or any(cidr.contains(loopback.network) for cidr in ranges),
        loopback_asked=asked,
    )


def node_port_ranges(configured: Sequence[str], family: Family, node_ips: Sequence[bytes]) -> list[Cidr]:
    """What the entries stand for in one family."""
    return [cidr for entry in configured for cidr in _ranges(entry, family, node_ips)]


def _ranges(entry: str, family: Family, node_ips: Sequence[bytes]) -> Sequence[Cidr]:
    """The ranges of a family that one entry stands for.

    A loopback address as the node's own (`bindAddress`, or none known) is no address to be found at, so it is none
    to pin to either.
    """
    if entry == "all":
        return (Cidr(family.any_address, 0),)
    if entry == "localhost":
        return (LOOPBACK[family],)
    if entry == "primary":
        primary = next((ip for ip in node_ips if len(ip) == family.address_length), None)
        if primary is None or LOOPBACK[family].contains(primary):
            return ()
        return (Cidr(primary, len(primary) * 8),)
    cidr = cidr_from_text(entry)
    return (cidr,) if cidr is not None and cidr.family is family else ()
