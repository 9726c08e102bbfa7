"""What ipvs mode needs before its first sync: kernel features, sysctls, timeouts; checked and set once per process."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Protocol

from pointsman.backends.ipvs import sets
from pointsman.backends.ipvs.schedulers import KNOWN
from pointsman.errors import NotSupported
from pointsman.kernel.ipset import IpsetSocket
from pointsman.kernel.ipvs import IpvsSocket
from pointsman.kernel.release import kernel_version
from pointsman.kernel.sysctl import Degraded
from pointsman.model.addresses import Family

_REUSE_MODE_APPEARED = (4, 1)
_REUSE_MODE_HARMLESS = (5, 9)


class SysctlTool(Protocol):
    """What is needed of `kernel.sysctl.Sysctls`."""

    def read_int(self, name: str) -> int | None:
        """The value; None when there is no such setting."""

    def ensure(self, name: str, value: int | str) -> Degraded | None:
        """Make the setting have this value; an explanation when that is impossible."""


def prepare(
    sysctls: SysctlTool,
    *,
    strict_arp: bool = False,
    tcp_timeout: int = 0,
    tcp_fin_timeout: int = 0,
    udp_timeout: int = 0,
    kernel_release: str = "",
) -> list[Degraded]:
    """Set the kernel up, which `check` found able; says what is degraded.

    Timeouts are seconds; 0 leaves the kernel's value.
    """
    wanted = wanted_sysctls(kernel_release or os.uname().release, strict_arp=strict_arp)
    degraded = [found for name, value in wanted.items() if (found := sysctls.ensure(name, value))]
    if sysctls.read_int("net/bridge/bridge-nf-call-iptables") == 0:
        message = "net/bridge/bridge-nf-call-iptables is 0: pods on a Linux bridge reach services without our rules; set it to 1"
        degraded.append(Degraded("bridge-nf-call-iptables", message))
    if tcp_timeout or tcp_fin_timeout or udp_timeout:
        ipvs = IpvsSocket()
        try:
            ipvs.set_timeouts(tcp_timeout, tcp_fin_timeout, udp_timeout)
        finally:
            ipvs.close()
    return degraded


def check(scheduler: str, families: Collection[Family] = (Family.IPV4, Family.IPV6)) -> None:
    """Raise NotSupported, naming what is missing, unless this kernel has IPVS, the scheduler and every ipset type."""
    if scheduler not in KNOWN:
        raise NotSupported(f"ipvs.scheduler {scheduler!r} is unknown; use one of {', '.join(sorted(KNOWN))}")
    ipvs = IpvsSocket()
    try:
        if not ipvs.has_scheduler(scheduler):
            raise NotSupported(
                f"ipvs.scheduler {scheduler}: this kernel lacks it; try: modprobe ip_vs_{scheduler}"
            )
    finally:
        ipvs.close()
    ipset = IpsetSocket()
    try:
        ipset.check({(header.type, header.family) for family in families for header in sets.headers(family)})
    finally:
        ipset.close()


def wanted_sysctls(kernel_release: str, *, strict_arp: bool) -> dict[str, int]:
    """Settings and values for this kernel.

    conn_reuse_mode 0 keeps early kernels from delaying reused ports by a second, at the price of sending them to
    dead real servers; from 5.9 on the delay is gone and the default is right (k8s 93297).
    """
    wanted = {
        "net/ipv4/vs/conntrack": 1,
        "net/ipv4/vs/expire_nodest_conn": 1,
        "net/ipv4/vs/expire_quiescent_template": 1,
        "net/ipv4/ip_forward": 1,
    }
    if _REUSE_MODE_APPEARED <= kernel_version(kernel_release) < _REUSE_MODE_HARMLESS:
        wanted["net/ipv4/vs/conn_reuse_mode"] = 0
    if strict_arp:
        wanted["net/ipv4/conf/all/arp_ignore"] = 1
        wanted["net/ipv4/conf/all/arp_announce"] = 2
    return wanted
