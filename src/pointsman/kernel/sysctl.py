"""Kernel settings under /proc/sys and /sys: read, make sure of, and put back.

Every change is written to a journal before it is made, with the value found, so that a later clean-up (another
process, possibly after a crash) can undo it; a value that was changed externally since stays. A setting
that cannot be written never stops the proxy: containers with a read-only /proc are common, and what is missing
is reported as a condition instead (k8s 141943). The same goes for a value that another program changes later: it is
restored, a few times at most.
"""

from __future__ import annotations

import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Final

import msgspec

from pointsman.conditions import Condition
from pointsman.obs.log import get_log

RESTORED_SECONDS: Final = 20.0
"""How long a condition reports that a setting was restored."""
MAX_RESTORES: Final = 3
RESTORE_WINDOW_SECONDS: Final = 3600.0
"""A setting is restored that often in that time: another program may insist on its value."""

_log = get_log(__name__)


class _Wanted(msgspec.Struct):
    """A setting that this process keeps."""

    value: str
    at_least: bool
    """A larger number is as good."""
    effect: str = ""
    """What does not work otherwise, in front of every message."""
    problem: Condition | None = None
    restored: list[float] = []
    """When another program's value was replaced, within the window."""

    def is_met(self, found: str | None) -> bool:
        if self.at_least and found is not None and found.isdigit():
            return int(found) >= int(self.value)
        return found == self.value


class Change(msgspec.Struct, frozen=True):
    """A changed setting, with the value that it had before the first change."""

    before: str
    after: str


class Undone(msgspec.Struct, frozen=True):
    """What undoing did to one setting that did not have its old value again by itself."""

    name: str
    change: Change
    found: str | None
    """What it was set to before undoing; unless it is `change.after`, the setting was changed externally since."""
    error: str = ""
    """Why the old value could not be written."""

    @property
    def taken(self) -> bool:
        return self.found != self.change.after


