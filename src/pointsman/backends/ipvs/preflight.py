"""What ipvs mode needs before its first sync: kernel features, sysctls and timeouts, checked and set once per process."""

from __future__ import annotations

import os
from collections.abc import Sequence

from pointsman.backends.contract import Setup
from pointsman.backends.ipvs import sets
from pointsman.backends.netfilter.runners import missing_programs
from pointsman.conditions import Condition
from pointsman.kernel.ipset import IpsetSocket
from pointsman.kernel.ipvs import IpvsSocket
from pointsman.kernel.sysctl import Sysctls, parse_kernel_version
from pointsman.model.addresses import Family
from pointsman.model.balancing import IPVS_SCHEDULERS

_REUSE_MODE_APPEARED = (4, 1)
_REUSE_MODE_HARMLESS = (5, 9)


def scheduler_of(setup: Setup) -> str:
    """Return the configured scheduler, or kube-proxy's default."""
    return setup.config.ipvs.scheduler or "rr"


def preflight(setup: Setup, family: Family) -> list[str]:
    """Return what is missing; raises NotSupported, naming the kernel option, without IPVS or a type of ipset."""
    scheduler = scheduler_of(setup)
    if scheduler not in IPVS_SCHEDULERS:
        return [f"ipvs.scheduler {scheduler!r} is unknown; use one of {', '.join(sorted(IPVS_SCHEDULERS))}"]
    ipvs = IpvsSocket()
    try:
        if not ipvs.has_scheduler(scheduler):
            return [f"ipvs.scheduler {scheduler}: this kernel lacks it; try: modprobe ip_vs_{scheduler}"]
    finally:
        ipvs.close()
    ipset = IpsetSocket()
    try:
        ipset.check({(header.type, header.family) for header in sets.headers(family)})
    finally:
        ipset.close()
    return missing_programs(family)


def prepare(setup: Setup, sysctls: Sysctls, _families: Sequence[Family]) -> list[Condition]:
    """Set sysctls and timeouts; a timeout of 0 keeps the kernel's value."""
    ipvs = setup.config.ipvs
    wanted = wanted_sysctls(os.uname().release, strict_arp=ipvs.strict_arp)
    conditions = [found for name, value in wanted.items() if (found := sysctls.ensure(name, value))]
    if sysctls.read_int("net/bridge/bridge-nf-call-iptables") == 0:
        message = (
            "net/bridge/bridge-nf-call-iptables is 0: pods on a Linux bridge reach Services without our rules"
        )
        remedy = "sysctl -w net.bridge.bridge-nf-call-iptables=1"
        conditions.append(Condition.false("BridgeNetfilter", "Disabled", message, remedy))
    timeouts = [int(t.total_seconds()) for t in (ipvs.tcp_timeout, ipvs.tcp_fin_timeout, ipvs.udp_timeout)]
    if any(timeouts):
        sock = IpvsSocket()
        try:
            sock.set_timeouts(*timeouts)
        finally:
            sock.close()
    return conditions


def wanted_sysctls(kernel_release: str, *, strict_arp: bool) -> dict[str, int]:
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
