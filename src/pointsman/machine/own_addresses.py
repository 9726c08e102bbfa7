"""The node's own addresses from the kernel, read again when it says that they changed."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path

from pointsman.errors import KernelError
from pointsman.kernel.ipvs_objects import IPVS_DEVICE
from pointsman.kernel.rtnl import AddressMonitor, local_addresses
from pointsman.model.addresses import Family
from pointsman.obs.log import get_log

_DEBOUNCE_SECONDS = 0.2
"""Addresses change in bursts (an interface going up); they are read once after each."""

_log = get_log(__name__)


class LinuxMachine:
    """The machine this process runs on, in its current network namespace."""

    def local_addresses(self, family: Family) -> tuple[bytes, ...]:
        try:
            return local_addresses(family, exclude=(IPVS_DEVICE,))
        except KernelError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.EAFNOSUPPORT):
                return ()
            raise

    async def address_changes(self) -> AsyncIterator[None]:
        try:
            monitor = AddressMonitor()
        except KernelError as error:
            _log.warning("Address changes will not be noticed until the next restart", err=error)
            return
        changed = asyncio.Event()
        loop = asyncio.get_running_loop()

        def readable() -> None:
            if monitor.drain():
                changed.set()

        loop.add_reader(monitor.fileno(), readable)
        try:
            while True:
                await changed.wait()
                await asyncio.sleep(_DEBOUNCE_SECONDS)
                changed.clear()
                yield
        finally:
            loop.remove_reader(monitor.fileno())
            monitor.close()


def detect_families() -> tuple[Family, ...]:
    """Return the IP families of this network namespace."""
    disabled = Path("/proc/sys/net/ipv6/conf/all/disable_ipv6")
    try:
        has_ipv6 = Path("/proc/net/if_inet6").exists() and disabled.read_text().strip() != "1"
    except OSError:
        has_ipv6 = False
    return (Family.IPV4, Family.IPV6) if has_ipv6 else (Family.IPV4,)
