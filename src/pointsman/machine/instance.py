"""The lock that allows one instance per node: two proxies would keep replacing each other's tables.

It is an abstract Unix socket, whose name is private to the network namespace, as the rules are. The kernel releases it
however the holder ends, and identifies the holder to processes that connect. Any process in the namespace may bind the
name, so only a holder with the user id of a proxy prevents a start.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from pointsman.errors import Busy
from pointsman.obs.log import get_log

NAME: Final = "pointsman.instance"
_BACKLOG: Final = 4096
"""Connections are never accepted: each start that finds this holder leaves one."""
_INTERVAL_SECONDS: Final = 0.2
_MAX_ATTEMPTS: Final = 5
"""To identify a holder: between two system calls of its start it has the name and does not listen yet."""

_log = get_log(__name__)


class Holder(NamedTuple):
    """The process that has the name."""

    uid: int
    pid: int
    """0 when it is in another process namespace."""

    def __str__(self) -> str:
        return f"pid {self.pid}" if self.pid else "outside this container"


@contextlib.contextmanager
def sole_instance(name: str = NAME, *, wait: bool) -> Iterator[bool]:
    """Hold the lock; raises Busy, naming the holder, unless `wait`. Yields False when a signal ended the waiting."""
    with _catch_signals(enabled=wait) as interrupted:
        sock = _acquire(name, wait=wait, interrupted=interrupted)
    with sock or contextlib.nullcontext():
        yield not interrupted()


def find_proxy() -> str:
    """Return the proxy that serves this network namespace, `a proxy (pid 7)`; empty when there is none.

    kube-proxy has no lock. It is found by its name, where processes of other containers can be seen.
    """
    holder = _find_holder(NAME)
    if holder is not None and holder.uid in (0, os.geteuid()):
        return f"a proxy ({holder})"
    namespace = Path("/proc/self/ns/net").readlink()
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and process.name != str(os.getpid()):
            with contextlib.suppress(OSError):
                if (process / "comm").read_text() == "kube-proxy\n" and (
                    process / "ns/net"
                ).readlink() == namespace:
                    return f"kube-proxy (pid {process.name})"
    return ""


def _acquire(name: str, *, wait: bool, interrupted: Callable[[], bool]) -> socket.socket | None:
    """Return the socket that has the name; None when it cannot be had for a reason that must not prevent a start."""
    try:
        holder = None
        for _ in range(_MAX_ATTEMPTS):
            sock = _bind(name)
            if sock is not None:
                return sock
            holder = _find_holder(name)
            if holder is not None:
                break
            time.sleep(_INTERVAL_SECONDS)
        if holder is None or holder.uid not in (0, os.geteuid()):
            held_by = "a process that does not listen" if holder is None else f"user {holder.uid} ({holder})"
            _log.warning("Cannot tell whether another instance is running", name=name, held_by=held_by)
            return None
        if not wait:
            raise Busy(
                f"another instance ({holder}) serves this node; stop it, or start this one with "
                "--wait-for-instance to take over when it ends"
            )
        _log.info("Waiting for another instance to end", holder=holder)
        while not interrupted():
            sock = _bind(name)
            if sock is not None:
                _log.info("The other instance has ended, taking over")
                return sock
            time.sleep(_INTERVAL_SECONDS)
    except OSError as error:
        _log.warning("Cannot tell whether another instance is running", name=name, err=error)
    return None


def _bind(name: str) -> socket.socket | None:
    """Return a socket that listens at the name; None when another process has it."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(f"\0{name}")
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    return sock


def _find_holder(name: str) -> Holder | None:
    """Return the process that listens at the name; None when it does not listen or has its backlog full."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.setblocking(False)
        try:
            sock.connect(f"\0{name}")
        except (ConnectionRefusedError, BlockingIOError):
            return None
        except PermissionError:  # a security module keeps apart what runs as root in two containers
            return Holder(0, 0)
        pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return Holder(uid, pid)


@contextlib.contextmanager
def _catch_signals(*, enabled: bool) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether SIGTERM or SIGINT came; without a handler the first process of a container would ignore them."""
    caught: list[int] = []
    numbers = (signal.SIGTERM, signal.SIGINT) if enabled else ()
    before = {number: signal.signal(number, lambda number, _: caught.append(number)) for number in numbers}
    try:
        yield lambda: bool(caught)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
