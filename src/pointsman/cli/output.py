"""Output of commands: terminal, formats, errors and exit statuses.

A closed pipe ends a command without a message, with the exit status of SIGPIPE; other write errors are reported. Characters that the
locale lacks are replaced.
"""

from __future__ import annotations

import codecs
import errno
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TextIO, TypeVar

from pointsman.errors import ConfigError, PointsmanError
from pointsman.text import escape, escape_json

if TYPE_CHECKING:
    import argparse

    from pointsman.screen import Screen

COLOUR_CHOICES: Final = ("auto", "always", "never")
CLOSED: Final = 128 + signal.SIGPIPE
INTERRUPTED: Final = 128 + signal.SIGINT
ERROR: Final = 2
"""Exit status when a command could not do its work."""
_USUAL_COLUMNS: Final = 80
_CANNOT_WRITE: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF))
_LOOK_ALIKE: Final = "pointsman-look-alike"

T = TypeVar("T")


def detect_screen(
    colour: str = "auto", stream: TextIO | None = None, environment: Mapping[str, str] = os.environ
) -> Screen:
    """Return what standard output can show: a terminal has a width and, without NO_COLOR and TERM=dumb, colours."""
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
    columns = environment.get("COLUMNS", "")
    if columns.isascii() and columns.isdigit() and int(columns):
        return int(columns)
    try:
        return os.get_terminal_size(terminal.fileno()).columns or _USUAL_COLUMNS
    except OSError:
        return _USUAL_COLUMNS


def deliver_output(program: str, work: Callable[[], T]) -> T | int:
    """Return the result of the work once its output is flushed, or an exit status when that fails."""
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
        return ERROR
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
    """Replace characters that an encoding lacks: our own marks in ASCII, others as escapes."""
    from pointsman.screen import to_ascii

    assert isinstance(error, UnicodeEncodeError)
    missing = to_ascii(error.object[error.start : error.end])
    return missing.encode("ascii", "backslashreplace").decode(), error.end


def _write_nowhere() -> None:
    """Discard what is still buffered, so that it does not fail again when the interpreter ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _write_error(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        os._exit(ERROR)


def run_guarded(command: str, work: Callable[[], int]) -> int:
    """Run a command; expected errors become one message each and exit status 2."""
    try:
        return work()
    except ConfigError as error:
        problems: Sequence[str] = error.problems
    except PointsmanError as error:
        problems = [str(error)]
    except UnicodeEncodeError as error:
        problems = [f"an argument is not UTF-8: {error.object[error.start : error.end]}"]
    _say(command, problems)
    return ERROR


def warn(command: str, problems: Sequence[str]) -> None:
    _say(f"{command}: warning", problems)


def _say(command: str, problems: Sequence[str]) -> None:
    for problem in problems:
        sys.stderr.write(f"pointsman {command}: {escape(problem)}\n")


def print_json_lines(values: Iterable[object]) -> None:
    sys.stdout.writelines(f"{_encode_json(one)}\n" for one in values)


def _encode_json(value: object, indent: int | None = None) -> str:
    """Return JSON without characters that a terminal would act on, or that the reader's locale lacks."""
    import msgspec

    if not detect_screen().unicode:
        return json.dumps(msgspec.to_builtins(value), indent=indent)
    encoded = msgspec.json.encode(value)
    return escape_json((msgspec.json.format(encoded, indent=indent) if indent else encoded).decode())


def print_answer(given: argparse.Namespace, answer: T, render: Callable[[T, Screen], str]) -> None:
    """Print in the format asked for: as a document for programs, or as text for this screen."""
    if given.output == "json":
        sys.stdout.write(f"{_encode_json(answer, indent=2)}\n")
    elif given.output == "yaml":
        import msgspec
        import yaml

        sys.stdout.write(yaml.safe_dump(msgspec.to_builtins(answer), sort_keys=False))
    else:
        sys.stdout.write(render(answer, detect_screen(given.color)))
