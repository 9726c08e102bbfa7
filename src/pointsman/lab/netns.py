"""Network namespaces held by file descriptor, entered by the calling thread only.

A socket stays in the namespace it was created in, so one process can own the sockets of a whole cluster: enter,
create, leave. Child processes inherit the namespace of the thread that starts them.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from pointsman.errors import PointsmanError

CLONE_NEWNET = 0x40000000
CLONE_NEWUSER = 0x10000000
_DISCARD_PORT = 9
_ADDRESS_TIMEOUT_SECONDS = 30.0

_libc = ctypes.CDLL(None, use_errno=True)


class LabUnavailable(PointsmanError):
    """The process may not create network namespaces. The message has the remedy."""


def _call(name: str, *arguments: int) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _open_own_namespace() -> int:
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def gain_privileges() -> str:
    """Enter a user namespace unless running as root, so that network namespaces can be created.

    Must run before any thread is started. Returns "root" or "user namespace".
    """
    if os.geteuid() == 0:
        return "root"
    uid, gid = os.getuid(), os.getgid()
    try:
        _call("unshare", CLONE_NEWUSER | CLONE_NEWNET)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    except OSError as error:
        raise LabUnavailable(
            f"network namespaces need root, and a user namespace was refused ({os.strerror(error.errno or 0)}): "
            "run with sudo, or allow unprivileged user namespaces "
            "(sysctl kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns)"
        ) from error
    return "user namespace"


class Namespace:
    """One network namespace. The kernel removes it when it is closed and no process runs in it."""

    def __init__(self) -> None:
        home = _open_own_namespace()
        try:
            try:
                _call("unshare", CLONE_NEWNET)
            except OSError as error:
                if error.errno in (errno.EPERM, errno.EACCES):
                    raise LabUnavailable("network namespaces need root: run with sudo") from error
                raise
            self.fd = _open_own_namespace()
            _call("setns", home, CLONE_NEWNET)
        finally:
            os.close(home)

    @property
    def path(self) -> str:
        """A path that other processes can open, as in `nsenter --net=PATH`."""
        return f"/proc/{os.getpid()}/fd/{self.fd}"

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Create the sockets and processes of this thread inside the namespace."""
        home = _open_own_namespace()
        try:
            _call("setns", self.fd, CLONE_NEWNET)
            try:
                yield
            finally:
                _call("setns", home, CLONE_NEWNET)
        finally:
            os.close(home)

    def run(self, command: Sequence[str], text: str = "") -> str:
        """Run a command inside and return its output. Raises PointsmanError with its error text."""
        with self.entered():
            try:
                done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
            except FileNotFoundError as error:
                raise LabUnavailable(f"the program {command[0]!r} is needed and not installed") from error
        if done.returncode != 0:
            raise PointsmanError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def write_sysctls(self, settings: dict[str, str]) -> None:
        """Set sysctls inside, except those that this kernel does not have."""
        with self.entered():
            for name, value in settings.items():
                with contextlib.suppress(FileNotFoundError):
                    (Path("/proc/sys") / name).write_text(value)

    def wait_for_address(self, address: str) -> None:
        """Wait until connections to a local address are possible.

        The kernel adds the routes of a new IPv6 address later, up to a second on a busy machine.
        """
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        deadline = time.monotonic() + _ADDRESS_TIMEOUT_SECONDS
        while True:
            with self.entered(), socket.socket(family) as sock:
                if sock.connect_ex((address, _DISCARD_PORT)) == errno.ECONNREFUSED:
                    return
            if time.monotonic() > deadline:
                raise LabUnavailable(
                    f"{address} is not reachable in its namespace: is its IP family disabled on this machine?"
                )
            time.sleep(0.005)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
