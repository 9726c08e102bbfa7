"""The lock of the iptables tools: taken, waited for, and traced to its holder."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pointsman.errors import Busy, KernelError
from pointsman.kernel import xtables_lock

SOCKET = f"@pointsman-test-{os.getpid()}"


def _place_of(path: Path) -> str:
    """Return device and inode as /proc/locks shows them."""
    found = path.stat()
    return f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"


def _free(path: Path) -> bool:
    with path.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True


def test_both_locks_are_held_inside_and_free_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with xtables_lock.hold(path, SOCKET):
        assert not _free(path)
        with socket.socket(socket.AF_UNIX) as other, pytest.raises(OSError, match="in use"):
            other.bind("\0" + SOCKET[1:])
    assert _free(path)


def test_locks_are_freed_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), xtables_lock.hold(tmp_path / "lock", SOCKET):
        _ = 1 / 0
    assert _free(tmp_path / "lock")


def test_a_lock_held_by_another_process_is_busy_and_names_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = f"import fcntl; f = open({str(path)!r}, 'w'); fcntl.flock(f, 2); print('x', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        waits: list[float] = []
        now = iter(range(100))
        with (
            pytest.raises(Busy, match=rf"python\S* \(pid {holder.pid}\)"),
            xtables_lock.hold(path, SOCKET, timeout=3, sleep=waits.append, clock=lambda: next(now)),
        ):
            pytest.fail("must not get the lock")
        assert waits
        assert any(f"pid {holder.pid})" in one for one in xtables_lock.find_lock_holders(path, Path("/proc")))
        holder.communicate(b"\n")


def test_the_old_lock_is_waited_for_too(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind("\0" + SOCKET[1:])
        with (
            pytest.raises(Busy, match="old iptables lock"),
            xtables_lock.hold(tmp_path / "lock", SOCKET, timeout=0),
        ):
            pytest.fail("must not get the lock")
    assert _free(tmp_path / "lock")


def test_an_unusable_lock_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match="no/lock"), xtables_lock.hold(tmp_path / "no" / "lock", SOCKET):
        pytest.fail("must not get the lock")


def test_holders_in_other_pid_namespaces_are_found_by_open_files(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    proc = tmp_path / "proc"
    (proc / "77" / "fd").mkdir(parents=True)
    (proc / "77" / "comm").write_text("firewalld\n")
    (proc / "77" / "fd" / "3").symlink_to(lock)
    (proc / "locks").write_text(f"1: FLOCK  ADVISORY  WRITE 0 {_place_of(lock)} 0 EOF\n")
    assert xtables_lock.find_lock_holders(lock, proc) == ["firewalld (pid 77)"]
    assert "firewalld" in xtables_lock.describe_busy(lock, proc)


def test_waiting_processes_are_not_holders(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    proc = tmp_path / "proc"
    proc.mkdir()
    place = _place_of(lock)
    (proc / "locks").write_text(
        f"1: FLOCK  ADVISORY  WRITE 5 {place} 0 EOF\n1: -> FLOCK  ADVISORY  WRITE 6 {place} 0 EOF\n"
    )
    assert xtables_lock.find_lock_holders(lock, proc) == ["unknown (pid 5)"]


def test_a_file_with_the_same_inode_number_on_another_device_is_not_the_lock(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "locks").write_text(f"1: FLOCK  ADVISORY  WRITE 5 ff:01:{lock.stat().st_ino} 0 EOF\n")
    assert xtables_lock.find_lock_holders(lock, proc) == []


def test_an_unknown_holder_is_admitted(tmp_path: Path) -> None:
    assert "another pid namespace" in xtables_lock.describe_busy(tmp_path / "lock", tmp_path)
