"""What this process may run out of: a state directory that can be written, file descriptors, memory."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from pointsman.conditions import Condition

NEARLY_FULL: Final = 0.9
_MEBIBYTE: Final = 1 << 20
_V2: Final = ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")
_V1: Final = (
    "sys/fs/cgroup/memory",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "total_inactive_file",
)


class Usage(NamedTuple):
    """How much of a limited resource is used."""

    used: int
    limit: int

    @property
    def is_near_limit(self) -> bool:
        return self.used >= self.limit * NEARLY_FULL


def check_resources(state_dir: Path) -> Iterator[Condition]:
    """Yield a condition for everything that has run out, or nearly so."""
    reason = find_unwritable_reason(state_dir)
    if reason:
        message = f"{state_dir}: {reason}; changes of kernel settings are not recorded, so clean-up cannot undo them"
        yield Condition.false("StateDirectory", "NotWritable", message)
    descriptors = count_descriptors()
    if descriptors.is_near_limit:
        message = f"{descriptors.used} of {descriptors.limit} file descriptors are open"
        yield Condition.false("Descriptors", "NearLimit", message)
    memory = read_memory()
    if memory is not None and memory.is_near_limit:
        used, limit = (value // _MEBIBYTE for value in memory)
        yield Condition.false(
            "Memory", "NearLimit", f"{used} of {limit} MiB that the cgroup may use are used"
        )


def find_unwritable_reason(directory: Path) -> str:
    """Return why files cannot be created in a directory, which need not exist yet; empty when they can."""
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    if not existing.is_dir():
        return f"{existing} is not a directory"
    if not os.access(existing, os.W_OK | os.X_OK):
        return "not writable"
    space = os.statvfs(existing)
    is_full = (space.f_blocks and not space.f_bfree) or (space.f_files and not space.f_ffree)
    return "the file system is full" if is_full else ""


def count_descriptors() -> Usage:
    """Return how many files this process has open, and how many it may."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Usage(len(list(Path("/proc/self/fd").iterdir())), limit)


def read_memory(root: Path = Path("/")) -> Usage | None:
    """Return the memory of the cgroup of this process, without what the kernel can drop at once; None without a limit."""
    try:
        groups = [line.split(":", 2) for line in (root / "proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return None
    for _, controllers, path in groups:
        if controllers not in ("", "memory"):
            continue
        mount, *names = _V1 if controllers else _V2
        # Without a cgroup namespace the path is that of the host, while a container sees its own group at the mount point.
        for directory in (root / mount / path.lstrip("/"), root / mount):
            found = _read_memory_in(directory, *names)
            if found is not None:
                return found
    return None


def _read_memory_in(directory: Path, limit: str, current: str, droppable: str) -> Usage | None:
    try:
        most, used = int((directory / limit).read_text()), int((directory / current).read_text())
        lines = (directory / "memory.stat").read_text().splitlines()
    except (OSError, ValueError):  # `max`: no limit
        return None
    stat = dict(line.split() for line in lines)
    return Usage(used - int(stat.get(droppable, 0)), most)
