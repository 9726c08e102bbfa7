"""What a changed configuration asks of a running proxy: little, a restart inside the process, or nothing.

Pure. A restart keeps the rules in the kernel; it only makes the process read everything again with the new settings.
Nothing ever needs the process itself to end.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from pointsman.config.document import plain_from_block, shown
from pointsman.config.types import KubeProxyConfiguration

_LIVE = (
    "logging",
    "healthzBindAddress",
    "metricsBindAddress",
    "bindAddressHardFail",
    "iptables.masqueradeBit",
    "iptables.masqueradeAll",
    "iptables.syncPeriod",
    "iptables.minSyncPeriod",
    "ipvs.syncPeriod",
    "ipvs.minSyncPeriod",
    "nftables",
    "detectLocalMode",
    "detectLocal",
    "clusterCIDR",
    "nodePortAddresses",
    "oomScoreAdj",
    "conntrack",
    "configSyncPeriod",
)
_WITHOUT_EFFECT = (
    "winkernel",
    "portRange",
    "windowsRunAsService",
    "showHiddenMetricsForVersion",
    "clientConnection.contentType",
    "clientConnection.acceptContentTypes",
)


class FieldChange(msgspec.Struct, frozen=True):
    """One field that differs, with both values as the user writes them."""

    path: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.path}: {self.old} -> {self.new}"


class ReloadPlan(msgspec.Struct, frozen=True):
    """The differences between two configurations, by what applying them takes."""

    live: tuple[FieldChange, ...] = ()
    restart: tuple[FieldChange, ...] = ()
    without_effect: tuple[FieldChange, ...] = ()

    @property
    def needs_restart(self) -> bool:
        return bool(self.restart)

    @property
    def is_empty(self) -> bool:
        return not (self.live or self.restart or self.without_effect)

    def touches(self, *prefixes: str) -> bool:
        """Whether a live change lies at or under one of these paths, such as `logging`."""
        return any(_under(change.path, prefixes) for change in self.live)


def reload_plan(old: KubeProxyConfiguration, new: KubeProxyConfiguration) -> ReloadPlan:
    """How to get from one effective configuration to another; both are validated."""
    live, restart, without_effect = [], [], []
    for change in _changes("", plain_from_block(old), plain_from_block(new)):
        if _under(change.path, _WITHOUT_EFFECT):
            without_effect.append(change)
        elif _under(change.path, _LIVE):
            live.append(change)
        else:
            restart.append(change)
    return ReloadPlan(tuple(live), tuple(restart), tuple(without_effect))


def _under(path: str, prefixes: tuple[str, ...]) -> bool:
    return any(path == prefix or path.startswith(f"{prefix}.") for prefix in prefixes)


def _changes(prefix: str, old: object, new: object) -> Iterator[FieldChange]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in dict.fromkeys((*old, *new)):
            path = f"{prefix}.{name}" if prefix else name
            yield from _changes(path, old.get(name), new.get(name))
    elif old != new:
        yield FieldChange(prefix, shown(old), shown(new))
