"""nftables mode as the rest of the program sees it: its `Mode`, rendering, and removal of its tables."""

from __future__ import annotations

from collections.abc import Iterator

from pointsman.backends.contract import (
    NOT_OURS,
    CleanupContext,
    CleanupItem,
    CleanupStatus,
    Counting,
    LoopbackNodePort,
    Mode,
    PacketQuirks,
    SyncRequest,
    compile_each,
)
from pointsman.backends.netfilter.names import TRACE_TABLE
from pointsman.backends.nftables.apply import NftablesBackend
from pointsman.backends.nftables.compile import compile_fragment
from pointsman.backends.nftables.contents import Contents
from pointsman.backends.nftables.counters import read_element_counts
from pointsman.backends.nftables.fields import find_traits
from pointsman.backends.nftables.migration import LOOPBACK_GATE, plan_migration
from pointsman.backends.nftables.preflight import preflight
from pointsman.backends.nftables.reader import KernelTable, Reader
from pointsman.backends.nftables.schema import COMMENT_PREFIX, TABLE
from pointsman.config.gates import FeatureGates
from pointsman.config.mode_table import NFTABLES
from pointsman.config.types import KubeProxyConfiguration
from pointsman.errors import KernelError, NotSupported
from pointsman.kernel.nfnl import CommitLog, NftablesSocket
from pointsman.model.addresses import Family
from pointsman.model.balancing import FULL_CAPABILITIES
from pointsman.model.plan import FrontendKind
from pointsman.model.service import Protocol
from pointsman.obs import MetricGroup

_COMMITS = CommitLog()
"""Of both IP families."""


def _allows_localhost_node_ports(config: KubeProxyConfiguration) -> bool:
    return FeatureGates(config.feature_gates).enabled(LOOPBACK_GATE)


def _find_loopback_denial(node_port: LoopbackNodePort) -> str:
    if node_port.allowed and node_port.where.loopback_requested and node_port.protocol is Protocol.TCP:
        return ""
    return (
        f"nftables mode serves node ports on loopback only for TCP, with the feature gate {LOOPBACK_GATE} "
        "and with localhost among the nodePortAddresses"
    )


def render(request: SyncRequest, *, counters: bool = False) -> str:
    """Return what a node would hold after a full sync of this request; the same for the same request."""
    contents = Contents(request.context, counters=counters)
    contents.load(
        compile_each(
            request.plans, lambda plan: compile_fragment(plan, request.context, counters=counters), {}
        )
    )
    return contents.render()


def clean_up(cleaning: CleanupContext) -> Iterator[CleanupItem]:
    """Remove the tables of both families, also of one that is disabled by now. Can be repeated."""
    try:
        socket = NftablesSocket()
    except NotSupported:
        return
    try:
        for family in Family:
            try:
                table = Reader(socket, find_traits(family)).read_table()
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
    is_ours = table.head.comment.startswith(COMMENT_PREFIX) and not table.is_made_by_kube_proxy
    if not is_ours and not cleaning.all_proxies:
        return CleanupItem("table", name, status=CleanupStatus.KEPT, why=NOT_OURS)
    if table.head.owner:
        return CleanupItem("table", name, status=CleanupStatus.FAILED, why=table.head.describe_owner())
    try:
        socket.delete_table(traits.nfproto, TABLE, dry_run=cleaning.dry_run)
    except KernelError as error:
        return CleanupItem("table", name, status=CleanupStatus.FAILED, why=str(error))
    return CleanupItem("table", name)


MODE = Mode(
    name=NFTABLES,
    preflight=lambda _setup, family: preflight(family),
    backend=lambda setup, family, _sysctls: NftablesBackend(
        family,
        service_metrics=setup.service_metrics,
        commits=_COMMITS,
    ),
    render=lambda setup, request: render(request, counters=setup.service_metrics),
    cleanup=clean_up,
    quirks=PacketQuirks(
        rejects_other_ports_of=frozenset((FrontendKind.CLUSTER_IP,)),
        drops_unallocated=True,
        usual_node_ports="the node's primary address",
        loopback_denial=_find_loopback_denial,
    ),
    localhost_node_ports=_allows_localhost_node_ports,
    migration=plan_migration,
    listens_on_loopback=True,
    drift_seconds=1.0,
    compare_seconds=1.0,
    capabilities=FULL_CAPABILITIES,
    counting=Counting(
        read_element_counts,
        limits="endpoints that have a chain of their own (session affinity) are not counted one by one: their shares are "
        "those of the active flows",
        missing="connections are counted only while the proxy runs with --service-metrics; without, those are shown that were tracked "
        "at a reading and not at the one before, so shorter ones are missed",
    ),
    metrics=frozenset((MetricGroup.FULL_AND_PARTIAL_SYNCS, MetricGroup.NFTABLES)),
)
