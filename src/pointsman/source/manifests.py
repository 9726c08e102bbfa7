"""A file or directory of manifests as a source: no cluster needed.

Files are read again when they change, whichever way they are changed. A file that cannot be read or parsed
keeps its last good content, and so does a single object that became invalid: the API server would have refused
the change, too. Of the same object in two files the first by file name counts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

from pointsman.files import Signature, signature_of
from pointsman.kernel.path_watch import path_changes
from pointsman.kube.listwatch import BadObjectCallback
from pointsman.kube.status import WatchStatus
from pointsman.model.objects import EndpointSlice, KubeObject, Node, Service, ServiceCIDR
from pointsman.model.source_events import Delete, SourceEvent, Synced, Upsert
from pointsman.source.documents import Parsed, Rejection, objects_from_bytes, parse

__all__ = ["ManifestSource", "load_objects", "objects_from_bytes"]

_log = logging.getLogger(__name__)

_SUFFIXES = (".yaml", ".yml", ".json")
_KINDS: tuple[type[KubeObject], ...] = (Node, ServiceCIDR, Service, EndpointSlice)

Identity = tuple[type[KubeObject], str]


def load_objects(path: Path) -> tuple[list[KubeObject], list[str]]:
    """Everything usable below a path, once, and a message for everything that is not. Never raises."""
    content = ManifestContent(path)
    problems = [entry.message for entry in content.refresh()]
    return list(content.objects.values()), problems


@dataclass(slots=True)
class _File:
    """The last good content of one file."""

    signature: Signature | None = None
    objects: dict[Identity, KubeObject] = field(default_factory=dict)


class ManifestContent:
    """What the files hold right now, with memory of what was good. Blocking; no events, no waiting."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files: dict[Path, _File] = {}
        self.objects: dict[Identity, KubeObject] = {}
        self.found = False
        """The path has existed at least once."""

    def refresh(self) -> list[Rejection]:
        """Reads what changed; returns what is wrong with it. Problems of unchanged files are not repeated."""
        problems: list[Rejection] = []
        try:
            paths = _manifest_files(self._path)
        except OSError as error:
            problems.append(_file_problem(self._path, error))
            return problems
        self.found = True
        for path in set(self._files) - set(paths):
            del self._files[path]
        changed: set[Path] = set()
        for path in paths:
            file = self._files.setdefault(path, _File())
            if self._read(path, file, problems):
                changed.add(path)
        self.objects = self._merged(paths, changed, problems)
        return problems

    def _read(self, path: Path, file: _File, problems: list[Rejection]) -> bool:
        """Brings one file up to date; False when it had not changed."""
        try:
            signature = signature_of(path.stat())
            if signature == file.signature:
                return False
            parsed = parse(path.read_bytes(), self._name(path))
        except OSError as error:
            file.signature = None
            problems.append(_file_problem(path, error))
            return False
        file.signature = signature
        problems.extend(parsed.rejections)
        problems.extend(parsed.remarks)
        if parsed.readable:
            file.objects = self._with_last_good(file, parsed, problems)
        return True

    def _with_last_good(
        self, file: _File, parsed: Parsed, problems: list[Rejection]
    ) -> dict[Identity, KubeObject]:
        objects: dict[Identity, KubeObject] = {}
        for item in parsed.objects:
            identity = (type(item), item.metadata.key)
            if identity in objects:
                name, key = identity[0].__name__, identity[1]
                problems.append(Rejection(name, key, f"{name} {key}: twice in one file; the first counts"))
            else:
                objects[identity] = item
        refused = {(entry.kind, entry.key) for entry in parsed.rejections}
        for identity, item in file.objects.items():
            if (identity[0].__name__, identity[1]) in refused:
                objects.setdefault(identity, item)
        return objects

    def _merged(
        self, paths: Iterable[Path], changed: set[Path], problems: list[Rejection]
    ) -> dict[Identity, KubeObject]:
        merged: dict[Identity, KubeObject] = {}
        owners: dict[Identity, Path] = {}
        for path in paths:
            for identity, item in self._files[path].objects.items():
                owner = owners.setdefault(identity, path)
                if owner == path:
                    merged[identity] = item
                elif path in changed or owner in changed:
                    kind, key = identity[0].__name__, identity[1]
                    message = (
                        f"{self._name(path)}: {kind} {key}: already in {self._name(owner)}, which counts"
                    )
                    problems.append(Rejection(kind, key, message))
        return merged

    def _name(self, path: Path) -> str:
        return path.name if path != self._path else str(path)


