"""Output of commands: what the terminal can do, and what happens when the reader is gone.

A pipe that was closed ends a command quietly, with the exit status that other programs have then; output that cannot
be written is said in a sentence. Characters that the reader's locale lacks are written in a way it has.
"""

from __future__ import annotations

import codecs
import errno
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TextIO, TypeVar

if TYPE_CHECKING:
    from pointsman.screen import Screen

COLOUR_CHOICES: Final = ("auto", "always", "never")
CLOSED: Final = 128 + signal.SIGPIPE
INTERRUPTED: Final = 128 + signal.SIGINT
_FAILED: Final = 2
_USUAL_COLUMNS: Final = 80
_CANNOT_WRITE: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF))
_LOOK_ALIKE: Final = "pointsman-look-alike"

T = TypeVar("T")


def detect_screen(
    colour: str = "auto", stream: TextIO | None = None, environment: Mapping[str, str] = os.environ
) -> Screen:
    """What is behind standard output: a terminal has a width and, unless NO_COLOR or a dumb one forbids it, colours."""
    from pointsman.screen import Screen

    out = sys.stdout if stream is None else stream
    terminal = out.isatty()
    allowed = terminal and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"
    return Screen(
        colour=allowed if colour == "auto" else colour == "always",
        unicode="utf" in (out.encoding or "").lower(),
        width=_count_columns(out, environment) if terminal else 0,
    )


def _count_columns(terminal: TextIO, environment: Mapping[str, str]) -> int:
    said = environment.get("COLUMNS", "")
    if said.isascii() and said.isdigit() and int(said):
        return int(said)
    try:
        return os.get_terminal_size(terminal.fileno()).columns or _USUAL_COLUMNS
    except OSError:
        return _USUAL_COLUMNS


def deliver_output(program: str, work: Callable[[], T]) -> T | int:
    """The result of the work, once its output has arrived; an exit status when that fails."""
    _prepare_streams()
    try:
        result = work()
        sys.stdout.flush()
    except BrokenPipeError:
        _write_nowhere()
        return CLOSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as failed:
        if failed.errno not in _CANNOT_WRITE or failed.filename is not None:
            raise
        _write_nowhere()
        _write_error(f"{program}: the output cannot be written: {failed.strerror}\n")
        return _FAILED
    return result


def _prepare_streams() -> None:
    codecs.register_error(_LOOK_ALIKE, _replace_missing)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            from pathlib import Path

            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 for the whole process
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=_LOOK_ALIKE)


def _replace_missing(error: UnicodeError) -> tuple[str, int]:
    """For characters an encoding lacks: our own marks in ASCII, others as escapes."""
    from pointsman.screen import to_ascii

    assert isinstance(error, UnicodeEncodeError)
    missing = error.object[error.start : error.end]
    return "".join(
        alike if (alike := to_ascii(one)).isascii() else escape_ascii(one) for one in missing
    ), error.end


def escape_ascii(character: str) -> str:
    """The character as JSON writes it in ASCII."""
    digits = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{digits[at : at + 4]}" for at in range(0, len(digits), 4))


def _write_nowhere() -> None:
    """What is still buffered must not fail again when the interpreter ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _write_error(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        os._exit(_FAILED)
