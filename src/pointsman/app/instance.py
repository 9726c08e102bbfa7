"""One instance per node: two proxies would replace each other's tables for ever.

The lock is an flock on a file, so the kernel releases it however the holder ends. A node is a network namespace; its number is
part of the file's name, because nodes in namespaces of one machine may share a run directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from pointsman.errors import Busy
from pointsman.obs.log import get_log

_log = get_log(__name__)


@contextlib.contextmanager
def sole_instance(directory: Path, *, wait: bool) -> Iterator[None]:
    """Hold the node's lock; raises Busy, naming the holder, unless told to wait for it."""
    try:
        handle = _opened(directory)
    except OSError as error:
        _log.warning("Cannot tell whether another instance serves this node", directory=directory, err=error)
        yield
        return
    try:
        _lock(handle, wait=wait)
        with contextlib.suppress(OSError):  # a full disk keeps the number from others, not the lock
            os.truncate(handle, 0)
            os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(handle)


def _opened(directory: Path) -> int:
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    node = Path("/proc/self/ns/net").stat().st_ino
    flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(directory / f"instance-{node}.lock", flags, 0o600)


def _lock(handle: int, *, wait: bool) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(handle, 20, 0).decode("ascii", "replace") or "unknown"
        if not wait:
            raise Busy(
                f"another instance (pid {holder}) serves this node; stop it, or start this one with "
                "--wait-for-instance to take over when it ends"
            ) from error
        _log.info("Waiting for the instance that serves this node to end", pid=holder)
        fcntl.flock(handle, fcntl.LOCK_EX)
        _log.info("The other instance has ended; taking over", pid=holder)
