"""One instance per node: two proxies would replace each other's tables for ever.

The lock is an abstract socket name, of which every network namespace has its own, and so is what a proxy programs. The kernel
releases it however the holder ends, needs no directory for it, and tells who the holder is as seen from here. Anybody in the
namespace may take the name, so only a holder that could be a proxy keeps us from serving.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from pointsman.errors import Busy
from pointsman.obs.log import get_log

NAME = "pointsman.instance"
_BACKLOG = 64
_PAUSE = 0.2
_PATIENCE = 5
"""How often one that does not answer is asked again: so is another instance, between two system calls of its start."""

_log = get_log(__name__)


class Holder(NamedTuple):
    """Who has the name."""

    uid: int
    pid: int
    """0 when it is in another process namespace."""

    def __str__(self) -> str:
        return f"pid {self.pid}" if self.pid else "outside this container"


@contextlib.contextmanager
def sole_instance(name: str = NAME, *, wait: bool) -> Iterator[bool]:
    """Hold the lock; raises Busy, naming the holder, unless told to wait for it. False: a signal ended the waiting."""
    with _signals_heard(on=wait) as told:
        listener = _claimed(name, wait=wait, told=told)
    with contextlib.ExitStack() as stack:
        if listener is not None:
            stack.enter_context(_kept(listener))
        yield not told()


def _claimed(name: str, *, wait: bool, told: Callable[[], bool]) -> socket.socket | None:
    """The socket that has the name; None when it cannot be had for a reason that must not keep us from serving."""
    doubt, silent, waiting = "", 0, False
    while not told() and not doubt:
        try:
            listener = _bound(name)
            holder = _holder(name) if listener is None else None
        except OSError as error:
            doubt = str(error)
            break
        if listener is not None:
            if waiting:
                _log.info("The other instance has ended; taking over")
            return listener
        silent = silent + 1 if holder is None else 0
        if holder is None:
            doubt = f"whoever has the name {name} does not answer" if silent > _PATIENCE else ""
        elif holder.uid not in (0, os.geteuid()):
            doubt = f"user {holder.uid} ({holder}) has taken the name {name}"
        elif not wait:
            raise Busy(
                f"another instance ({holder}) serves this node; stop it, or start this one with "
                "--wait-for-instance to take over when it ends"
            )
        elif not waiting:
            waiting = True
            _log.info("Waiting for the instance that serves this node to end", holder=holder)
        time.sleep(_PAUSE)
    if doubt:
        _log.warning("Cannot tell whether another instance serves this node", err=doubt)
    return None


def _bound(name: str) -> socket.socket | None:
    """A socket that listens at the name; None when somebody else does."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.bind(f"\0{name}")
        made.listen(_BACKLOG)
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    return made


def _holder(name: str) -> Holder | None:
    """Who listens at the name; None when nobody does, or nobody answers."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.setblocking(False)
        try:
            asking.connect(f"\0{name}")
        except (ConnectionRefusedError, BlockingIOError):
            return None
        except PermissionError:  # a security module keeps apart what runs as root in two places
            return Holder(0, 0)
        pid, uid, _ = struct.unpack("3i", asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return Holder(uid, pid)


@contextlib.contextmanager
def _kept(listener: socket.socket) -> Iterator[None]:
    """Whoever asks is hung up on at once; the kernel has told them all by then."""
    ended = threading.Event()

    def hang_up() -> None:
        while not ended.is_set():
            try:
                listener.accept()[0].close()
            except (
                OSError
            ):  # without a descriptor left, for one: who asks must be heard again when there are some
                ended.wait(_PAUSE)
            ended.wait(0.01)  # no stranger who asks without end gets more of the processor than this

    thread = threading.Thread(target=hang_up, daemon=True, name="instance")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        listener.close()


@contextlib.contextmanager
def _signals_heard(*, on: bool) -> Iterator[Callable[[], bool]]:
    """Whether SIGTERM or SIGINT came; without a handler the first process of a container would not hear them."""
    heard: list[int] = []
    numbers = (signal.SIGTERM, signal.SIGINT) if on else ()
    before = {number: signal.signal(number, lambda caught, _: heard.append(caught)) for number in numbers}
    try:
        yield lambda: bool(heard)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
