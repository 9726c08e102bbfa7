"""The iptables programs of one IP family as functions with typed errors.

Everything runs with argument lists and timeouts (see command.py). A rejected restore names and shows the line; a lock that is
held names the holder; neither is mistaken for "does not exist".
"""

from __future__ import annotations

import contextlib
import errno
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from pointsman.errors import Busy, KernelError, NotSupported, Rejected
from pointsman.kernel import xtables_lock
from pointsman.kernel.command import CommandResult, Commands
from pointsman.kernel.iptables_programs import HOST_DEFAULT, Features, find_programs, probe_features
from pointsman.kernel.xtables_lock import LockNotOpened
from pointsman.model.addresses import Family

_EDIT_SECONDS = 60.0
_RESTORE_SECONDS = 600.0
_STATUS_BAD_USAGE = 2
_STATUS_OLD_KERNEL = 3
_LOCK_TEXT = "xtables lock"
_NO_LOCK_FILE_TEXT = "can't open lock file"
_MOMENTARY = re.compile("Cannot allocate memory|Resource temporarily unavailable|Interrupted system call")
"""Errors that the line they name does not cause: the same line may be accepted a second later."""
_LINE = re.compile(r"line:? (\d+)")
_INCOMPATIBLE = re.compile("is incompatible, use 'nft' tool|Parsing nftables rule failed")
_UNREADABLE = re.compile(rb"^# Table `\w+' is incompatible[ -~]*", re.MULTILINE)
_DENIED = re.compile("Permission denied|Operation not permitted")
_UNSUPPORTED = re.compile(
    "Table does not exist|Could not fetch rule set generation id|Failed to initialize nft|Protocol not available"
)
_NOISE = re.compile(r"^(Ignoring deprecated --wait-interval.*|Try `.*|# Warning: .*|)$")


