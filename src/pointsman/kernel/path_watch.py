"""Notices that the content behind a path may have changed, however it was changed.

Configuration and manifests are replaced in many ways: written in place, renamed over, or, in a mounted ConfigMap,
by swapping the symbolic link `..data`, which a watch of the file itself does not report. So every directory that takes part
in resolving the path is watched, and a fingerprint is polled where inotify reports nothing (network file systems,
no watches left).
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import stat
import struct
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path

from pointsman.files import signature_from

_IN_Q_OVERFLOW, _IN_IGNORED = 0x4000, 0x8000
_WANTED = 0x2 | 0x4 | 0x8 | 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800
"""MODIFY, ATTRIB, CLOSE_WRITE, MOVED_FROM, MOVED_TO, CREATE, DELETE, DELETE_SELF and MOVE_SELF of inotify."""
_EVENT = struct.Struct("iIII")
_MAX_LINKS = 40

_libc = ctypes.CDLL(None, use_errno=True)

Fingerprint = tuple[object, ...] | None


class Inotify:
    """One inotify instance whose watches name the directory entries that matter."""

    def __init__(self) -> None:
        descriptor = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if descriptor < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        self.descriptor: int = descriptor
        self._directory_of: dict[int, str] = {}
        self._names: dict[str, frozenset[str] | None] = {}

    def watch_only(self, wanted: Mapping[str, frozenset[str] | None]) -> None:
        """Watch exactly these directories; None instead of names means that every entry matters."""
        for watch, directory in list(self._directory_of.items()):
            if directory not in wanted:
                _libc.inotify_rm_watch(self.descriptor, watch)
                del self._directory_of[watch]
        for directory in wanted:
            watch = _libc.inotify_add_watch(self.descriptor, os.fsencode(directory), _WANTED)
            if watch >= 0:
                self._directory_of[watch] = directory
        self._names = dict(wanted)

    def drain(self) -> bool:
        """Read all pending events; return True when one of them concerns a watched entry."""
        concerned = False
        while True:
            try:
                data = os.read(self.descriptor, 65536)
            except BlockingIOError:
                return concerned
            position = 0
            while position < len(data):
                watch, mask, _cookie, length = _EVENT.unpack_from(data, position)
                position += _EVENT.size
                name = data[position : position + length].rstrip(b"\0")
                position += length
                concerned |= self._concerns(watch, mask, os.fsdecode(name))

    def _concerns(self, watch: int, mask: int, name: str) -> bool:
        if mask & _IN_Q_OVERFLOW:
            return True
        directory = self._directory_of.get(watch)
        if mask & _IN_IGNORED:
            return self._directory_of.pop(watch, None) is not None
        if directory is None:
            return False
        names = self._names.get(directory, frozenset())
        return not name or names is None or name in names

    def close(self) -> None:
        os.close(self.descriptor)


def find_path_entries(path: Path) -> dict[str, frozenset[str] | None]:
    """Return the directories, with the entries in them, that decide what `path` leads to.

    Each symbolic link on the way adds the directory that holds it. Where the way ends early, the last existing
    directory is included with the missing name, so that creation is seen.
    """
    entries: dict[str, set[str] | None] = {}
    pending = [part for part in path.absolute().parts[1:] if part != "."]
    here = "/"
    followed = 0
    while pending:
        name = pending.pop(0)
        if name == "..":
            here = str(Path(here).parent)
            continue
        names = entries.setdefault(here, set())
        if names is not None:
            names.add(name)
        full = os.path.join(here, name)  # noqa: PTH118  plain strings: this runs for every component
        try:
            mode = os.lstat(full).st_mode
            if stat.S_ISLNK(mode) and followed < _MAX_LINKS:
                followed += 1
                target = Path(os.readlink(full))  # noqa: PTH115  a broken or relative link is kept as written
                if target.is_absolute():
                    here = "/"
                pending[:0] = [part for part in target.parts if part not in ("/", ".")]
                continue
        except OSError:
            break
        if not stat.S_ISDIR(mode):
            break
        here = full
    else:
        entries[here] = None
    return {directory: None if names is None else frozenset(names) for directory, names in entries.items()}


def compute_fingerprint(path: Path) -> Fingerprint:
    """Return a value that differs when the file, or any entry of the directory, was replaced or rewritten; None if absent."""
    try:
        found = path.stat()
        if not stat.S_ISDIR(found.st_mode):
            return signature_from(found)
        listing: list[object] = []
        with os.scandir(path) as directory:
            for entry in sorted(directory, key=lambda entry: entry.name):
                try:
                    listing.append((entry.name, signature_from(entry.stat())))
                except OSError:
                    listing.append((entry.name, None))
        return (found.st_dev, found.st_ino, tuple(listing))
    except OSError:
        return None


def watch_path(
    path: Path, *, debounce: float = 0.2, poll: float = 10.0, open_inotify: Callable[[], Inotify] = Inotify
) -> AsyncGenerator[None, None]:
    """Yield each time the content behind a file or directory may have changed since this call.

    Call it before reading the content: a change between the call and the first iteration is reported too.
    A burst of changes is reported once, after `debounce` seconds without another one (at most ten times that).
    """
    return _follow_changes(path, compute_fingerprint(path), debounce, poll, open_inotify)


async def _follow_changes(
    path: Path, last: Fingerprint, debounce: float, poll: float, open_inotify: Callable[[], Inotify]
) -> AsyncGenerator[None, None]:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    try:
        inotify = open_inotify()
    except OSError:
        inotify = None
    if inotify is not None:
        loop.add_reader(inotify.descriptor, readable.set)
    try:
        while True:
            touched = False
            if inotify is not None:
                readable.clear()
                inotify.watch_only(find_path_entries(path))
                touched = inotify.drain()
            if not touched and compute_fingerprint(path) == last:
                touched = await _wait_for_event(inotify, readable, poll)
            if touched or compute_fingerprint(path) != last:
                await _wait_for_quiet(inotify, readable, debounce)
                last = compute_fingerprint(path)
                yield
    finally:
        if inotify is not None:
            loop.remove_reader(inotify.descriptor)
            inotify.close()


async def _wait_for_event(inotify: Inotify | None, readable: asyncio.Event, seconds: float) -> bool:
    """Return True as soon as a watched entry is touched, False after `seconds` without that."""
    try:
        async with asyncio.timeout(seconds):
            while True:
                await readable.wait()
                readable.clear()
                if inotify is not None and inotify.drain():
                    return True
    except TimeoutError:
        return False


async def _wait_for_quiet(inotify: Inotify | None, readable: asyncio.Event, debounce: float) -> None:
    """Return once nothing has happened for `debounce` seconds, or after ten times that."""
    deadline = asyncio.get_running_loop().time() + 10 * debounce
    while asyncio.get_running_loop().time() < deadline and await _wait_for_event(inotify, readable, debounce):
        continue