class _Journal:
    """The changes on record for this network namespace; memory covers for a file that cannot be written.

    The file is the truth, because several objects may share it.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._namespace = _find_network_namespace()
        self._own: dict[str, Change] = {}
        self._fails = False

    def read(self) -> dict[str, Change]:
        return {**self._own, **self._load().get(self._namespace, {})}

    def record(self, name: str, change: Change | None) -> None:
        """Put a change on record; None removes it."""
        section = self.read()
        for record in (section, self._own):
            if change is None:
                record.pop(name, None)
            else:
                record[name] = change
        self._write(section)

    def replace(self, changes: dict[str, Change]) -> None:
        self._own = changes
        self._write(changes)

    def _load(self) -> dict[str, dict[str, Change]]:
        if self._path is None:
            return {}
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, dict[str, Change]])
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, msgspec.DecodeError) as error:
            journal = str(self._path)
            _log.warning(
                "Cannot read the record of changed sysctls; starting a new one", journal=journal, err=error
            )
            return {}

    def _write(self, section: dict[str, Change]) -> None:
        if self._path is None:
            return
        everywhere = {**self._load(), self._namespace: section}
        kept = {namespace: changes for namespace, changes in everywhere.items() if changes}
        failed_before, self._fails = self._fails, False
        try:
            if not kept:
                self._path.unlink(missing_ok=True)
                return
            _write_whole(self._path, msgspec.json.format(msgspec.json.encode(kept), indent=1))
        except OSError as error:
            self._fails = True
            if not failed_before:
                journal = str(self._path)
                _log.warning(
                    "Cannot record changed sysctls, so clean-up will not undo them",
                    journal=journal,
                    err=error,
                )


class Sysctls:
    """Settings of this network namespace, named by their path below /proc/sys (`net/ipv4/ip_forward`).

    A name that starts with a slash is a whole path, for module parameters in /sys. `root` replaces `/` in tests;
    without a journal nothing is remembered beyond this object. One journal may serve several network namespaces:
    each finds its own changes only.
    """

    def __init__(
        self,
        root: Path = Path("/"),
        journal: Path | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.restored = 0
        """How often another program's value was replaced."""
        self._root, self._clock = root, clock
        self._journal = _Journal(journal)
        self._wanted: dict[str, _Wanted] = {}
        self._lock = threading.Lock()

    @property
    def changes(self) -> dict[str, Change]:
        """All changes on record, those of earlier runs included."""
        with self._lock:
            return self._journal.read()

    @property
    def wanted(self) -> frozenset[str]:
        """Names of the settings that are kept."""
        return frozenset(self._wanted)

    def conditions(self) -> tuple[Condition, ...]:
        """Return one for each setting that does not have the value it should, or did not have it a moment ago."""
        return tuple(one.problem for one in tuple(self._wanted.values()) if one.problem is not None)

    def read(self, name: str) -> str | None:
        """Return the value without its newline; None when there is no such setting here."""
        try:
            return self._find_path(name).read_text().strip()
        except (OSError, UnicodeDecodeError):
            return None

    def read_int(self, name: str) -> int | None:
        text = self.read(name)
        try:
            return int(text) if text is not None else None
        except ValueError:
            return None

    def ensure(self, name: str, value: int | str, *, at_least: bool = False, effect: str = "") -> bool:
        """Make the setting have this value, now and at every `restore`; return whether that succeeded.

        With `at_least`, a larger number is no problem where it cannot be written, or where it is found later. `effect` is
        what does not work otherwise.
        """
        with self._lock:
            wanted = self._wanted.get(name)
            if wanted is not None and wanted.value == str(value):
                self._restore_wanted(name, wanted)
                return wanted.is_met(self.read(name))
            wanted = self._wanted[name] = _Wanted(str(value), at_least, f"{effect}: " if effect else "")
            found = self.read(name)
            problem = None if found == wanted.value else self._set(name, wanted)
            wanted.problem = None if wanted.is_met(found) else problem
            return problem is None

    def forget_wanted(self, names: Iterable[str]) -> None:
        """Keep these settings no longer; those on record can still be undone."""
        with self._lock:
            for name in names:
                self._wanted.pop(name, None)

    def restore(self) -> None:
        """Compare all settings with what they should be, and write those that were changed externally."""
        with self._lock:
            for name, wanted in self._wanted.items():
                self._restore_wanted(name, wanted)

    def _restore_wanted(self, name: str, wanted: _Wanted) -> None:
        found, now = self.read(name), self._clock()
        wanted.restored = [at for at in wanted.restored if now - at < RESTORE_WINDOW_SECONDS]
        if wanted.is_met(found):
            if not wanted.restored or now - wanted.restored[-1] >= RESTORED_SECONDS:
                wanted.problem = None
            return
        if wanted.problem is not None and wanted.problem.reason == "NotWritable":
            wanted.problem = self._set(name, wanted)
            return
        if found is None:
            return  # A failed reading does not show a change by another program.
        kind = _format_condition_type(name)
        changed = f"{wanted.effect}another program set {name} to {found} instead of {wanted.value}"
        remedy = "find the program (tuned, a sysctl.d file, `pointsman cleanup`), or configure its value here"
        if len(wanted.restored) >= MAX_RESTORES:
            message = f"{changed}; it was restored {MAX_RESTORES} times within an hour and is left now"
            wanted.problem = Condition.false(kind, "ChangedExternally", message, remedy)
            return
        wanted.problem = self._set(name, wanted)
        if wanted.problem is None:
            self.restored += 1
            wanted.restored.append(now)
            wanted.problem = Condition.false(kind, "Restored", f"{changed}; it was restored", remedy)

    def _set(self, name: str, wanted: _Wanted) -> Condition | None:
        """Record and write a value; return a condition when that is impossible."""
        value = wanted.value
        found, earlier = self.read(name), self._journal.read().get(name)
        if found is not None:
            self._journal.record(name, Change(earlier.before if earlier else found, value))
        try:
            self._find_path(name).write_text(value)
        except OSError as error:
            self._journal.record(name, earlier)
            have = f"it is {found}" if found is not None else "it cannot be read"
            return Condition.false(
                _format_condition_type(name),
                "NotWritable",
                f"{wanted.effect}cannot set {name} to {value} ({error.strerror}); {have}",
                "set it on the host",
            )
        _log.info("Changed a sysctl", name=name, value=value, before=found)
        return None

    def undo(self, keep: Collection[str] = (), *, dry_run: bool = False) -> list[Undone]:
        """Put back every value on record that was not changed externally since, but those to `keep`; what could not be written stays on record.

        A dry run changes nothing and returns what would be done.
        """
        with self._lock:
            recorded = self._journal.read()
            undone = [
                self._put_back(Undone(name, change, self.read(name)), dry_run=dry_run)
                for name, change in recorded.items()
                if name not in keep
            ]
            if not dry_run:
                kept = {name: change for name, change in recorded.items() if name in keep}
                self._journal.replace(kept | {one.name: one.change for one in undone if one.error})
        return [one for one in undone if one.found != one.change.before]

    def _put_back(self, undone: Undone, *, dry_run: bool) -> Undone:
        if not undone.taken and not dry_run:
            try:
                self._find_path(undone.name).write_text(undone.change.before)
            except OSError as error:
                return msgspec.structs.replace(undone, error=error.strerror or str(error))
        return undone

    def _find_path(self, name: str) -> Path:
        return self._root / name[1:] if name.startswith("/") else self._root / "proc" / "sys" / name


def _format_condition_type(name: str) -> str:
    """Return `SysctlNfConntrackMax` for `net/netfilter/nf_conntrack_max`."""
    parts = re.split(r"[_-]", name.rpartition("/")[2])
    return "Sysctl" + "".join(part.capitalize() for part in parts)


def _write_whole(path: Path, content: bytes) -> None:
    """Replace the file in one step, so that no reader ever sees half of it; a failure leaves nothing behind."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".sysctls-")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _find_network_namespace() -> str:
    try:
        return str(Path("/proc/thread-self/ns/net").readlink())
    except OSError:
        return "unknown"


def parse_kernel_version(release: str) -> tuple[int, int]:
    """Return major and minor number of a kernel release; (0, 0) when it cannot be parsed."""
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match else (0, 0)
