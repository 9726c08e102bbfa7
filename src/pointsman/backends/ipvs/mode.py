"""The `Mode` value of ipvs mode."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from pointsman.backends.contract import Announcement, Count, Counting, Mode, Setup
from pointsman.backends.ipvs.apply import IpvsBackend, IpvsSettings
from pointsman.backends.ipvs.cleanup import cleanup
from pointsman.backends.ipvs.preflight import preflight, prepare, scheduler_of
from pointsman.backends.ipvs.render import render
from pointsman.backends.ipvs.rules import CHAINS
from pointsman.backends.netfilter.runners import nft_ruleset, runner_for, runners_in_use
from pointsman.backends.packet_quirks import PacketQuirks
from pointsman.config.mode_table import IPVS
from pointsman.kernel.ipvs import IpvsSocket
from pointsman.kernel.sysctl import Sysctls
from pointsman.model.addresses import Family, cidr_from_text
from pointsman.model.balancing import Capabilities, Scheduler
from pointsman.model.plan import FrontendKind
from pointsman.obs import MetricGroup


def _backend(setup: Setup, family: Family, _sysctls: Sysctls) -> IpvsBackend:
    runner = runner_for(family)
    ranges = (cidr_from_text(text) for text in setup.config.ipvs.exclude_cidrs)
    settings = IpvsSettings(
        scheduler=scheduler_of(setup), exclude_cidrs=tuple(cidr for cidr in ranges if cidr is not None)
    )
    return IpvsBackend(
        family, runner, settings, random_fully=runner.features.random_fully, ruleset=nft_ruleset(runner)
    )


def count_connections(family: Family) -> Sequence[Count]:
    """Return the connections that the virtual servers of a family counted; raises KernelError."""
    with contextlib.closing(IpvsSocket()) as socket:
        return [
            Count(server.key.protocol, server.key.address, server.key.port, counted.connections)
            for server, counted in socket.services().items()
            if len(server.key.address) == family.address_length
        ]


MODE = Mode(
    name=IPVS,
    preflight=preflight,
    prepare=prepare,
    backend=_backend,
    render=lambda setup, request: render(request, scheduler_of(setup)),
    cleanup=lambda cleaning: cleanup(
        runners_in_use(cleaning.families),
        cleaning.keep,
        all_proxies=cleaning.all_proxies,
        dry_run=cleaning.dry_run,
    ),
    chains=CHAINS,
    quirks=PacketQuirks(
        local_falls_back=True,
        holds_addresses=True,
        rejects_other_ports_of=frozenset(FrontendKind),
        untraceable="IPVS chooses the endpoint itself, between the hooks input and output; how cannot be followed",
    ),
    localhost_node_ports=lambda _config: False,
    compare_seconds=300.0,
    capabilities=Capabilities(
        schedulers=frozenset(Scheduler),
        has_default_scheduler=True,
        limits_all_frontends=False,
        uses_local_addresses=True,
        resets_need_loose_tracking=False,
        counts_services=True,
    ),
    counting=Counting(
        count_connections,
        limits="connections are counted per virtual server, not per endpoint; shares of endpoints are those of tracked flows",
    ),
    metrics=frozenset((MetricGroup.RESTORE_FAILURES,)),
    announcements=(
        Announcement(
            "IPVSDeprecation",
            "kube-proxy has deprecated mode ipvs; Pointsman keeps it. Consider nftables for new nodes.",
        ),
    ),
)
