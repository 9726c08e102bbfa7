"""Commands as processes of their own, on a terminal or with whatever else their output may lead to."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

POINTSMAN = (sys.executable, "-m", "pointsman")
ROOT = Path(__file__).parents[2]
_FROM_OUTSIDE = ("COLUMNS", "NO_COLOR", "TERM")


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """As a person's, whatever runs the tests."""
    kept = {name: value for name, value in os.environ.items() if name not in _FROM_OUTSIDE}
    return kept | {"TERM": "xterm"} | dict(extra or {})


class Terminal:
    """A process on a terminal: what it shows, and keys pressed."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process = process
        self._master = master
        self.shown = ""

    def read(self, until: Callable[[str], bool] = lambda _: False, seconds: float = 30) -> str:
        """What was shown so far, once that suffices or the process has ended."""
        deadline = time.monotonic() + seconds
        while not until(self.shown):
            ready, _, _ = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"not shown in time; only: {self.shown}"
            try:
                data = os.read(self._master, 65536)
            except OSError:
                break
            if not data:
                break
            self.shown += data.decode(errors="replace").replace("\r\n", "\n")
        return self.shown

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    @property
    def settings(self) -> list[object]:
        """Those of the line discipline: echo, line mode, special characters."""
        return termios.tcgetattr(self._master)

    def resize(self, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("4H", 40, columns, 0, 0))


@contextlib.contextmanager
def terminal(
    *arguments: str,
    columns: int = 80,
    extra: Mapping[str, str] | None = None,
    program: tuple[str, ...] = POINTSMAN,
) -> Iterator[Terminal]:
    """The command on a terminal of that width; it is ended with the block."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 40, columns, 0, 0))

    def own_session() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        [*program, *arguments],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment(extra),
        cwd=ROOT,
        preexec_fn=own_session,  # noqa: PLW1509 the keys of a terminal reach only its own session
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        process.kill()
        process.wait(10)
        os.close(master)


def on_terminal(*arguments: str, columns: int = 80, extra: Mapping[str, str] | None = None) -> str:
    """All that a command that ends by itself shows on a terminal."""
    with terminal(*arguments, columns=columns, extra=extra) as shown:
        return shown.read()
