"""Removal of the table `kube-proxy` of both IP families, on request also of kube-proxy itself, and of a trace's leftovers."""

from __future__ import annotations

from collections.abc import Iterator

from pointsman.backends.contract import NOT_OURS, CleanupContext, CleanupItem, CleanupStatus
from pointsman.backends.netfilter.names import TRACE_TABLE
from pointsman.backends.nftables.check import format_owner, is_made_by_kube_proxy
from pointsman.backends.nftables.fields import find_traits
from pointsman.backends.nftables.reader import KernelTable, Reader
from pointsman.backends.nftables.schema import COMMENT_PREFIX, TABLE
from pointsman.errors import KernelError, NotSupported
from pointsman.kernel.nfnl import NftablesSocket
from pointsman.model.addresses import Family


def cleanup(cleaning: CleanupContext) -> Iterator[CleanupItem]:
    """Remove the tables of both families, also of one that is disabled by now. Can be repeated."""
    try:
        socket = NftablesSocket()
    except NotSupported:
        return
    try:
        for family in Family:
            try:
                table = Reader(socket, find_traits(family)).table()
            except NotSupported:
                return
            if table is not None:
                yield _remove_table(socket, family, table, cleaning)
            yield from _remove_trace(socket, family, cleaning)
    finally:
        socket.close()


def _remove_trace(socket: NftablesSocket, family: Family, cleaning: CleanupContext) -> Iterator[CleanupItem]:
    name = f"{find_traits(family).keyword} {TRACE_TABLE}"
    try:
        if socket.delete_table(find_traits(family).nfproto, TRACE_TABLE, dry_run=cleaning.dry_run):
            yield CleanupItem("table", name)
    except KernelError as error:
        yield CleanupItem("table", name, status=CleanupStatus.KEPT, why=f"a trace is running ({error})")


def _remove_table(
    socket: NftablesSocket, family: Family, table: KernelTable, cleaning: CleanupContext
) -> CleanupItem:
    traits = find_traits(family)
    name = f"{traits.keyword} {TABLE}"
    is_ours = table.head.comment.startswith(COMMENT_PREFIX) and not is_made_by_kube_proxy(table)
    if not is_ours and not cleaning.all_proxies:
        return CleanupItem("table", name, status=CleanupStatus.KEPT, why=NOT_OURS)
    if table.head.owner:
        return CleanupItem("table", name, status=CleanupStatus.FAILED, why=format_owner(table.head))
    try:
        socket.delete_table(traits.nfproto, TABLE, dry_run=cleaning.dry_run)
    except KernelError as error:
        return CleanupItem("table", name, status=CleanupStatus.FAILED, why=str(error))
    return CleanupItem("table", name)
