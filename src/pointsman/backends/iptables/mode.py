"""The `Mode` value of iptables mode."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial

from pointsman.backends.contract import KernelCounter, LoopbackNodePort, Mode, PacketQuirks, Setup
from pointsman.backends.iptables import static
from pointsman.backends.iptables.apply import ROUTE_LOCALNET, IptablesBackend
from pointsman.backends.iptables.cleanup import cleanup
from pointsman.backends.iptables.render import render
from pointsman.backends.iptables.static import INVALID_COUNTER, LOCALHOST_COUNTER
from pointsman.backends.netfilter.runners import (
    choose_runner,
    find_missing_programs,
    find_nft_ruleset,
    find_runners_in_use,
)
from pointsman.config.mode_table import IPTABLES
from pointsman.errors import KernelError
from pointsman.kernel import nfacct
from pointsman.kernel.sysctl import Sysctls
from pointsman.model.addresses import Family
from pointsman.model.balancing import Capabilities, Scheduler
from pointsman.model.node_context import resolve_node_port_addresses
from pointsman.obs import MetricGroup


def _find_loopback_denial(node_port: LoopbackNodePort) -> str:
    if len(node_port.address) != 4:
        return "iptables mode does not serve node ports on IPv6 loopback"
    if node_port.allowed and node_port.where.loopback:
        return ""
    return "node ports on loopback are switched off (iptables.localhostNodePorts or nodePortAddresses)"


def _allow_loopback_node_ports(setup: Setup, sysctls: Sysctls, families: Sequence[Family]) -> None:
    config = setup.config
    where = resolve_node_port_addresses(
        config.node_port_addresses, Family.IPV4, node_ips=(), local_addresses=()
    )
    if Family.IPV4 in families and config.iptables.localhost_node_ports and where.loopback:
        sysctls.ensure(ROUTE_LOCALNET, 1)


def _build_backend(setup: Setup, family: Family, sysctls: Sysctls) -> IptablesBackend:
    runner = choose_runner(family)
    return IptablesBackend(
        family,
        runner=runner,
        sysctls=sysctls,
        localhost_node_ports=setup.config.iptables.localhost_node_ports,
        ruleset=find_nft_ruleset(runner),
    )


def _read_packets(counter: str) -> int | None:
    """Return what a counter of nfacct has; None without one, so that there is no sample, as in kube-proxy."""
    with contextlib.suppress(KernelError):
        return nfacct.read_packets(counter)
    return None


_COUNTERS = (
    KernelCounter(
        "kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
        "[ALPHA] Packets dropped because conntrack called them INVALID",
        partial(_read_packets, INVALID_COUNTER),
    ),
    KernelCounter(
        "kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
        "[ALPHA] Packets accepted at node ports on loopback addresses",
        partial(_read_packets, LOCALHOST_COUNTER),
    ),
)


MODE = Mode(
    name=IPTABLES,
    preflight=lambda _setup, family: find_missing_programs(family),
    before_unprivileged=_allow_loopback_node_ports,
    backend=_build_backend,
    render=lambda setup, request: render(
        request, localhost_node_ports=setup.config.iptables.localhost_node_ports
    ),
    cleanup=lambda cleaning: cleanup(find_runners_in_use(cleaning.families), cleaning),
    chains=static.CHAINS,
    quirks=PacketQuirks(
        rejects_denied_when_empty=True, own_packets_leave=True, loopback_denial=_find_loopback_denial
    ),
    localhost_node_ports=lambda config: config.iptables.localhost_node_ports,
    compare_seconds=300.0,
    capabilities=Capabilities(schedulers=frozenset((Scheduler.RANDOM, Scheduler.WEIGHTED))),
    metrics=frozenset(
        (MetricGroup.FULL_AND_PARTIAL_SYNCS, MetricGroup.RESTORE_FAILURES, MetricGroup.IPTABLES_RULES)
    ),
    counters=_COUNTERS,
)
