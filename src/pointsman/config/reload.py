"""What to do about a changed configuration: nothing, change the running proxy, start a new one, or reject it.

Pure: only a decision. A new proxy starts inside this process and finds the old rules in the kernel; no change needs
the process itself to end.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from pointsman.config.document import format_value, plain_from_block
from pointsman.config.options import RunOptions
from pointsman.errors import ConfigError

LIVE_FIELDS = (
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
)
FIELDS_WITHOUT_EFFECT = (
    "configSyncPeriod",
    "winkernel",
    "portRange",
    "windowsRunAsService",
    "showHiddenMetricsForVersion",
)
"""They exist for the sake of kube-proxy's files."""


class FieldChange(msgspec.Struct, frozen=True):
    """One field that differs, with both values as the user writes them."""

    path: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.path}: {self.old} -> {self.new}"


class NoChange(msgspec.Struct, frozen=True):
    """The effective configuration is the same."""

    options: RunOptions


class Live(msgspec.Struct, frozen=True):
    """Every change can be applied while the proxy runs."""

    options: RunOptions
    changes: tuple[FieldChange, ...]
    """Without the fields that do nothing here."""

    def touches(self, *prefixes: str) -> bool:
        """Return whether a change lies at or under one of these paths, such as `logging`."""
        return any(_is_under(change.path, prefixes) for change in self.changes)


class Restart(msgspec.Struct, frozen=True):
    """Some change needs a new proxy inside this process."""

    options: RunOptions
    changes: tuple[FieldChange, ...]
    """Those that do."""


class Rejected(msgspec.Struct, frozen=True):
    """The configuration cannot be used; the old one stays."""

    reason: str


Decision = NoChange | Live | Restart | Rejected


def decide(running: RunOptions, found: RunOptions | ConfigError) -> Decision:
    """Decide how to get from the running options to those that were read."""
    if isinstance(found, ConfigError):
        return Rejected(str(found))
    changes = list(_find_changes("", plain_from_block(running.config), plain_from_block(found.config)))
    live = tuple(change for change in changes if _is_under(change.path, LIVE_FIELDS))
    restart = tuple(one for one in changes if not _is_under(one.path, LIVE_FIELDS + FIELDS_WITHOUT_EFFECT))
    if restart:
        return Restart(found, restart)
    return Live(found, live) if changes else NoChange(found)


def _is_under(path: str, prefixes: tuple[str, ...]) -> bool:
    return any(path == prefix or path.startswith(f"{prefix}.") for prefix in prefixes)


def _find_changes(prefix: str, old: object, new: object) -> Iterator[FieldChange]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in dict.fromkeys((*old, *new)):
            path = f"{prefix}.{name}" if prefix else name
            yield from _find_changes(path, old.get(name), new.get(name))
    elif old != new:
        yield FieldChange(prefix, format_value(old), format_value(new))
