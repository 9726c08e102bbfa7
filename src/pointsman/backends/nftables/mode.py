"""nftables mode as the rest of the program sees it."""

from __future__ import annotations

from pointsman.backends.contract import (
    Counting,
    LoopbackNodePort,
    Mode,
    PacketQuirks,
    SyncRequest,
    compile_each,
)
from pointsman.backends.nftables.apply import NftablesBackend
from pointsman.backends.nftables.cleanup import cleanup
from pointsman.backends.nftables.compile import compile_fragment
from pointsman.backends.nftables.contents import Contents
from pointsman.backends.nftables.counters import read_element_counts
from pointsman.backends.nftables.migration import LOOPBACK_GATE, plan_migration
from pointsman.backends.nftables.preflight import preflight
from pointsman.config.gates import FeatureGates
from pointsman.config.mode_table import NFTABLES
from pointsman.config.types import KubeProxyConfiguration
from pointsman.kernel.nfnl import CommitLog
from pointsman.model.balancing import FULL_CAPABILITIES
from pointsman.model.plan import FrontendKind
from pointsman.model.service import Protocol
from pointsman.obs import MetricGroup

_COMMITS = CommitLog()
"""Of both IP families."""


def _localhost_node_ports(config: KubeProxyConfiguration) -> bool:
    return FeatureGates(config.feature_gates).enabled(LOOPBACK_GATE)


def _loopback_denial(asked: LoopbackNodePort) -> str:
    if asked.allowed and asked.where.loopback_requested and asked.protocol is Protocol.TCP:
        return ""
    return (
        f"nftables mode serves node ports on loopback only for TCP, with the feature gate {LOOPBACK_GATE} "
        "and with localhost among the nodePortAddresses"
    )


def render(request: SyncRequest, *, counters: bool = False) -> str:
    """What a node would hold after a full sync of this request; the same for the same request."""
    contents = Contents(request.context, counters=counters)
    contents.load(
        compile_each(
            request.plans, lambda plan: compile_fragment(plan, request.context, counters=counters), {}
        )
    )
    return contents.text()


MODE = Mode(
    name=NFTABLES,
    preflight=lambda _setup, family: preflight(family),
    backend=lambda setup, family, _sysctls: NftablesBackend(
        family,
        service_metrics=setup.service_metrics,
        commits=_COMMITS,
    ),
    render=lambda setup, request: render(request, counters=setup.service_metrics),
    cleanup=cleanup,
    quirks=PacketQuirks(
        rejects_other_ports_of=frozenset((FrontendKind.CLUSTER_IP,)),
        drops_unallocated=True,
        usual_node_ports="the node's primary address",
        loopback_denial=_loopback_denial,
    ),
    localhost_node_ports=_localhost_node_ports,
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
