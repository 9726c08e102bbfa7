"""ipvs mode as the rest of the program sees it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pointsman.backends.contract import (
    Announcement,
    Backend,
    Cleaning,
    Mode,
    Removed,
    Setup,
    SyncRequest,
)
from pointsman.backends.ipvs.rules import CHAINS
from pointsman.backends.packet_quirks import PacketQuirks
from pointsman.config.mode_table import IPVS
from pointsman.model.addresses import cidr_from_text
from pointsman.model.plan import FrontendKind
from pointsman.obs.metric_groups import MetricGroup

if TYPE_CHECKING:
    from pointsman.kernel.sysctl import Degraded, Sysctls
    from pointsman.model.addresses import Family

_SCHEDULER = "rr"
"""kube-proxy's default."""


def _scheduler(setup: Setup) -> str:
    return setup.config.ipvs.scheduler or _SCHEDULER


def _preflight(setup: Setup, family: Family) -> Sequence[str]:
    from pointsman.backends.ipvs.preflight import check
    from pointsman.backends.netfilter.runners import missing_programs

    check(_scheduler(setup), (family,))
    return missing_programs(family)


def _prepare(setup: Setup, sysctls: Sysctls, _families: Sequence[Family]) -> Sequence[Degraded]:
    from pointsman.backends.ipvs.preflight import prepare

    ipvs = setup.config.ipvs
    return prepare(
        sysctls,
        strict_arp=ipvs.strict_arp,
        tcp_timeout=int(ipvs.tcp_timeout.total_seconds()),
        tcp_fin_timeout=int(ipvs.tcp_fin_timeout.total_seconds()),
        udp_timeout=int(ipvs.udp_timeout.total_seconds()),
    )


def _backend(setup: Setup, family: Family, _sysctls: Sysctls) -> Backend:
    from pointsman.backends.ipvs.apply import IpvsBackend, IpvsSettings
    from pointsman.backends.netfilter.runners import runner_for

    runner = runner_for(family)
    ranges = (cidr_from_text(text) for text in setup.config.ipvs.exclude_cidrs)
    settings = IpvsSettings(
        scheduler=_scheduler(setup), exclude_cidrs=tuple(cidr for cidr in ranges if cidr is not None)
    )
    return IpvsBackend(family, runner, settings, random_fully=runner.features.random_fully)


def _render(setup: Setup, request: SyncRequest) -> str:
    from pointsman.backends.ipvs.render import render

    return render(request, _scheduler(setup))


def _cleanup(cleaning: Cleaning) -> Iterator[Removed]:
    from pointsman.backends.ipvs.cleanup import cleanup
    from pointsman.backends.netfilter.runners import runners_in_use

    return cleanup(runners_in_use(cleaning.families), cleaning.keep)


MODE = Mode(
    name=IPVS,
    preflight=_preflight,
    prepare=_prepare,
    backend=_backend,
    render=_render,
    cleanup=_cleanup,
    chains=CHAINS,
    quirks=PacketQuirks(
        local_falls_back=True, holds_addresses=True, refuses_other_ports_of=frozenset(FrontendKind)
    ),
    localhost_node_ports=lambda _config: False,
    uses_local_addresses=True,
    metrics=frozenset((MetricGroup.RESTORE_FAILURES,)),
    announcements=(
        Announcement(
            "IPVSDeprecation",
            "kube-proxy has deprecated mode ipvs; Pointsman keeps it. Consider nftables for new nodes.",
        ),
    ),
)
