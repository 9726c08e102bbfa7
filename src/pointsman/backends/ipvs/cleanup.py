"""Removing everything ipvs mode made: rules first, then virtual servers, sets and the dummy device.

Unlike kube-proxy's clean-up it also removes the IPv6 sets and keeps virtual servers of excluded ranges. Sysctls are put
back by whoever set them (`kernel.sysctl.Sysctls.undo`).
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Sequence
from typing import Protocol

from pointsman.backends.iptables import saved
from pointsman.backends.ipvs import sets
from pointsman.backends.ipvs.kernel_state import DUMMY_DEVICE
from pointsman.backends.ipvs.rules import CHAINS, FILTER, NAT
from pointsman.errors import KernelError, NotSupported
from pointsman.kernel import ipvs as ipvs_kernel
from pointsman.kernel.ipset import IpsetSocket
from pointsman.kernel.ipvs import IpvsSocket
from pointsman.kernel.rtnl import RouteSocket
from pointsman.model.addresses import Cidr, Family

OWN_CHAINS = frozenset(
    (
        "KUBE-LOAD-BALANCER",
        "KUBE-NODE-PORT",
        "KUBE-SOURCE-RANGES-FIREWALL",
        "KUBE-IPVS-FILTER",
        "KUBE-IPVS-OUT-FILTER",
    )
)
"""Chains no other mode has: their presence tells that ipvs mode ran here."""


IPTABLES_MODE_CHAIN = "KUBE-NODEPORTS"
"""Where it exists the chains that both modes have belong to iptables mode, whose clean-up takes them."""


class RuleTool(Protocol):
    """What is needed of `kernel.iptables.Iptables`."""

    family: Family

    def save(self, table: str) -> bytes:
        """The table as text."""

    def restore(self, text: bytes) -> None:
        """Load rules without flushing other chains; raises KernelError."""


def cleanup(
    tools: Sequence[RuleTool], exclude_cidrs: Sequence[Cidr] = (), *, keep_shared: bool = False
) -> list[str]:
    """Remove everything; what was done. Does nothing where ipvs mode never ran, which its dummy device tells.

    `keep_shared` keeps the chains that iptables mode has too, for a switch to that mode. Raises KernelError when
    something would not go; calling again is safe.
    """
    done: list[str] = []
    for tool in tools:
        done += _remove_rules(tool, keep_shared=keep_shared)
    if _device_exists():
        done += _remove_servers(exclude_cidrs)
        done += _remove_device()
    return [*done, *_remove_sets()]


def _remove_rules(tool: RuleTool, *, keep_shared: bool) -> Iterator[str]:
    outlines = {table: saved.outline(tool.save(table)) for table in (NAT, FILTER)}
    keep_shared = keep_shared or any(IPTABLES_MODE_CHAIN in found.chains for found in outlines.values())
    lines: list[str] = []
    removed = 0
    for table, found in outlines.items():
        if not found.chains & OWN_CHAINS:
            continue
        ours = [chain for chain in CHAINS[table] if chain in OWN_CHAINS or not keep_shared]
        chains = [chain for chain in ours if chain in found.chains]
        jumps = [rule for rule in found.jumps if rule.rpartition("-j ")[2] in chains]
        lines += [f"*{table}", *(f":{chain} - [0:0]" for chain in chains)]
        lines += [f"-D {rule}" for rule in jumps]
        lines += [*(f"-X {chain}" for chain in chains), "COMMIT"]
        removed += len(chains)
    if lines:
        tool.restore("\n".join(lines).encode() + b"\n")
        yield f"removed {removed} {tool.family.value} chains and the jumps to them"


def _remove_servers(exclude_cidrs: Sequence[Cidr]) -> Iterator[str]:
    try:
        sock = IpvsSocket()
    except NotSupported:
        return
    try:
        keys = [
            server.key
            for server in sock.services()
            if not any(cidr.contains(server.key.address) for cidr in exclude_cidrs)
        ]
        sock.apply([ipvs_kernel.service_removal(key) for key in keys])
        if keys:
            yield f"removed {len(keys)} virtual servers"
    finally:
        sock.close()


def _remove_sets() -> Iterator[str]:
    sock = IpsetSocket()
    try:
        present = _present_sets(sock)
        names = [
            header.name for family in Family for header in sets.headers(family) if header.name in present
        ]
        for name in names:
            with _missing_is_fine():
                sock.destroy(name)
        if names:
            yield f"removed {len(names)} ipsets"
    finally:
        sock.close()


def _present_sets(sock: IpsetSocket) -> set[str]:
    try:
        return set(sock.headers())
    except NotSupported:
        return set()


def _device_exists() -> bool:
    route = RouteSocket()
    try:
        return DUMMY_DEVICE in route.links()
    finally:
        route.close()


def _remove_device() -> Iterator[str]:
    route = RouteSocket()
    try:
        if route.delete_link(DUMMY_DEVICE):
            yield f"removed {DUMMY_DEVICE}"
    finally:
        route.close()


@contextlib.contextmanager
def _missing_is_fine() -> Iterator[None]:
    try:
        yield
    except KernelError as error:
        if error.errno != errno.ENOENT:
            raise
