"""Where the output of commands goes: terminals of any width, pipes nobody reads, full disks, poor locales."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.process.terminal import POINTSMAN, ROOT, environment, on_terminal

from pointsman.cli.control_client import NoProxy, ask

EXPLAIN = ("explain", "shop/cache", "--manifests", "docs/examples/shop", "--node", "node-a")
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
ASCII_OUTPUT = {"PYTHONIOENCODING": "ascii"}
POOR = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


@pytest.mark.parametrize("columns", [60, 200])
def test_a_terminal_is_filled_and_never_overrun(columns: int) -> None:
    shown = on_terminal(*EXPLAIN, columns=columns)
    widest = max(len(line) for line in ESCAPES.sub("", shown).splitlines())
    assert columns // 2 < widest <= columns
    assert "\x1b[31m" in shown


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [((), {"NO_COLOR": "1"}), ((), {"TERM": "dumb"}), (("--color", "never"), {})],
    ids=["NO_COLOR", "dumb", "never"],
)
def test_colours_can_be_refused(arguments: tuple[str, ...], extra: dict[str, str]) -> None:
    assert "\x1b[" not in on_terminal(*EXPLAIN, *arguments, extra=extra)


def test_help_fits_the_terminal() -> None:
    for arguments in (("explain", "--help"), ("check", "--help"), ("help",)):
        shown = ESCAPES.sub("", on_terminal(*arguments, columns=60))
        assert max(map(len, shown.splitlines())) <= 60, arguments


def _process(*arguments: str, extra: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*POINTSMAN, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(extra),
        cwd=ROOT,
    )


@pytest.mark.parametrize("arguments", [EXPLAIN, ("run", "--help"), ("help",)], ids=["explain", "run", "help"])
def test_a_closed_pipe_ends_a_command_quietly(arguments: tuple[str, ...]) -> None:
    process = _process(*arguments)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(30) == 141


def test_a_full_disk_is_told_in_a_sentence() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*POINTSMAN, *EXPLAIN],
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment(),
            cwd=ROOT,
            text=True,
        )
    assert done.returncode == 2
    assert done.stderr == "pointsman: the output cannot be written: No space left on device\n"


def test_a_poor_locale_gets_look_alikes_and_json_stays_json() -> None:
    shown, errors = _process(*EXPLAIN, extra=POOR).communicate(timeout=30)
    assert errors == b""
    assert b"\nx shop/cache:redis TCP 6379 (IPv4): down\n" in shown
    asked = ("explain", "shöp/✓", *EXPLAIN[2:], "-o", "json")
    shown, errors = _process(*asked, extra=ASCII_OUTPUT).communicate(timeout=30)
    assert json.loads(shown.decode("ascii"))["question"] == "shöp/✓"


def test_an_argument_that_is_no_text_is_told_in_a_sentence() -> None:
    asked = ("explain", "sh\udcf6p/web", *EXPLAIN[2:], "-o", "json")
    shown, errors = _process(*asked).communicate(timeout=30)
    assert shown == b""
    assert errors == b"pointsman explain: an argument is not UTF-8: \\udcf6\n"


@contextlib.contextmanager
def _served(path: Path, serve: Callable[[socket.socket, bytes], None]) -> Iterator[None]:
    """Something listens at a socket and does with each connection what the test says."""

    def one(connection: socket.socket) -> None:
        with connection:
            serve(connection, connection.recv(4096))

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                started.append(threading.Thread(target=one, args=(connection,)))
                started[-1].start()

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        started = [threading.Thread(target=accept)]
        started[0].start()
        yield
        listener.shutdown(socket.SHUT_RDWR)
        for thread in started:
            thread.join(30)


def test_a_proxy_that_hangs_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        with pytest.raises(NoProxy, match=r"\(process \d+\) has not answered /status .* seems to hang"):
            ask(path, "/status", dict, alive_seconds=0.05)


def test_a_proxy_that_is_busy_with_a_long_answer_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    asked_if_alive = threading.Event()

    def serve(connection: socket.socket, request: bytes) -> None:
        if request.startswith(b"GET /alive"):
            asked_if_alive.set()
        else:
            assert asked_if_alive.wait(30)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    with _served(path, serve):
        assert ask(path, "/verify", dict, alive_seconds=1.0) == {}
