"""Settings of the host that kube-proxy makes at start: conntrack limits and timeouts, and its own OOM score.

None of them is needed for packets to flow, so none is fatal: what cannot be set is returned as a condition.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

import msgspec

from pointsman.conditions import Condition
from pointsman.config.types import Conntrack
from pointsman.kernel.sysctl import Sysctls

CONNTRACK_MAX_LIMIT: Final = 1_048_576
_HASHSIZE: Final = "/sys/module/nf_conntrack/parameters/hashsize"
_PREFIX: Final = "net/netfilter/nf_conntrack_"
_TABLE_SIZE: Final = f"{_PREFIX}max"
LOOSE_TRACKING: Final = f"{_PREFIX}tcp_loose"
"""Whether conntrack picks up TCP connections mid-stream."""


class HostReport(msgspec.Struct, frozen=True):
    """Settings that were applied, and conditions for those that could not be."""

    applied: Sequence[str]
    """`name=value` of every setting that now has its configured value."""
    conditions: Sequence[Condition]


def compute_conntrack_max(max_per_core: int, minimum: int, cores: int) -> int:
    """Return the table size to set, 0 to leave it unchanged; the limit applies to the scaled value only."""
    if max_per_core <= 0:
        return 0
    scaled = max_per_core * cores
    if scaled > CONNTRACK_MAX_LIMIT:
        return CONNTRACK_MAX_LIMIT
    return max(scaled, minimum)


def count_cores(root: Path = Path("/")) -> int:
    """Return the CPUs online in the machine, not those of this process: the conntrack table is the machine's."""
    try:
        ranges = (root / "sys/devices/system/cpu/online").read_text().strip().split(",")
        spans = [part.partition("-") for part in ranges]
        return sum(int(last or first) - int(first) + 1 for first, _, last in spans)
    except (OSError, ValueError):
        return os.cpu_count() or 1


def compute_conntrack_targets(settings: Conntrack, cores: int) -> dict[str, int]:
    """Return the values of all settings that the configuration does not leave unchanged. Pure."""
    targets: dict[str, int] = {}
    maximum = compute_conntrack_max(settings.max_per_core, settings.min, cores)
    if maximum:
        targets[_TABLE_SIZE] = maximum
    for name, timeout in (
        ("tcp_timeout_established", settings.tcp_established_timeout),
        ("tcp_timeout_close_wait", settings.tcp_close_wait_timeout),
        ("udp_timeout", settings.udp_timeout),
        ("udp_timeout_stream", settings.udp_stream_timeout),
    ):
        if timeout > timedelta(0):
            targets[f"{_PREFIX}{name}"] = int(timeout.total_seconds())
    if settings.tcp_be_liberal:
        targets[f"{_PREFIX}tcp_be_liberal"] = 1
    return targets


def apply_conntrack(settings: Conntrack, sysctls: Sysctls, cores: int) -> HostReport:
    """Set conntrack limits and timeouts. The hash table only grows: shrinking would slow other users down.

    A node that is a container shares the table with its host and may not resize it; a larger table is fine, too.
    """
    applied: list[str] = []
    conditions: list[Condition] = []

    def ensure(name: str, value: int) -> bool:
        problem = sysctls.ensure(name, value)
        if problem is None:
            applied.append(f"{name}={value}")
        elif name != _TABLE_SIZE or (sysctls.read_int(name) or 0) < value:
            conditions.append(problem)
        return problem is None

    for name, value in compute_conntrack_targets(settings, cores).items():
        is_set = ensure(name, value)
        if name == _TABLE_SIZE and is_set and (sysctls.read_int(_HASHSIZE) or 0) < value // 4:
            ensure(_HASHSIZE, value // 4)
    return HostReport(applied, conditions)


def apply_oom_score(score: int, root: Path = Path("/")) -> HostReport:
    """Make the kernel kill other processes first when memory runs out.

    Lowering the score needs CAP_SYS_RESOURCE, which a pod should not have: there the kubelet decides (-997 for node-critical
    pods, 0 where it may not lower scores itself). Only a positive or unknown score becomes a condition.
    """
    path = root / "proc/self/oom_score_adj"
    found = "unknown"
    try:
        found = path.read_text().strip()
        if found != str(score):
            path.write_text(str(score))
    except OSError as error:
        if found.startswith(("-", "0")):
            return HostReport([], [])
        message = (
            f"cannot set oom_score_adj to {score} ({error.strerror}); it is {found}, so the kernel kills this process before "
            "others when memory runs out"
        )
        remedy = "give the pod priorityClassName system-node-critical, or the unit OOMScoreAdjust"
        return HostReport([], [Condition.false("OOMScore", "NotPermitted", message, remedy)])
    return HostReport([f"oom_score_adj={score}"], [])
