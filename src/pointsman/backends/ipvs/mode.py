"""The `Mode` value of ipvs mode, and what it needs once per process: kernel features, sysctls and timeouts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from pointsman.backends.contract import Announcement, Count, Counting, Mode, PacketQuirks, Setup
from pointsman.backends.ipvs import sets
from pointsman.backends.ipvs.apply import IpvsBackend, IpvsSettings
from pointsman.backends.ipvs.cleanup import cleanup
from pointsman.backends.ipvs.render import render
from pointsman.backends.ipvs.rules import CHAINS
from pointsman.backends.netfilter.runners import (
    choose_runner,
    find_missing_programs,
    find_nft_ruleset,
    find_runners_in_use,
)
from pointsman.config.mode_table import IPVS
from pointsman.kernel.ipset import IpsetSocket
from pointsman.kernel.ipvs import IpvsSocket
from pointsman.kernel.sysctl import Sysctls, parse_kernel_version
from pointsman.model.addresses import Cidr, Family, cidr_from_text
from pointsman.model.balancing import IPVS_SCHEDULERS, Capabilities, Scheduler
from pointsman.model.plan import FrontendKind
from pointsman.obs import MetricGroup

_REUSE_MODE_APPEARED = (4, 1)
_REUSE_MODE_HARMLESS = (5, 9)


def find_scheduler(setup: Setup) -> str:
    """Return the configured scheduler, or kube-proxy's default."""
    return setup.config.ipvs.scheduler or "rr"


def preflight(setup: Setup, family: Family) -> list[str]:
    """Return what is missing; raises NotSupported, naming the kernel option, without IPVS or a type of ipset."""
    scheduler = find_scheduler(setup)
    if scheduler not in IPVS_SCHEDULERS:
        return [f"ipvs.scheduler {scheduler!r} is unknown; use one of {', '.join(sorted(IPVS_SCHEDULERS))}"]
    with IpvsSocket() as ipvs:
        if not ipvs.has_scheduler(scheduler):
            return [f"ipvs.scheduler {scheduler}: this kernel lacks it; try: modprobe ip_vs_{scheduler}"]
    with IpsetSocket() as ipset:
        ipset.check({(header.type, header.family) for header in sets.build_headers(family)})
    return find_missing_programs(family)


def prepare(setup: Setup, sysctls: Sysctls, _families: Sequence[Family]) -> None:
    """Set sysctls and timeouts; a timeout of 0 keeps the kernel's value."""
    ipvs = setup.config.ipvs
    for name, value in compute_sysctls(os.uname().release, strict_arp=ipvs.strict_arp).items():
        sysctls.ensure(name, value)
    timeouts = [int(t.total_seconds()) for t in (ipvs.tcp_timeout, ipvs.tcp_fin_timeout, ipvs.udp_timeout)]
    if any(timeouts):
        with IpvsSocket() as sock:
            sock.set_timeouts(*timeouts)


def compute_sysctls(kernel_release: str, *, strict_arp: bool) -> dict[str, int]:
    """Return the sysctls and values for this kernel.

    conn_reuse_mode 0 keeps early kernels from delaying reused ports by a second, at the price of sending them to
    dead real servers; from 5.9 on there is no delay and the default is right (k8s 93297).
    """
    wanted = {
        "net/ipv4/vs/conntrack": 1,
        "net/ipv4/vs/expire_nodest_conn": 1,
        "net/ipv4/vs/expire_quiescent_template": 1,
        "net/ipv4/ip_forward": 1,
    }
    if _REUSE_MODE_APPEARED <= parse_kernel_version(kernel_release) < _REUSE_MODE_HARMLESS:
        wanted["net/ipv4/vs/conn_reuse_mode"] = 0
    if strict_arp:
        wanted["net/ipv4/conf/all/arp_ignore"] = 1
        wanted["net/ipv4/conf/all/arp_announce"] = 2
    return wanted


def _parse_cidrs(texts: Iterable[str]) -> tuple[Cidr, ...]:
    return tuple(cidr for text in texts if (cidr := cidr_from_text(text)) is not None)


def _build_backend(setup: Setup, family: Family, _sysctls: Sysctls) -> IpvsBackend:
    runner = choose_runner(family)
    settings = IpvsSettings(
        scheduler=find_scheduler(setup), exclude_cidrs=_parse_cidrs(setup.config.ipvs.exclude_cidrs)
    )
    return IpvsBackend(
        family, runner, settings, random_fully=runner.features.random_fully, ruleset=find_nft_ruleset(runner)
    )


def count_connections(family: Family) -> Sequence[Count]:
    """Return the connections that the virtual servers of a family counted; raises KernelError."""
    with IpvsSocket() as socket:
        return [
            Count(
                server.key.protocol,
                server.key.address,
                server.key.port,
                counted.connections,
                bytes=counted.bytes_in + counted.bytes_out,
            )
            for server, counted in socket.list_services().items()
            if len(server.key.address) == family.address_length
        ]


MODE = Mode(
    name=IPVS,
    preflight=preflight,
    prepare=prepare,
    backend=_build_backend,
    render=lambda setup, request: render(request, find_scheduler(setup)),
    cleanup=lambda cleaning: cleanup(
        find_runners_in_use(cleaning.families),
        cleaning.keep,
        all_proxies=cleaning.all_proxies,
        dry_run=cleaning.dry_run,
        excluded=IpvsSettings(exclude_cidrs=_parse_cidrs(cleaning.exclude_cidrs)).is_excluded,
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
