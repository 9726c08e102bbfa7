"""Running programs: argument lists, a time limit, bytes in and out. The only module that starts processes.

No shell is ever involved. The environment is fixed to the C locale because error texts are parsed, and the
system directories are added to PATH because service managers often leave them out. Tests hand a `Commands`
stand-in to whatever runs programs.
"""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Sequence
from typing import Protocol

import msgspec

from pointsman.errors import KernelError, NotSupported

_SYSTEM_DIRECTORIES = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/bin", "/usr/bin", "/bin")


class CommandResult(msgspec.Struct, frozen=True, gc=False):
    """What a program did: exit status (negative: killed by that signal) and its output."""

    status: int
    stdout: bytes = b""
    stderr: bytes = b""

    @property
    def error_text(self) -> str:
        """Its error output, or else its output."""
        return (self.stderr or self.stdout).decode(errors="replace").strip()


class CommandTimeout(KernelError):
    """A program did not finish in time and was killed; what it did until then is unknown."""


class Commands(Protocol):
    """Runs programs to completion."""

    def run(self, arguments: Sequence[str], *, stdin: bytes = b"", timeout: float = 30.0) -> CommandResult:
        """Return the result, whatever the exit status; raises NotSupported when the program is not installed."""


class SystemCommands:
    """Runs programs of this host."""

    def __init__(self) -> None:
        self._environment = {
            "PATH": _build_search_path(os.environ.get("PATH", "")),
            "LC_ALL": "C",
            **{
                name: os.environ[name]
                for name in ("XTABLES_LOCKFILE", "XTABLES_LIBDIR")
                if name in os.environ
            },
        }

    def run(self, arguments: Sequence[str], *, stdin: bytes = b"", timeout: float = 30.0) -> CommandResult:
        try:
            done = subprocess.run(
                list(arguments),
                input=stdin,
                capture_output=True,
                timeout=timeout,
                env=self._environment,
                check=False,
            )
        except FileNotFoundError as error:
            raise NotSupported(
                f"{arguments[0]} is not installed (looked in {self._environment['PATH']})", errno.ENOENT
            ) from error
        except subprocess.TimeoutExpired as error:
            raise CommandTimeout(
                f"{' '.join(arguments)} did not finish within {timeout:g} s and was killed", errno.ETIMEDOUT
            ) from error
        except OSError as error:
            raise KernelError(f"cannot run {arguments[0]}: {error.strerror}", error.errno or 0) from error
        return CommandResult(done.returncode, done.stdout, done.stderr)


def _build_search_path(inherited: str) -> str:
    directories = [part for part in inherited.split(os.pathsep) if part.startswith("/")]
    directories += [part for part in _SYSTEM_DIRECTORIES if part not in directories]
    return os.pathsep.join(directories)
