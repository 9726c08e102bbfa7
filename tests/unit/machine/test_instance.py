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
    """All tests share a network namespace with each other, and perhaps with a proxy."""
    return f"{NAME}.test-{os.getpid()}"


def started(code: str, *arguments: str, wrap: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
    command = (*wrap, sys.executable, "-c", code, *arguments)
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_a_second_instance_is_refused_and_told_who_serves(name: str) -> None:
    with (
        sole_instance(name, wait=False),
        pytest.raises(Busy, match=rf"another instance \(pid {os.getpid()}\).*--wait-for-instance"),
        sole_instance(name, wait=False),
    ):
        pytest.fail("two instances ran at once")


@needs_root
def test_one_in_another_process_namespace_is_not_named_by_a_number_that_means_nothing_here(name: str) -> None:
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


def test_however_many_ask_the_next_is_told_as_well(name: str) -> None:
    with sole_instance(name, wait=False):
        for _ in range(100):
            with pytest.raises(Busy), sole_instance(name, wait=False):
                pytest.fail("two instances ran at once")


def test_a_holder_that_ran_out_of_descriptors_for_a_moment_tells_everybody_afterwards(name: str) -> None:
    code = f"""{IMPORTS}import resource
    with sole_instance(sys.argv[1], wait=False):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, most))
        print("none left", flush=True)
        sys.stdin.readline()
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        print("enough", flush=True)
        sys.stdin.readline()
    """.replace("\n    ", "\n")
    command = (sys.executable, "-c", code, name)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == "none left\n"
        with pytest.raises(Busy), sole_instance(name, wait=False):
            pytest.fail("two instances ran at once")
        time.sleep(0.1)
        holder.stdin.write("\n")
        holder.stdin.flush()
        assert holder.stdout.readline() == "enough\n"
        for _ in range(100):
            with pytest.raises(Busy), sole_instance(name, wait=False):
                pytest.fail("two instances ran at once")
        holder.stdin.close()


def test_one_that_waits_takes_over_when_the_first_ends(name: str) -> None:
    with sole_instance(name, wait=False):
        second = started(WAITS, name)
        with pytest.raises(subprocess.TimeoutExpired):
            second.wait(1)
    assert second.communicate(timeout=20)[0] == b"serving True\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_waiting_ends_when_told_to(name: str, number: signal.Signals) -> None:
    with sole_instance(name, wait=False):
        second = started(WAITS, name)
        with pytest.raises(subprocess.TimeoutExpired):
            second.wait(1)
        second.send_signal(number)
        assert second.communicate(timeout=20)[0] == b"serving False\n"
        assert second.returncode == 0


@needs_root
def test_waiting_ends_when_the_first_process_of_a_container_is_told_to(name: str) -> None:
    with sole_instance(name, wait=False):
        second = started(WAITS, name, wrap=("unshare", "--pid", "--fork"))
        with pytest.raises(subprocess.TimeoutExpired):
            second.wait(1)
        first_inside = Path(f"/proc/{second.pid}/task/{second.pid}/children").read_text()
        os.kill(int(first_inside), signal.SIGTERM)
        assert second.communicate(timeout=20)[0] == b"serving False\n"


@needs_root
def test_nodes_in_namespaces_of_one_machine_do_not_meet(name: str) -> None:
    with sole_instance(name, wait=False):
        elsewhere = started(SERVES, name, wrap=("unshare", "--net"))
        assert elsewhere.communicate(timeout=20)[0] == b"serving\n"


@pytest.fixture
def stranger(name: str) -> Iterator[socket.socket]:
    """Somebody who is no proxy has taken the name."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        made.bind(f"\0{name}")
        yield made


def test_a_name_whose_holder_does_not_answer_keeps_nobody_from_serving(
    name: str, stranger: socket.socket
) -> None:
    with sole_instance(name, wait=False) as alone:
        assert alone
    stranger.listen(0)
    with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
        for asking in (first, second):
            asking.setblocking(False)
            asking.connect_ex(f"\0{name}")
        with sole_instance(name, wait=True) as alone:
            assert alone


@needs_root
def test_a_holder_that_cannot_be_a_proxy_keeps_nobody_from_serving(name: str) -> None:
    holds = "import os, sys; from pointsman.machine.instance import sole_instance\nos.setuid(65534)\n"
    holds += "with sole_instance(sys.argv[1], wait=False): print('serving', flush=True); sys.stdin.read()"
    stranger = subprocess.Popen(
        (sys.executable, "-c", holds, name), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == b"serving\n"
        for wait in (False, True):
            with sole_instance(name, wait=wait) as alone:
                assert alone
    finally:
        stranger.communicate()


def test_one_that_has_the_name_and_does_not_listen_yet_is_asked_again(
    name: str, stranger: socket.socket
) -> None:
    second = started(SERVES, name)
    time.sleep(0.1)
    stranger.listen(1)
    assert b"another instance" in second.communicate(timeout=20)[1]
