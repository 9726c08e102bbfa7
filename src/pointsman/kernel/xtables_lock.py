"""The locks of the iptables programs, for versions that cannot wait for them, and the processes that hold them.

iptables 1.6 and later lock a file; 1.4.20 to 1.4.21 bind an abstract socket instead. A program without `--wait` fails at once
when another one runs, so the caller holds both locks meanwhile.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pointsman.errors import Busy, KernelError

LOCK_FILE = Path("/run/xtables.lock")
OLD_LOCK_SOCKET = "@xtables"


class LockNotOpened(KernelError):
    """The lock file can be neither opened nor created, so no program that locks it can work."""

    def __init__(self, what: str, errno: int = 0) -> None:
        remedy = "in a container, mount the host's /run/xtables.lock there, writable (hostPath of type FileOrCreate)"
        super().__init__(f"{what}; {remedy}", errno)


@contextlib.contextmanager
def hold(
    lock_file: Path = LOCK_FILE,
    old_socket: str = OLD_LOCK_SOCKET,
    *,
    timeout: float = 5.0,
    interval: float = 0.2,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[None]:
    """Hold both locks inside the `with` block; raises Busy, naming the holder, after a timeout."""
    deadline = clock() + timeout

    def wait_for(lock: Callable[[], None], describe: Callable[[], str]) -> None:
        while True:
            try:
                return lock()
            except OSError as error:
                if clock() >= deadline:
                    raise Busy(describe(), error.errno or 0) from error
                sleep(interval)

    try:
        handle = os.open(lock_file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise LockNotOpened(
            f"cannot open the iptables lock {lock_file}: {error.strerror}", error.errno or 0
        ) from error
    try:
        wait_for(lambda: fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB), lambda: describe_busy(lock_file))
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as bound:
            wait_for(
                lambda: bound.bind("\0" + old_socket.removeprefix("@")),
                lambda: f"the old iptables lock {old_socket} is held by another process",
            )
            yield
    finally:
        os.close(handle)


def describe_busy(lock_file: Path = LOCK_FILE, proc: Path = Path("/proc")) -> str:
    """Return a sentence about a held lock that names its holders where they can be found."""
    holders = find_lock_holders(lock_file, proc)
    names = ", ".join(holders) if holders else "a process in another pid namespace"
    return f"the iptables lock {lock_file} is held by {names}"


def find_lock_holders(lock_file: Path = LOCK_FILE, proc: Path = Path("/proc")) -> list[str]:
    """Return `name (pid N)` of every process that locks the file, or else of those that have it open."""
    try:
        lock = lock_file.stat()
    except OSError:
        return []
    pids = _find_pids_in_locks(proc, lock) or _find_pids_with_open_file(proc, lock)
    return [f"{_read_process_name(proc, pid)} (pid {pid})" for pid in sorted(pids)]


def _find_pids_in_locks(proc: Path, lock: os.stat_result) -> set[int]:
    """Return the holders in the kernel's lock table, which shows 0 or -1 for processes of other pid namespaces."""
    try:
        lines = (proc / "locks").read_text().splitlines()
    except OSError:
        return set()
    place = f"{os.major(lock.st_dev):02x}:{os.minor(lock.st_dev):02x}:{lock.st_ino}"
    # Those that wait for the lock have an arrow in place of the kind.
    held = [fields for line in lines if (fields := line.split())[1:2] == ["FLOCK"] and fields[5] == place]
    return {int(fields[4]) for fields in held if fields[4].isdigit() and fields[4] != "0"}


def _find_pids_with_open_file(proc: Path, lock: os.stat_result) -> set[int]:
    pids = set()
    for directory in proc.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for descriptor in (directory / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if os.path.samestat(descriptor.stat(), lock):
                        pids.add(int(directory.name))
    return pids - {os.getpid()}


def _read_process_name(proc: Path, pid: int) -> str:
    try:
        return (proc / str(pid) / "comm").read_text().strip()
    except OSError:
        return "unknown"
