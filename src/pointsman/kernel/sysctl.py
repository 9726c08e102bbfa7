"""Kernel settings under /proc/sys and /sys: read, make sure of, and put back.

Every change is written to a journal before it is made, with the value found, so that a later clean-up (another
process, perhaps after a crash) can undo it; a value that was changed externally since stays. A setting
that cannot be written never stops the proxy: containers with a read-only /proc are common, and what is missing
is reported as a condition instead (k8s 141943).
"""

from __future__ import annotations

import os
import re
import tempfile
import threading
from collections.abc import Collection
from pathlib import Path

import msgspec

from pointsman.conditions import Condition
from pointsman.obs.log import get_log

_log = get_log(__name__)


class Change(msgspec.Struct, frozen=True):
    """A setting we changed, with the value it had when we first came."""

    before: str
    after: str


class Undone(msgspec.Struct, frozen=True):
    """What undoing did to one setting that did not have its old value again by itself."""

    name: str
    change: Change
    found: str | None
    """What it was set to before undoing; unless it is our value, the setting was changed externally since."""
    error: str = ""
    """Why the old value could not be written."""

    @property
    def taken(self) -> bool:
        return self.found != self.change.after


class Sysctls:
    """Settings of this network namespace, named by their path below /proc/sys (`net/ipv4/ip_forward`).

    A name that starts with a slash is a whole path, for module parameters in /sys. `root` replaces `/` in tests;
    without a journal nothing is remembered beyond this object. One journal may serve several network namespaces:
    each finds its own changes only.
    """

    def __init__(self, root: Path = Path("/"), journal: Path | None = None) -> None:
        self._root, self._journal = root, journal
        self._lock = threading.Lock()
        self._namespace = _network_namespace()
        self._own: dict[str, Change] = {}
        self._journal_fails = False

    @property
    def changes(self) -> dict[str, Change]:
        """All changes on record, those of earlier runs included."""
        with self._lock:
            return self._recorded()

    def read(self, name: str) -> str | None:
        """The value without its newline; None when there is no such setting here."""
        try:
            return self._path(name).read_text().strip()
        except (OSError, UnicodeDecodeError):
            return None

    def read_int(self, name: str) -> int | None:
        text = self.read(name)
        try:
            return int(text) if text is not None else None
        except ValueError:
            return None

    def ensure(self, name: str, value: int | str) -> Condition | None:
        """Make the setting have this value; return a condition when that is impossible."""
        wanted = str(value)
        with self._lock:
            found = self.read(name)
            if found == wanted:
                return None
            earlier = self._recorded().get(name)
            if found is not None:
                self._record(name, Change(earlier.before if earlier else found, wanted))
            try:
                self._path(name).write_text(wanted)
            except OSError as error:
                self._record(name, earlier)
                have = f"it is {found}" if found is not None else "it cannot be read"
                return Condition.false(
                    _condition_type(name),
                    "NotWritable",
                    f"cannot set {name} to {wanted} ({error.strerror}); {have}",
                    "set it on the host",
                )
        _log.info("Changed a sysctl", name=name, value=wanted, before=found)
        return None

    def undo(self, keep: Collection[str] = ()) -> list[Undone]:
        """Put back every value on record that is still ours, but those to `keep`; what could not be written stays on record."""
        with self._lock:
            recorded = self._recorded()
            undone = [self._restore(name, change) for name, change in recorded.items() if name not in keep]
            self._own = {name: change for name, change in recorded.items() if name in keep}
            self._own |= {one.name: one.change for one in undone if one.error}
            self._write_section(self._own)
        return [one for one in undone if one.found != one.change.before]

    def preview_undo(self) -> list[Undone]:
        """Return what `undo` would do."""
        undone = [Undone(name, change, self.read(name)) for name, change in self.changes.items()]
        return [one for one in undone if one.found != one.change.before]

    def _restore(self, name: str, change: Change) -> Undone:
        undone = Undone(name, change, self.read(name))
        if not undone.taken:
            try:
                self._path(name).write_text(change.before)
            except OSError as error:
                return msgspec.structs.replace(undone, error=error.strerror or str(error))
        return undone

    def _path(self, name: str) -> Path:
        return self._root / name[1:] if name.startswith("/") else self._root / "proc" / "sys" / name

    def _recorded(self) -> dict[str, Change]:
        """The journal is the truth, because several objects may share it; memory covers for one not writable."""
        return {**self._own, **_load(self._journal).get(self._namespace, {})}

    def _record(self, name: str, change: Change | None) -> None:
        section = self._recorded()
        for record in (section, self._own):
            if change is None:
                record.pop(name, None)
            else:
                record[name] = change
        self._write_section(section)

    def _write_section(self, section: dict[str, Change]) -> None:
        if self._journal is None:
            return
        everywhere = {**_load(self._journal), self._namespace: section}
        kept = {namespace: changes for namespace, changes in everywhere.items() if changes}
        failed_before, self._journal_fails = self._journal_fails, False
        try:
            if not kept:
                self._journal.unlink(missing_ok=True)
                return
            _write_whole(self._journal, msgspec.json.format(msgspec.json.encode(kept), indent=1))
        except OSError as error:
            self._journal_fails = True
            if not failed_before:
                _log.warning(
                    "Cannot record changed sysctls, so clean-up will not undo them",
                    journal=str(self._journal),
                    err=error,
                )


def _condition_type(name: str) -> str:
    """`SysctlNfConntrackMax` for `net/netfilter/nf_conntrack_max`."""
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


def _network_namespace() -> str:
    try:
        return str(Path("/proc/thread-self/ns/net").readlink())
    except OSError:
        return "unknown"


def _load(journal: Path | None) -> dict[str, dict[str, Change]]:
    if journal is None:
        return {}
    try:
        return msgspec.json.decode(journal.read_bytes(), type=dict[str, dict[str, Change]])
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, msgspec.DecodeError) as error:
        _log.warning(
            "Cannot read the record of changed sysctls; starting a new one", journal=str(journal), err=error
        )
        return {}


def parse_kernel_version(release: str) -> tuple[int, int]:
    """Return major and minor number of a kernel release; (0, 0) when it cannot be parsed."""
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match else (0, 0)
