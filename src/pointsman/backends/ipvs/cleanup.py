"""Removes everything that ipvs mode created: rules first, then virtual servers, sets and the dummy device.

Ours and kube-proxy's are alike but for the description of the device, so the device goes last. Unlike kube-proxy's clean-up it also removes the IPv6 sets.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterator, Mapping, Sequence

from pointsman.backends.contract import NOT_OURS, CleanupItem, CleanupStatus
from pointsman.backends.ipvs import sets
from pointsman.backends.ipvs.check import Excluded
from pointsman.backends.ipvs.rules import CHAINS
from pointsman.backends.netfilter import names
from pointsman.backends.netfilter.names import FILTER, NAT
from pointsman.backends.netfilter.rule_text import format_deletion, parse_chains, split_rules
from pointsman.backends.netfilter.runners import RuleTool, read_text_to_clean
from pointsman.errors import KernelError, NotSupported
from pointsman.kernel.ipset import IpsetSocket
from pointsman.kernel.ipvs import IpvsSocket, encode_service_removal
from pointsman.kernel.ipvs_objects import IPVS_DEVICE, IPVS_DEVICE_ALIAS
from pointsman.kernel.netlink import build_kernel_error
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


def cleanup(
    tools: Sequence[RuleTool],
    keep: Mapping[str, Collection[str]] = {},
    *,
    all_proxies: bool = True,
    dry_run: bool = False,
    excluded: Excluded = lambda _key: False,
) -> Iterator[CleanupItem]:
    """Remove everything except chains to `keep` and `excluded` virtual servers; can be repeated.

    Every step runs even if another one fails. Virtual servers are removed only where the dummy device shows that ipvs mode has run.
    """
    alias = _read_alias()
    if not all_proxies and alias != IPVS_DEVICE_ALIAS:
        if alias is not None:
            yield CleanupItem("device", IPVS_DEVICE, status=CleanupStatus.KEPT, why=NOT_OURS)
        return
    steps = [(f"{tool.family.value} rules", _remove_rules(tool, keep, dry_run=dry_run)) for tool in tools]
    if alias is not None:
        steps.append(("virtual servers", _remove_servers(excluded, dry_run=dry_run)))
    steps.append(("ipsets", _remove_sets(dry_run=dry_run)))
    if alias is not None:
        steps.append((IPVS_DEVICE, _remove_device(dry_run=dry_run)))
    for what, step in steps:
        try:
            yield from step
        except NotSupported:
            continue  # a kernel that lacks it holds nothing of it
        except KernelError as error:
            yield CleanupItem(what, status=CleanupStatus.FAILED, why=str(error))


def _remove_rules(
    tool: RuleTool, keep: Mapping[str, Collection[str]], *, dry_run: bool
) -> Iterator[CleanupItem]:
    tables = {
        table: parse_chains(
            read_text_to_clean(tool, table, OWN_CHAINS.difference(keep.get(table, ())).__contains__)
        )
        for table in (NAT, FILTER)
    }
    # Where iptables mode was here as well, its own clean-up takes the chains that both have.
    own_only = any(names.NODE_PORTS in found for found in tables.values())
    text = ""
    removed: dict[str, int] = {}
    for table, found in tables.items():
        if not found.keys() & OWN_CHAINS:
            continue
        chains = [
            chain
            for chain in CHAINS[table]
            if chain in found and chain not in keep.get(table, ()) and (chain in OWN_CHAINS or not own_only)
        ]
        built_in = (rule for source in names.BUILT_IN[table] for rule in split_rules(found.get(source, b"")))
        jumps = [rule for rule in built_in if rule.rpartition("-j ")[2].strip() in chains]
        text += format_deletion(table, chains, jumps)
        removed[table] = len(chains)
    if text and not dry_run:
        tool.restore(text.encode())
    for table, count in removed.items():
        yield CleanupItem(
            "chains and the jumps to them", where=f"{tool.family.value} table {table}", count=count
        )


def _remove_servers(excluded: Excluded, *, dry_run: bool) -> Iterator[CleanupItem]:
    with IpvsSocket() as sock:
        present = [server.key for server in sock.list_services()]
        keys = [key for key in present if not excluded(key)]
        removals = [] if dry_run else list(map(encode_service_removal, keys))
        for key, reply in zip(keys, sock.apply(removals), strict=not dry_run):
            if reply.errno not in (0, errno.ESRCH):
                raise build_kernel_error(reply.errno, f"remove virtual server {key}", reply.text)
        if keys:
            yield CleanupItem("virtual servers", count=len(keys))
        if len(present) > len(keys):
            count = len(present) - len(keys)
            yield CleanupItem(
                "virtual servers", status=CleanupStatus.KEPT, why="in ipvs.excludeCIDRs", count=count
            )


def _remove_sets(*, dry_run: bool) -> Iterator[CleanupItem]:
    with IpsetSocket() as sock:
        present = sock.list_headers()
        ours = [
            header.name
            for family in Family
            for header in sets.build_headers(family)
            if header.name in present
        ]
        kept = 0
        for name in () if dry_run else ours:
            try:
                sock.destroy(name)
            except KernelError as error:
                kept += 1
                yield CleanupItem("ipset", name, status=CleanupStatus.FAILED, why=str(error))
        if len(ours) > kept:
            yield CleanupItem("ipsets", count=len(ours) - kept)


def _read_alias() -> str | None:
    """Return the description of the device; None without a device."""
    with RouteSocket() as route:
        return next((link.alias for link in route.list_links() if link.name == IPVS_DEVICE), None)


def _remove_device(*, dry_run: bool) -> Iterator[CleanupItem]:
    with RouteSocket() as route:
        if dry_run or route.delete_link(IPVS_DEVICE):
            yield CleanupItem("device", IPVS_DEVICE)
