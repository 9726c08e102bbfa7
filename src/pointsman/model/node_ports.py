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
    defaults of a mode have been filled in before). A loopback address as
    the node's own (`bindAddress`, or none known) is no address to be found at, so it is none to pin to either.
    """
    entries = configured or ("all",)
    loopback = LOOPBACK[family]
    ranges: list[Cidr] = []
    for entry in entries:
        if entry == "all":
            ranges.append(Cidr(family.any_address, 0))
        elif entry == "localhost":
            ranges.append(loopback)
        elif entry == "primary":
            own = [ip for ip in node_ips if len(ip) == family.address_length][:1]
            ranges += [Cidr(ip, len(ip) * 8) for ip in own if not loopback.contains(ip)]
        else:
            cidr = cidr_from_text(entry)
            if cidr is not None and cidr.family is family:
                ranges.append(cidr)
    asked = any(loopback.contains(cidr.network) for cidr in ranges)
    if not ranges or any(cidr.is_everything for cidr in ranges):
        return NodePortAddresses(loopback_asked=asked)
    covers_loopback = any(
        cidr.contains(loopback.network) or loopback.contains(cidr.network) for cidr in ranges
    )
    found = dict.fromkeys(address for address in local_addresses for cidr in ranges if cidr.contains(address))
    return NodePortAddresses(
        match_all=False,
        addresses=tuple(sorted(found)),
        loopback=covers_loopback,
        loopback_asked=asked,
    )
