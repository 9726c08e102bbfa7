"""Removes everything that ipvs mode created: rules first, then virtual servers, sets and the dummy device.

Unlike kube-proxy's clean-up it also removes the IPv6 sets.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterator, Mapping, Sequence

from pointsman.backends.contract import CleanupItem, CleanupStatus
from pointsman.backends.ipvs import sets
from pointsman.backends.ipvs.rules import CHAINS
from pointsman.backends.netfilter import names
from pointsman.backends.netfilter.names import FILTER, NAT
from pointsman.backends.netfilter.runners import RuleTool, text_to_clean
from pointsman.backends.netfilter.tables import parse_chains, rules_in
from pointsman.errors import KernelError, NotSupported
from pointsman.kernel.ipset import IpsetSocket
from pointsman.kernel.ipvs import IpvsSocket, encode_service_removal
from pointsman.kernel.ipvs_objects import IPVS_DEVICE
from pointsman.kernel.netlink import kernel_error
from pointsman.kernel.rtnl import RouteSocket
from pointsman.model.addresses import Family

OWN_CHAINS = frozenset(
    (
        names.IPVS_LOAD_BALANCER,
        names.IPVS_NODE_PORT,
        names.IPVS_SOURCE_RANGES,
        names.IPVS_FILTER,
        names.IPVS_OUT_FILTER,
    )
)
"""Chains that no other mode has: where they exist, ipvs mode has run."""


def cleanup(tools: Sequence[RuleTool], keep: Mapping[str, Collection[str]] = {}) -> Iterator[CleanupItem]:
    """Remove everything except chains to `keep`; every step runs even if another one fails, and again without effect.

    Virtual servers are removed only where the dummy device shows that ipvs mode has run.
    """
    steps = [(f"{tool.family.value} rules", _remove_rules(tool, keep)) for tool in tools]
    if _device_exists():
        steps += [("virtual servers", _remove_servers()), (IPVS_DEVICE, _remove_device())]
    for what, step in (*steps, ("ipsets", _remove_sets())):
        try:
            yield from step
        except NotSupported:
            continue  # a kernel that lacks it holds nothing of it
        except KernelError as error:
            yield CleanupItem(what, status=CleanupStatus.FAILED, why=str(error))


def _remove_rules(tool: RuleTool, keep: Mapping[str, Collection[str]]) -> Iterator[CleanupItem]:
    tables = {
        table: parse_chains(
            text_to_clean(tool, table, OWN_CHAINS.difference(keep.get(table, ())).__contains__)
        )
        for table in (NAT, FILTER)
    }
    # Where iptables mode was here as well, its own clean-up takes the chains that both have.
    own_only = any(names.NODE_PORTS in found for found in tables.values())
    lines: list[str] = []
    removed: dict[str, int] = {}
    for table, found in tables.items():
        if not found.keys() & OWN_CHAINS:
            continue
        chains = [
            chain
            for chain in CHAINS[table]
            if chain in found and chain not in keep.get(table, ()) and (chain in OWN_CHAINS or not own_only)
        ]
        built_in = (rule for source in names.BUILT_IN[table] for rule in rules_in(found.get(source, b"")))
        jumps = [rule for rule in built_in if rule.rpartition("-j ")[2].strip() in chains]
        lines += [f"*{table}", *(f":{chain} - [0:0]" for chain in chains)]
        lines += [f"-D {rule.removeprefix('-A ')}" for rule in jumps]
        lines += [*(f"-X {chain}" for chain in chains), "COMMIT"]
        removed[table] = len(chains)
    if lines:
        tool.restore("\n".join(lines).encode() + b"\n")
    for table, count in removed.items():
        yield CleanupItem(
            "chains and the jumps to them", where=f"{tool.family.value} table {table}", count=count
        )


def _remove_servers() -> Iterator[CleanupItem]:
    sock = IpvsSocket()
    try:
        keys = [server.key for server in sock.services()]
        for key, reply in zip(keys, sock.apply(list(map(encode_service_removal, keys))), strict=True):
            if reply.errno not in (0, errno.ESRCH):
                raise kernel_error(reply.errno, f"remove virtual server {key}", reply.text)
        if keys:
            yield CleanupItem("virtual servers", count=len(keys))
    finally:
        sock.close()


def _remove_sets() -> Iterator[CleanupItem]:
    sock = IpsetSocket()
    try:
        present = sock.headers()
        ours = [header.name for family in Family for header in sets.headers(family) if header.name in present]
        for name in ours:
            try:
                sock.destroy(name)
            except KernelError as error:
                if error.errno != errno.ENOENT:
                    raise
        if ours:
            yield CleanupItem("ipsets", count=len(ours))
    finally:
        sock.close()


def _device_exists() -> bool:
    route = RouteSocket()
    try:
        return IPVS_DEVICE in route.links()
    finally:
        route.close()


def _remove_device() -> Iterator[CleanupItem]:
    route = RouteSocket()
    try:
        if route.delete_link(IPVS_DEVICE):
            yield CleanupItem("device", IPVS_DEVICE)
    finally:
        route.close()
