"""iptables mode as the rest of the program sees it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pointsman.backends.contract import Backend, Cleaning, Mode, Removed, Setup, SyncRequest
from pointsman.backends.iptables import packet_counters, static
from pointsman.backends.packet_quirks import LoopbackNodePort, PacketQuirks
from pointsman.config.mode_table import IPTABLES
from pointsman.obs.metric_groups import MetricGroup

if TYPE_CHECKING:
    from pointsman.config.types import KubeProxyConfiguration
    from pointsman.kernel.sysctl import Sysctls
    from pointsman.model.addresses import Family


def _preflight(_setup: Setup, family: Family) -> Sequence[str]:
    from pointsman.backends.netfilter.runners import missing_programs

    return missing_programs(family)


def _backend(setup: Setup, family: Family, sysctls: Sysctls) -> Backend:
    from pointsman.backends.iptables.apply import IptablesBackend
    from pointsman.backends.netfilter.runners import runner_for

    return IptablesBackend(
        family,
        runner=runner_for(family),
        sysctls=sysctls,
        localhost_node_ports=_localhost_node_ports(setup.config),
    )


def _render(setup: Setup, request: SyncRequest) -> str:
    from pointsman.backends.iptables.render import render

    return render(request, localhost_node_ports=_localhost_node_ports(setup.config))


def _cleanup(cleaning: Cleaning) -> Iterator[Removed]:
    from pointsman.backends.iptables.cleanup import cleanup
    from pointsman.backends.netfilter.runners import runners_in_use

    return cleanup(runners_in_use(cleaning.families), cleaning)


def _localhost_node_ports(config: KubeProxyConfiguration) -> bool:
    return config.iptables.localhost_node_ports


def _loopback_denial(asked: LoopbackNodePort) -> str:
    if len(asked.address) != 4:
        return "iptables mode does not serve node ports on IPv6 loopback"
    if asked.allowed and asked.where.loopback:
        return ""
    return "node ports on loopback are switched off (iptables.localhostNodePorts or nodePortAddresses)"


MODE = Mode(
    name=IPTABLES,
    preflight=_preflight,
    backend=_backend,
    render=_render,
    cleanup=_cleanup,
    chains=static.CHAINS,
    quirks=PacketQuirks(
        refuses_denied_when_empty=True, own_packets_leave=True, loopback_denial=_loopback_denial
    ),
    localhost_node_ports=_localhost_node_ports,
    metrics=frozenset(
        (MetricGroup.FULL_AND_PARTIAL_SYNCS, MetricGroup.RESTORE_FAILURES, MetricGroup.IPTABLES_RULES)
    ),
    counters=packet_counters.COUNTERS,
)
