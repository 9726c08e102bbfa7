"""nftables mode as the rest of the program sees it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pointsman.backends.contract import Backend, Cleaning, Mode, Removed, Setup, SyncRequest
from pointsman.backends.packet_quirks import LoopbackNodePort, PacketQuirks
from pointsman.config.gates import effective_gates
from pointsman.config.mode_table import NFTABLES
from pointsman.model.plan import FrontendKind
from pointsman.model.service import Protocol
from pointsman.obs.metric_groups import MetricGroup

if TYPE_CHECKING:
    from pointsman.config.types import KubeProxyConfiguration
    from pointsman.kernel.sysctl import Sysctls
    from pointsman.model.addresses import Family

LOCALHOST_GATE = "KubeProxyNFTablesLocalhostNodePorts"


def _preflight(_setup: Setup, family: Family) -> Sequence[str]:
    from pointsman.backends.nftables.preflight import preflight

    return preflight(family)


def _backend(setup: Setup, family: Family, _sysctls: Sysctls) -> Backend:
    from pointsman.backends.nftables.apply import NftablesBackend

    return NftablesBackend(
        family,
        service_metrics=setup.service_metrics,
        localhost_node_ports=_localhost_node_ports(setup.config),
    )


def _render(setup: Setup, request: SyncRequest) -> str:
    from pointsman.backends.nftables.render import render

    return render(request, counters=setup.service_metrics)


def _cleanup(cleaning: Cleaning) -> Iterator[Removed]:
    from pointsman.backends.nftables.cleanup import cleanup

    return cleanup(cleaning)


def _localhost_node_ports(config: KubeProxyConfiguration) -> bool:
    return effective_gates(config.feature_gates).enabled(LOCALHOST_GATE)


def _loopback_denial(asked: LoopbackNodePort) -> str:
    if asked.allowed and asked.where.loopback_asked and asked.protocol is Protocol.TCP:
        return ""
    return (
        f"nftables mode serves node ports on loopback only for TCP, with the feature gate {LOCALHOST_GATE} and with "
        "localhost among the nodePortAddresses"
    )


MODE = Mode(
    name=NFTABLES,
    preflight=_preflight,
    backend=_backend,
    render=_render,
    cleanup=_cleanup,
    quirks=PacketQuirks(
        refuses_other_ports_of=frozenset((FrontendKind.CLUSTER_IP,)),
        drops_unallocated=True,
        usual_node_ports="the node's primary address",
        loopback_denial=_loopback_denial,
    ),
    localhost_node_ports=_localhost_node_ports,
    drift_seconds=1.0,
    metrics=frozenset((MetricGroup.FULL_AND_PARTIAL_SYNCS, MetricGroup.NFTABLES)),
)