class ManifestSource:
    """The same interface as ApiSource, fed by files."""

    def __init__(
        self,
        path: Path,
        *,
        node_name: str = "",
        on_bad_object: BadObjectCallback = lambda _kind, _key, _error: None,
        debounce: float = 0.2,
        poll: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._node_name = node_name
        """Other Nodes are left out when this is given."""
        self._on_bad_object = on_bad_object
        self._debounce = debounce
        self._poll = poll
        self._clock = clock
        self._status = WatchStatus()
        self._delivered: dict[Identity, KubeObject] = {}
        self._closed = asyncio.Event()

    @property
    def statuses(self) -> Mapping[str, WatchStatus]:
        return {"manifests": self._status}

    async def events(self) -> AsyncGenerator[SourceEvent, None]:
        """The objects, Synced for every kind, then whatever changes. Ends after `close`. To be iterated once.

        A path that does not exist yet is waited for: an empty answer would undo rules that a mount will bring.
        """
        content = ManifestContent(self._path)
        closing = asyncio.create_task(self._closed.wait())
        try:
            async with aclosing(
                path_changes(self._path, debounce=self._debounce, poll=self._poll)
            ) as changes:
                while not self._closed.is_set():
                    self._report(await asyncio.to_thread(content.refresh))
                    for event in self._differences(content.objects):
                        yield event
                    if content.found and not self._status.synced:
                        self._status.synced = True
                        for kind in _KINDS:
                            yield Synced(kind)
                    change = asyncio.ensure_future(anext(changes))
                    try:
                        await asyncio.wait((change, closing), return_when=asyncio.FIRST_COMPLETED)
                        if change.done():
                            change.result()
                    finally:
                        change.cancel()
                        await asyncio.gather(change, return_exceptions=True)
        finally:
            closing.cancel()

    async def close(self) -> None:
        self._closed.set()

    def _report(self, problems: list[Rejection]) -> None:
        if problems:
            self._status.failed(problems[0].message)
        else:
            self._status.heard(self._clock())
        self._status.connected = True
        self._status.last_event = self._clock()
        for problem in problems:
            self._status.bad_objects += 1
            _log.warning("manifests: %s", problem.message)
            self._on_bad_object(problem.kind, problem.key, problem.message)

    def _differences(self, objects: Mapping[Identity, KubeObject]) -> list[SourceEvent]:
        wanted = {
            identity: item
            for identity, item in objects.items()
            if not (isinstance(item, Node) and self._node_name and item.metadata.name != self._node_name)
        }
        events: list[SourceEvent] = [
            Delete(kind, key) for kind, key in self._delivered if (kind, key) not in wanted
        ]
        events += [Upsert(item) for identity, item in wanted.items() if self._delivered.get(identity) != item]
        self._delivered = wanted
        self._status.objects = len(wanted)
        return events


def _manifest_files(path: Path) -> list[Path]:
    """The file itself, or the manifests directly inside a directory, sorted; hidden and editors' files left out."""
    if not path.is_dir():
        path.stat()
        return [path]
    names = sorted(entry.name for entry in path.iterdir())
    return [
        path / name
        for name in names
        if name.endswith(_SUFFIXES) and not name.startswith((".", "#", "~")) and not (path / name).is_dir()
    ]


def _file_problem(path: Path, error: OSError) -> Rejection:
    return Rejection("File", str(path), f"{path}: cannot be read: {error.strerror or error}")
