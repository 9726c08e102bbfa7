"""The manifests below a path, with the last usable version of each. Blocking: no event loop.

A file that cannot be read or parsed keeps its last good content, and so does a single object that became invalid: the
API server would have refused the change, too. Of the same object in two files the first by file name counts.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from pointsman.files import Signature, read_file, signature_from
from pointsman.model.findings import Code, Finding, ObjectReference
from pointsman.model.objects import Delete, KubeObject, Node, Service, SourceEvent, Upsert
from pointsman.source.documents import (
    MAX_FINDINGS_PER_FILE,
    Parsed,
    build_rejection,
    build_unreadable_file,
    parse,
)
from pointsman.text import escape

MAX_FILE_BYTES = 64 * 1024 * 1024
"""Tens of thousands of objects; more can be spread over several files."""
STANDARD_INPUT = Path("-")
_SUFFIXES = (".yaml", ".yml", ".json")

Identity = tuple[type[KubeObject], str]


@dataclass(frozen=True, slots=True)
class ManifestReading:
    """The result of reading all files."""

    found: bool
    """The path exists and can be looked into."""
    changes: tuple[SourceEvent, ...]
    """What differs from the reading before."""
    objects: int
    rejected: tuple[Finding, ...]
    """Everything that cannot be used now, not only what is new."""
    notices: tuple[Finding, ...]
    truncated: int
    ignored: Mapping[str, int]


def load_objects(*paths: Path) -> tuple[list[KubeObject], list[Finding]]:
    """Return everything usable below the paths, and the findings; of an object in two of them the first counts.

    STANDARD_INPUT is read to its end. Never raises.
    """
    objects: dict[Identity, KubeObject] = {}
    owners: dict[Identity, Path] = {}
    findings: list[Finding] = []
    for path in paths:
        found, odd = _load_standard_input() if path == STANDARD_INPUT else _load_below(path)
        findings += odd
        for item in found:
            identity = (type(item), item.metadata.key)
            owner = owners.setdefault(identity, path)
            if owner is path:
                objects[identity] = item
            else:
                first = escape(str(owner))
                message = f"already in {first}, which counts"
                findings.append(_build_duplicate(identity, message, escape(str(path))))
    return list(objects.values()), findings


def _load_below(path: Path) -> tuple[list[KubeObject], list[Finding]]:
    reading = ManifestFiles(path).read()
    objects = [change.object for change in reading.changes if isinstance(change, Upsert)]
    return objects, [*reading.rejected, *reading.notices]


def _load_standard_input() -> tuple[list[KubeObject], list[Finding]]:
    name = "standard input"
    data = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        return [], [build_unreadable_file(name, f"larger than {MAX_FILE_BYTES >> 20} MiB")]
    parsed = parse(data, name)
    return list(_with_last_good({}, parsed, name).values()), parsed.findings


@dataclass(slots=True)
class _File:
    """One file as last read; the objects are those of its last good version."""

    signature: Signature | None = None
    parsed: Parsed = field(default_factory=Parsed)
    objects: dict[Identity, KubeObject] = field(default_factory=dict)


class ManifestFiles:
    """A file, or the manifests directly inside a directory. With a node name, other Nodes are left out."""

    def __init__(self, path: Path, node_name: str = "") -> None:
        self._path = path
        self._node_name = node_name
        self._files: dict[Path, _File] = {}
        self._delivered: dict[Identity, KubeObject] = {}
        self._first_seen: dict[Identity, str] = {}
        """When a Service without creationTimestamp was added; those of the first reading have none."""
        self._has_read = False

    def read(self) -> ManifestReading:
        """Read what changed since the last time."""
        try:
            paths = _list_files(self._path)
        except OSError as error:
            return self._build_reading((_build_unreadable(self._name(self._path), error),), {}, found=False)
        for path in set(self._files) - set(paths):
            del self._files[path]
        for path in paths:
            self._update(path, self._files.setdefault(path, _File()))
        merged, duplicates = self._merge(paths)
        return self._build_reading(duplicates, merged, found=True)

    def _build_reading(
        self, rejections: Iterable[Finding], objects: Mapping[Identity, KubeObject], *, found: bool
    ) -> ManifestReading:
        """Build the result; with an unreadable path everything stays as it was: a mount may bring it back."""
        files = [file.parsed for file in self._files.values()]
        ignored: Counter[str] = Counter()
        for parsed in files:
            ignored.update(parsed.ignored)
        return ManifestReading(
            found=found,
            changes=tuple(self._diff(objects)) if found else (),
            objects=len(self._delivered),
            rejected=(*rejections, *(entry for parsed in files for entry in parsed.rejected)),
            notices=tuple(entry for parsed in files for entry in parsed.notices),
            truncated=sum(parsed.truncated for parsed in files),
            ignored=dict(ignored),
        )

    def _update(self, path: Path, file: _File) -> None:
        """Read one file again if it changed."""
        name = self._name(path)
        try:
            signature = signature_from(path.stat())
            if signature == file.signature:
                return
            parsed = parse(read_file(path, MAX_FILE_BYTES), name)
        except OSError as error:
            file.signature = None
            file.parsed = Parsed(rejected=[_build_unreadable(name, error)], readable=False)
            return
        file.signature, file.parsed = signature, parsed
        if parsed.readable:
            file.objects = _with_last_good(file.objects, parsed, name)

    def _merge(self, paths: Iterable[Path]) -> tuple[dict[Identity, KubeObject], list[Finding]]:
        merged: dict[Identity, KubeObject] = {}
        owners: dict[Identity, Path] = {}
        duplicates: list[Finding] = []
        for path in paths:
            for identity, item in self._files[path].objects.items():
                owner = owners.setdefault(identity, path)
                if owner == path:
                    merged[identity] = item
                elif len(duplicates) < MAX_FINDINGS_PER_FILE:
                    message = f"already in {self._name(owner)}, which counts"
                    duplicates.append(_build_duplicate(identity, message, self._name(path)))
        return merged, duplicates

    def _diff(self, objects: Mapping[Identity, KubeObject]) -> list[SourceEvent]:
        """Return the changes, so ordered that a Service is not served without the endpoints of the same reading."""
        wanted = {
            identity: item
            for identity, item in objects.items()
            if not (isinstance(item, Node) and self._node_name and item.metadata.name != self._node_name)
        }
        wanted = {identity: self._date(identity, item) for identity, item in wanted.items()}
        self._first_seen = {
            identity: self._first_seen[identity] for identity in self._first_seen.keys() & wanted
        }
        self._has_read = True
        deleted = (identity for identity in self._delivered if identity not in wanted)
        changed = (item for identity, item in wanted.items() if self._delivered.get(identity) != item)
        events: list[SourceEvent] = [
            *(Delete(*identity) for identity in sorted(deleted, key=lambda one: one[0] is not Service)),
            *(Upsert(item) for item in sorted(changed, key=lambda one: isinstance(one, Service))),
        ]
        self._delivered = wanted
        return events

    def _date(self, identity: Identity, item: KubeObject) -> KubeObject:
        """Return a Service that was added later with the time of that: one that is already served keeps its addresses."""
        if not isinstance(item, Service) or item.metadata.creation_timestamp:
            return item
        if self._has_read and identity not in self._delivered:
            self._first_seen[identity] = datetime.now(UTC).isoformat()
        added = self._first_seen.get(identity)
        if added is None:
            return item
        meta = msgspec.structs.replace(item.metadata, creation_timestamp=added)
        return msgspec.structs.replace(item, metadata=meta)

    def _name(self, path: Path) -> str:
        """Return the path for messages: a file name may hold anything but a slash, and need not be text."""
        return escape(path.name if path != self._path else str(path))


def _with_last_good(
    before: Mapping[Identity, KubeObject], parsed: Parsed, name: str
) -> dict[Identity, KubeObject]:
    """Return the objects of a file that could be read, and the earlier version of those that were rejected."""
    objects: dict[Identity, KubeObject] = {}
    twice: set[Identity] = set()
    for item in parsed.objects:
        identity = (type(item), item.metadata.key)
        if identity not in objects:
            objects[identity] = item
        elif identity not in twice:
            twice.add(identity)
            reference = ObjectReference(identity[0].__name__, identity[1], place=name)
            parsed.reject(Code.DUPLICATE, reference, "twice in one file; the first counts")
    for identity, item in before.items():
        if (identity[0].__name__, identity[1]) in parsed.refused:
            objects.setdefault(identity, item)
    return objects


def _build_duplicate(identity: Identity, detail: str, place: str) -> Finding:
    reference = ObjectReference(identity[0].__name__, identity[1], place=place)
    return build_rejection(Code.DUPLICATE, reference, detail)


def _list_files(path: Path) -> list[Path]:
    """Return the file itself, or the manifests directly inside a directory, sorted; hidden and editors' files left out."""
    if not path.is_dir():
        path.stat()
        return [path]
    names = sorted(entry.name for entry in path.iterdir())
    return [
        path / name
        for name in names
        if name.endswith(_SUFFIXES)
        and not name.startswith((".", "#", "~"))
        and not _is_directory(path / name)
    ]


def _is_directory(path: Path) -> bool:
    """Return whether the path is a directory; False on an error, which reading it then reports."""
    try:
        return path.is_dir()
    except OSError:
        return False


def _build_unreadable(name: str, error: OSError) -> Finding:
    return build_unreadable_file(name, f"cannot be read: {error.strerror or error}")
