"""A terminal in full-screen use: keys as names, frames drawn in place, and the terminal restored in every case.

Plain termios and the escape sequences that every terminal of today supports: curses would need a terminfo database, which container
images lack.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Self

_ENTER = "\x1b[?1049h\x1b[?25l"
_LEAVE = "\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_REST = "\x1b[H", "\x1b[K", "\x1b[J"
_ESCAPE_SECONDS = 0.05
"""An escape sequence arrives within that time; Esc alone is followed by nothing."""
_SEQUENCES = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1b[D": "left",
    b"\x1bOA": "up",
    b"\x1bOB": "down",
    b"\x1bOD": "left",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b"\x1b[H": "home",
    b"\x1b[F": "end",
    b"\x1bOH": "home",
    b"\x1bOF": "end",
    b"\x1b[1~": "home",
    b"\x1b[4~": "end",
    b"\x1b": "escape",
    b"\r": "enter",
    b"\n": "enter",
    b"\x7f": "backspace",
    b"\x08": "backspace",
}
_BY_LENGTH = sorted(_SEQUENCES, key=len, reverse=True)


def parse_keys(data: bytes) -> list[str]:
    """Return the keys in what a terminal sent: names, or characters; unknown sequences are ignored."""
    keys: list[str] = []
    while data:
        known = next((one for one in _BY_LENGTH if data.startswith(one)), b"")
        if known == b"\x1b" and len(data) > 1 and data[1:2] in b"[O":
            data = data[2:].lstrip(b"0123456789;?")[1:]
            continue
        if known:
            keys.append(_SEQUENCES[known])
            data = data[len(known) :]
            continue
        text = data.decode(errors="ignore")
        if not text:
            break
        if text[0].isprintable():
            keys.append(text[0])
        data = text[1:].encode()
    return keys


class FullScreen:
    """Standard input and output as a full screen, inside a `with` block.

    Signals that end the process restore the terminal first; Ctrl-Z does so until the process continues.
    """

    def __init__(self) -> None:
        self._input = sys.stdin.fileno()
        self._wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._saved = termios.tcgetattr(self._input)
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> Self:
        previous = signal.set_wakeup_fd(self._wakeup[1], warn_on_full_buffer=False)
        self._undo.callback(signal.set_wakeup_fd, previous)
        for number, handler in (
            (signal.SIGWINCH, lambda *_: None),
            (signal.SIGTERM, _exit),
            (signal.SIGHUP, _exit),
            (signal.SIGTSTP, self._suspend),
        ):
            self._undo.callback(signal.signal, number, signal.signal(number, handler))
        self._undo.callback(self._leave)
        self._enter()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def draw(self, lines: Sequence[str]) -> None:
        """Replace what is shown."""
        sys.stdout.write(_HOME + f"{_CLEAR_LINE}\n".join(lines) + _CLEAR_LINE + _CLEAR_REST)
        sys.stdout.flush()

    def read_keys(self, seconds: float) -> Iterator[str]:
        """Yield the keys pressed; return after that time, on `wake`, or after a resize."""
        ready = select.select([self._input, self._wakeup[0]], [], [], seconds)[0]
        if self._wakeup[0] in ready:
            os.read(self._wakeup[0], 4096)
        if self._input not in ready:
            return
        data = os.read(self._input, 4096)
        if not data:
            raise EOFError
        if (
            data.endswith((b"\x1b", b"\x1b[", b"\x1bO"))
            and select.select([self._input], [], [], _ESCAPE_SECONDS)[0]
        ):
            data += os.read(self._input, 4096)
        yield from parse_keys(data)

    def wake(self) -> None:
        """End a wait for keys; may be called on any thread."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._wakeup[1], b"\0")

    def _enter(self) -> None:
        tty.setcbreak(self._input, termios.TCSADRAIN)
        sys.stdout.write(_ENTER)
        sys.stdout.flush()

    def _leave(self) -> None:
        with contextlib.suppress(OSError, termios.error):  # the terminal may be gone
            sys.stdout.write(_LEAVE)
            sys.stdout.flush()
            termios.tcsetattr(self._input, termios.TCSADRAIN, self._saved)

    def _suspend(self, number: int, _frame: FrameType | None) -> None:
        self._leave()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.signal(number, self._suspend)
        self._enter()


def _exit(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)
