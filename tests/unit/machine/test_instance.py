"""One instance per node: the second names the first, or waits for its end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pointsman.errors import Busy
from pointsman.machine.instance import NAME, sole_instance

IMPORTS = "import os, sys; from pointsman.machine.instance import sole_instance\n"
SERVES = f"{IMPORTS}with sole_instance(sys.argv[1], wait=False): print('serving', flush=True)"
WAITS = f"{IMPORTS}with sole_instance(sys.argv[1], wait=True) as alone: print('serving', alone, flush=True)"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="making namespaces needs root")


@pytest.fixture
def name() -> str:
    """A name of our own: all tests share a network namespace with each other, and perhaps with a proxy."""
    return f"{NAME}.test-{os.getpid()}"


def started(code: str, *arguments: str, wrap: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
    command = (*wrap, sys.executable, "-c", code, *arguments)
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def wait_until_caught(pid: int, number: signal.Signals) -> None:
    """Wait until the process has a handler for the signal: it would be killed by an earlier one."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        status = Path(f"/proc/{pid}/status").read_text()
        caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
        if int(caught, 16) >> (number - 1) & 1:
            return
        time.sleep(0.02)
    pytest.fail(f"{number.name} is not caught")


def test_a_second_instance_is_refused_with_the_name_of_the_first(name: str) -> None:
    with (
        sole_instance(name, wait=False),
        pytest.raises(Busy, match=rf"another instance \(pid {os.getpid()}\).*--wait-for-instance"),
        sole_instance(name, wait=False),
    ):
        pytest.fail("two instances ran at once")


@needs_root
def test_an_instance_in_another_process_namespace_is_not_named_by_its_number(name: str) -> None:
    with sole_instance(name, wait=False):
        second = started(SERVES, name, wrap=("unshare", "--pid", "--fork"))
        assert (
            b"another instance (outside this container) serves this node" in second.communicate(timeout=20)[1]
        )


def test_the_lock_goes_with_its_holder(name: str) -> None:
    with sole_instance(name, wait=False):
        pass
    killed = f"{IMPORTS}with sole_instance(sys.argv[1], wait=False): os.kill(os.getpid(), 9)"
    holder = started(killed, name)
    holder.communicate(timeout=20)
    assert holder.returncode == -9
    with sole_instance(name, wait=False):
        pass


def test_the_holder_is_named_to_every_further_instance(name: str) -> None:
    with sole_instance(name, wait=False):
        for _ in range(100):
            with pytest.raises(Busy), sole_instance(name, wait=False):
                pytest.fail("two instances ran at once")


def test_one_that_waits_takes_over_when_the_first_ends(name: str) -> None:
    with sole_instance(name, wait=False):
        second = started(WAITS, name)
        with pytest.raises(subprocess.TimeoutExpired):
            second.wait(1)
    assert second.communicate(timeout=20)[0] == b"serving True\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_waiting(name: str, number: signal.Signals) -> None:
    with sole_instance(name, wait=False):
        second = started(WAITS, name)
        wait_until_caught(second.pid, signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            second.wait(1)
        second.send_signal(number)
        assert second.communicate(timeout=20)[0] == b"serving False\n"
        assert second.returncode == 0


@needs_root
def test_a_signal_to_the_first_process_of_a_container_ends_the_waiting(name: str) -> None:
    with sole_instance(name, wait=False):
        second = started(WAITS, name, wrap=("unshare", "--pid", "--fork"))
        with pytest.raises(subprocess.TimeoutExpired):
            second.wait(1)
        first_inside = int(Path(f"/proc/{second.pid}/task/{second.pid}/children").read_text())
        wait_until_caught(first_inside, signal.SIGTERM)
        os.kill(first_inside, signal.SIGTERM)
        assert second.communicate(timeout=20)[0] == b"serving False\n"


@needs_root
def test_nodes_in_namespaces_of_one_machine_do_not_meet(name: str) -> None:
    with sole_instance(name, wait=False):
        elsewhere = started(SERVES, name, wrap=("unshare", "--net"))
        assert elsewhere.communicate(timeout=20)[0] == b"serving\n"


@pytest.fixture
def other_program(name: str) -> Iterator[socket.socket]:
    """Another program has taken the name."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        made.bind(f"\0{name}")
        yield made


def test_a_holder_that_does_not_listen_does_not_prevent_a_start(
    name: str, other_program: socket.socket
) -> None:
    with sole_instance(name, wait=False) as alone:
        assert alone
    other_program.listen(0)
    with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
        for asking in (first, second):
            asking.setblocking(False)
            asking.connect_ex(f"\0{name}")
        with sole_instance(name, wait=True) as alone:
            assert alone


@needs_root
def test_a_holder_that_cannot_be_a_proxy_does_not_prevent_a_start(name: str) -> None:
    holds = "import os, sys; from pointsman.machine.instance import sole_instance\nos.setuid(65534)\n"
    holds += "with sole_instance(sys.argv[1], wait=False): print('serving', flush=True); sys.stdin.read()"
    other = subprocess.Popen(
        (sys.executable, "-c", holds, name), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"serving\n"
        for wait in (False, True):
            with sole_instance(name, wait=wait) as alone:
                assert alone
    finally:
        other.communicate()


def test_one_that_has_the_name_and_does_not_listen_yet_is_asked_again(
    name: str, other_program: socket.socket
) -> None:
    second = started(SERVES, name)
    time.sleep(0.1)
    other_program.listen(1)
    assert b"another instance" in second.communicate(timeout=20)[1]