class RestoreRejected(Rejected):
    """A restore was rejected; `line` counts from 1, 0 when the program named none."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


class Incompatible(Rejected):
    """A table of iptables holds rules written with nft: iptables can add to it but not list it."""


class Iptables:
    """Runs the programs of one family and variant. Not thread-safe; give each worker its own."""

    def __init__(
        self,
        family: Family,
        commands: Commands,
        *,
        variant: str = HOST_DEFAULT,
        lock_file: Path = xtables_lock.LOCK_FILE,
        take_lock: Callable[[Path], contextlib.AbstractContextManager[None]] = xtables_lock.hold,
        restore_seconds: float = _RESTORE_SECONDS,
    ) -> None:
        self.family = family
        self.programs = find_programs(family, variant)
        self._commands = commands
        self._lock_file = lock_file
        self._take_lock = take_lock
        self._restore_seconds = restore_seconds
        self._features: Features | None = None

    @property
    def features(self) -> Features:
        """What the installed version can do; probed once."""
        if self._features is None:
            self._features = probe_features(self._commands, self.programs)
        return self._features

    def find_obstacle(self) -> KernelError | None:
        """Return why no rules can be read or written here; None when they can. Raises KernelError on a temporary failure."""
        try:
            result = self._edit("nat", "-S", "POSTROUTING", missing_is_fine=True)
        except (Busy, LockNotOpened):
            raise
        except KernelError as error:
            if error.is_temporary:
                raise
            return error
        if _INCOMPATIBLE.search(result.error_text):
            return self._build_error((self.programs.edit,), result)
        return NotSupported("the kernel lacks table nat") if result.status else None

    def has_chain(self, table: str, chain: str) -> bool:
        """Return whether the chain exists; a held lock or lack of resources raises and never counts as "no"."""
        return self._edit(table, "-S", chain, missing_is_fine=True).status == 0

    def list_chain(self, table: str, chain: str) -> list[str] | None:
        """Return the rules of a chain as save prints them; None when there is no such chain."""
        result = self._edit(table, "-S", chain, missing_is_fine=True)
        if result.status != 0:
            return None
        return [
            line for line in result.stdout.decode(errors="replace").splitlines() if line.startswith("-A ")
        ]

    def check_rule(self, table: str, chain: str, rule: Sequence[str]) -> bool:
        """Return whether the chain holds this rule."""
        if not self.features.check:
            wanted = sorted(option.strip('"') for option in rule)
            return any(
                sorted(shlex.split(line)[2:]) == wanted for line in self._read_saved_rules(table, chain)
            )
        result = self._edit(table, "-C", chain, *rule, missing_is_fine=True)
        return result.status == 0

    def save(self, table: str, seconds: float | None = None) -> bytes:
        """Return the table as text, without counters; raises CommandTimeout after that time, if one is given.

        For a table that it cannot read, iptables-nft-save prints a comment about that, and succeeds.
        """
        arguments = (self.programs.save, "-t", table)
        result = self._commands.run(arguments, timeout=seconds or self._restore_seconds)
        if result.status != 0:
            raise self._build_error(arguments, result)
        unreadable = _UNREADABLE.search(result.stdout, 0, 500)
        if unreadable:
            raise _build_incompatible(" ".join(arguments), unreadable[0].decode().lstrip("# "))
        return result.stdout

    def restore(self, text: bytes) -> None:
        """Load rules and keep other chains; raises RestoreRejected naming the line, Busy, or another KernelError."""
        features = self.features
        arguments = (self.programs.restore, *features.restore_wait, "--noflush", "--counters")
        lock = contextlib.nullcontext() if features.restore_wait else self._take_lock(self._lock_file)
        with lock:
            result = self._commands.run(arguments, stdin=text, timeout=self._restore_seconds)
        if result.status == 0:
            return
        complaint = _find_complaint(result)
        match = _LINE.search(complaint)
        if match is None or _LOCK_TEXT in complaint or _MOMENTARY.search(complaint):
            raise self._build_error(arguments, result)
        line = int(match[1])
        raise RestoreRejected(
            f"{self.programs.restore}: {complaint}; line {line}: {_find_line(text, line)}", line
        )

    def _read_saved_rules(self, table: str, chain: str) -> list[str]:
        prefix = f"-A {chain} "
        lines = self.save(table).decode(errors="replace").splitlines()
        return [line for line in lines if line.startswith(prefix)]

    def _edit(
        self, table: str, operation: str, chain: str, *rule: str, missing_is_fine: bool = False
    ) -> CommandResult:
        arguments = (self.programs.edit, *self.features.wait, "-t", table, operation, chain, *rule)
        result = self._commands.run(arguments, timeout=_EDIT_SECONDS)
        fine = (0, 1, _STATUS_BAD_USAGE) if missing_is_fine else (0,)
        if result.status not in fine or _LOCK_TEXT in result.error_text:
            raise self._build_error(arguments, result)
        if result.status == _STATUS_BAD_USAGE and not _names_missing_chain(result.error_text):
            raise self._build_error(arguments, result)
        return result

    def _build_error(self, arguments: Sequence[str], result: CommandResult) -> KernelError:
        command = " ".join(arguments)
        complaint = _find_complaint(result)
        if result.status < 0:
            return KernelError(f"{command} was killed by signal {-result.status}")
        if _LOCK_TEXT in complaint:
            return Busy(f"{command}: {xtables_lock.describe_busy(self._lock_file)}; retrying later")
        if _NO_LOCK_FILE_TEXT in complaint:
            return LockNotOpened(f"{command}: {complaint}")
        if _INCOMPATIBLE.search(complaint):
            return _build_incompatible(command, complaint)
        if _MOMENTARY.search(complaint):
            return KernelError(f"{command} failed with status {result.status}: {complaint}", errno.EAGAIN)
        if _DENIED.search(complaint):
            return KernelError(f"{command}: {complaint}", errno.EPERM)
        if result.status == _STATUS_OLD_KERNEL or _UNSUPPORTED.search(complaint):
            return NotSupported(f"{command}: {complaint}; the kernel lacks this table")
        return KernelError(f"{command} failed with status {result.status}: {complaint}")


def _build_incompatible(command: str, complaint: str) -> Incompatible:
    return Incompatible(
        f"{command}: {complaint}; rules written with nft are in a table that iptables owns; move them to another table"
    )


def _names_missing_chain(text: str) -> bool:
    """Return whether the error is that of a rule whose target chain is missing: a usage error for both variants."""
    return "does not exist" in text or "Couldn't load target" in text


def _find_complaint(result: CommandResult) -> str:
    lines = [line.strip() for line in result.error_text.splitlines()]
    return " ".join(line for line in lines if not _NOISE.match(line)) or "no error text"


def _find_line(text: bytes, number: int) -> str:
    """Return a line of a restore text, counted from 1; empty when there is none."""
    lines = text.splitlines()
    return lines[number - 1].decode(errors="replace") if 0 < number <= len(lines) else ""
