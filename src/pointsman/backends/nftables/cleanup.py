"""Removal of the table `kube-proxy` of both IP families, also of kube-proxy itself, and of a trace's leftovers."""

from __future__ import annotations

from collections.abc import Iterator

from pointsman.backends.contract import CleanupContext, CleanupItem, CleanupStatus
from pointsman.backends.netfilter.names import TRACE_TABLE
from pointsman.backends.nftables.check import format_owner
from pointsman.backends.nftables.family_traits import FamilyTraits, traits_of
from pointsman.backends.nftables.reader import Reader, TableHead
from pointsman.backends.nftables.schema import TABLE
from pointsman.errors import KernelError, NotSupported
from pointsman.kernel.nfnl import NftablesSocket
from pointsman.model.addresses import Family


def cleanup(_cleaning: CleanupContext) -> Iterator[CleanupItem]:
    """Remove the tables of both families, also of one that is disabled by now. Can be repeated."""
    try:
        socket = NftablesSocket()
    except NotSupported:
        return
    try:
        for family in Family:
            traits = traits_of(family)
            try:
                head = Reader(socket, traits).head()
            except NotSupported:
                return
            if head is not None:
                yield _remove_table(socket, traits, head)
            yield from _remove_trace(socket, family)
    finally:
        socket.close()


def _remove_trace(socket: NftablesSocket, family: Family) -> Iterator[CleanupItem]:
    name = f"{traits_of(family).keyword} {TRACE_TABLE}"
    try:
        if socket.delete_table(traits_of(family).nfproto, TRACE_TABLE):
            yield CleanupItem("table", name)
    except KernelError as error:
        yield CleanupItem("table", name, status=CleanupStatus.KEPT, why=f"a trace is running ({error})")


def _remove_table(socket: NftablesSocket, traits: FamilyTraits, head: TableHead) -> CleanupItem:
    name = f"{traits.keyword} {TABLE}"
    if head.owner:
        return CleanupItem("table", name, status=CleanupStatus.FAILED, why=format_owner(head))
    try:
        socket.delete_table(traits.nfproto, TABLE)
    except KernelError as error:
        return CleanupItem("table", name, status=CleanupStatus.FAILED, why=str(error))
    return CleanupItem("table", name)
