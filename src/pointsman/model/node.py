"""What the proxy uses of its Node object: addresses, zone, pod ranges."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pointsman.model.addresses import LOCALHOST, Family, address_from_text, family_of
from pointsman.model.objects import ZONE_LABEL, Node


class NodeFacts(msgspec.Struct, frozen=True, gc=False):
    """What rules use of the node."""

    name: str
    primary_family: Family = Family.IPV4
    ips: tuple[bytes, ...] = ()
    """One address per family, primary first."""
    zone: str = ""
    pod_cidrs: tuple[str, ...] = ()

    def ips_of(self, family: Family) -> tuple[bytes, ...]:
        return tuple(ip for ip in self.ips if family_of(ip) is family)


def find_host_ips(node: Node) -> tuple[bytes, ...]:
    """Return the first address of the node and the first of the other family, InternalIPs before ExternalIPs."""
    found: list[bytes] = []
    for kind in ("InternalIP", "ExternalIP"):
        for entry in node.status.addresses or ():
            address = address_from_text(entry.address) if entry.type == kind else None
            if address is not None:
                found.append(address)
    if not found:
        return ()
    other = [ip for ip in found if len(ip) != len(found[0])]
    return (found[0], *other[:1])


def build_node_facts(
    name: str, node: Node | None, bind_address: str, fallback_ips: Sequence[bytes] = ()
) -> NodeFacts:
    """Return the facts with addresses chosen as by kube-proxy: from the Node, `bind_address` overriding its own family.

    Without a Node (manifests, or no such object) `fallback_ips` are used, else localhost.
    """
    ips = list((find_host_ips(node) if node is not None else ()) or fallback_ips)
    bound = address_from_text(bind_address)
    if bound is not None and any(bound):
        ips = [bound, *(ip for ip in ips if len(ip) != len(bound))]
    if not ips:
        ips = [LOCALHOST[Family.IPV4]]
    return NodeFacts(
        name=name,
        primary_family=family_of(ips[0]),
        ips=tuple(ips),
        zone=(node.metadata.label(ZONE_LABEL) or "") if node is not None else "",
        pod_cidrs=_pod_cidrs(node),
    )


def _pod_cidrs(node: Node | None) -> tuple[str, ...]:
    if node is None:
        return ()
    if node.spec.pod_cidrs:
        return tuple(node.spec.pod_cidrs)
    return (node.spec.pod_cidr,) if node.spec.pod_cidr else ()
