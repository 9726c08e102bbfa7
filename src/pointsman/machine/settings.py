"""What the process sets at start: conntrack limits and timeouts of the host, its own OOM score, memory and file descriptors.

None of it is needed for packets to flow, so nothing is fatal: what cannot be set on the host becomes a condition.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
from datetime import timedelta
from pathlib import Path
from typing import Final

from pointsman.conditions import Condition
from pointsman.config.types import Conntrack
from pointsman.kernel.sysctl import Sysctls

CONNTRACK_MAX_LIMIT: Final = 1_048_576
_HASHSIZE: Final = "/sys/module/nf_conntrack/parameters/hashsize"
_PREFIX: Final = "net/netfilter/nf_conntrack_"
_TABLE_SIZE: Final = f"{_PREFIX}max"
LOOSE_TRACKING: Final = f"{_PREFIX}tcp_loose"
"""0 keeps conntrack from picking up TCP connections mid-stream."""

_M_ARENA_MAX = -8
"""mallopt's name for the number of heaps, from glibc's malloc.h."""

_OBJECTS_BETWEEN_COLLECTIONS = 50_000
_MAX_DESCRIPTORS = 65536


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


def apply_conntrack(settings: Conntrack, sysctls: Sysctls, cores: int) -> list[str]:
    """Set conntrack limits and timeouts; return `name=value` of those that succeeded.

    The hash table only grows: shrinking would slow other users down. A node that is a container shares the table with its host
    and may not resize it; a larger table is fine, too.
    """
    applied: list[str] = []

    def ensure(name: str, value: int, *, at_least: bool = False) -> bool:
        is_set = sysctls.ensure(name, value, at_least=at_least)
        if is_set:
            applied.append(f"{name}={value}")
        return is_set

    for name, value in compute_conntrack_targets(settings, cores).items():
        is_set = ensure(name, value, at_least=name == _TABLE_SIZE)
        if name == _TABLE_SIZE and is_set and (sysctls.read_int(_HASHSIZE) or 0) < value // 4:
            ensure(_HASHSIZE, value // 4, at_least=True)
    return applied


def apply_oom_score(score: int, root: Path = Path("/")) -> Condition | None:
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
            return None
        message = (
            f"cannot set oom_score_adj to {score} ({error.strerror}); it is {found}, so the kernel kills this process before "
            "others when memory runs out"
        )
        return Condition.false("OOMScore", "NotPermitted", message)
    return None


# --- memory and descriptors of the process ------------------------------------------------------------------


def limit_arenas() -> None:
    """Use one heap for all threads, few of which allocate at the same time; call before threads start."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def raise_descriptor_limit() -> None:
    """Raise the limit of open files as far as the system allows, up to `_MAX_DESCRIPTORS`; call at start."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MAX_DESCRIPTORS)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def relax_gc() -> None:
    """Exempt imported modules from garbage collection and collect rarely; call after the imports.

    Nearly everything in the first list stays. With the interpreter's defaults, collections that find nothing take a
    third of the time of that list.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS, 10, 10)


def freeze_heap() -> None:
    """Collect once, exempt the survivors from later collections, and return free heap pages to the system.

    The objects of a cluster live as long as the cluster; otherwise every full collection visits all of them in the
    middle of a sync. Objects that an earlier call exempted are collected, too: after a restart inside the process
    they are garbage.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    trim_heap()


def trim_heap() -> None:
    """Return free heap pages to the system, after work that needed many of them for a moment.

    The collection empties the interpreter's free lists, whose entries keep pages in use.
    """
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
