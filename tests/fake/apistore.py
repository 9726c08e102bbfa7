"""The memory of the fake API server: versioned objects, history, selectors. No HTTP here."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

KubeDict = dict[str, Any]

PATHS = {
    "Service": "/api/v1/services",
    "Node": "/api/v1/nodes",
    "EndpointSlice": "/apis/discovery.k8s.io/v1/endpointslices",
    "ServiceCIDR": "/apis/networking.k8s.io/v1/servicecidrs",
    "Event": "/apis/events.k8s.io/v1/events",
}
API_VERSIONS = {
    "Service": "v1",
    "Node": "v1",
    "EndpointSlice": "discovery.k8s.io/v1",
    "ServiceCIDR": "networking.k8s.io/v1",
    "Event": "events.k8s.io/v1",
}
CLUSTER_SCOPED = {"Node", "ServiceCIDR"}
_KIND_BY_PLURAL = {path.rpartition("/")[2]: kind for kind, path in PATHS.items()}


class Missing(Exception):
    """No such object."""


class Conflict(Exception):
    """The object exists already."""


class PatchFailed(Exception):
    """A test of a JSON patch failed, or a path of it does not exist."""


class TooOld(Exception):
    """The history no longer reaches back that far."""


@dataclass(frozen=True)
class Change:
    """One step of history; `old` or `new` is None for a creation or a deletion."""

    version: int
    kind: str
    old: KubeDict | None
    new: KubeDict | None


def key_of(item: KubeDict) -> str:
    metadata = item["metadata"]
    namespace = metadata.get("namespace", "")
    return f"{namespace}/{metadata['name']}" if namespace else str(metadata["name"])


class Store:
    """Objects by kind and key, with one resourceVersion counter for all, as etcd has."""

    def __init__(self) -> None:
        self.version = 100
        self.objects: dict[str, dict[str, KubeDict]] = {kind: {} for kind in PATHS}
        self.listeners: list[Callable[[Change], None]] = []
        self._history: list[Change] = []
        self._compacted = 0
        self._uids = itertools.count(1)

    def add(self, item: KubeDict) -> KubeDict:
        kind, key = item["kind"], key_of(item)
        if key in self.objects[kind]:
            raise Conflict(f"{kind} {key}")
        new = copy.deepcopy(item)
        new.setdefault("apiVersion", API_VERSIONS[kind])
        metadata = new["metadata"]
        metadata.setdefault("uid", f"00000000-0000-0000-0000-{next(self._uids):012d}")
        metadata.setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
        self._commit(kind, None, new)
        return new

    def update(self, item: KubeDict) -> KubeDict:
        kind, key = item["kind"], key_of(item)
        old = self.get(kind, key)
        new = copy.deepcopy(item)
        for field in ("uid", "creationTimestamp"):
            new["metadata"].setdefault(field, old["metadata"][field])
        self._commit(kind, old, new)
        return new

    def delete(self, kind: str, key: str) -> None:
        self._commit(kind, self.get(kind, key), None)

    def get(self, kind: str, key: str) -> KubeDict:
        try:
            return self.objects[kind][key]
        except KeyError:
            raise Missing(f"{kind} {key}") from None

    def compact(self) -> None:
        """Forgets the history, so that no older version can be resumed from; even the current one moves on."""
        self.version += 1
        self._compacted = self.version
        self._history.clear()

    def backup(self) -> tuple[int, dict[str, dict[str, KubeDict]]]:
        return self.version, copy.deepcopy(self.objects)

    def restore(self, backup: tuple[int, dict[str, dict[str, KubeDict]]]) -> None:
        """Goes back to a backup, resourceVersions as well. Watches stay open and do not notice."""
        self.version, self.objects = backup
        self._history.clear()

    def since(self, kind: str, version: int) -> list[Change]:
        if version < self._compacted:
            raise TooOld(f"too old resource version: {version} ({self._compacted})")
        return [change for change in self._history if change.kind == kind and change.version > version]

    def _commit(self, kind: str, old: KubeDict | None, new: KubeDict | None) -> None:
        self.version += 1
        if new is not None:
            new["metadata"]["resourceVersion"] = str(self.version)
            self.objects[kind][key_of(new)] = new
        elif old is not None:
            del self.objects[kind][key_of(old)]
        change = Change(self.version, kind, old, new)
        self._history.append(change)
        for listener in list(self.listeners):
            listener(change)


class UnsupportedField(Exception):
    """A field selector on a field this kind does not select by."""


def selector(
    kind: str, labels: str, fields: str, *, cluster_ip_field: bool, namespace: str = ""
) -> Callable[[KubeDict], bool]:
    """A predicate for a label and a field selector (absence, equality and inequality, as a proxy uses them)."""
    tests: list[Callable[[KubeDict], bool]] = []
    if namespace:
        tests.append(lambda item: item["metadata"].get("namespace") == namespace)
    tests.extend(_label_test(term.strip()) for term in labels.split(",") if term)
    tests.extend(
        _field_test(kind, term.strip(), cluster_ip_field=cluster_ip_field)
        for term in fields.split(",")
        if term
    )
    return lambda item: all(test(item) for test in tests)


def _label_test(term: str) -> Callable[[KubeDict], bool]:
    if term.startswith("!"):
        return lambda item: term[1:] not in (item["metadata"].get("labels") or {})
    name, _, value = term.partition("=")
    return lambda item: (item["metadata"].get("labels") or {}).get(name) == value.lstrip("=")


def _field_test(kind: str, term: str, *, cluster_ip_field: bool) -> Callable[[KubeDict], bool]:
    negated = "!=" in term
    name, _, value = term.partition("!=" if negated else "=")
    supported = {"metadata.name", "metadata.namespace"}
    if kind == "Service" and cluster_ip_field:
        supported.add("spec.clusterIP")
    if name not in supported:
        raise UnsupportedField(f"field label not supported: {name}")
    section, _, leaf = name.partition(".")
    return lambda item: ((item.get(section) or {}).get(leaf, "") == value) is not negated


def watch_event(change: Change, selects: Callable[[KubeDict], bool]) -> KubeDict | None:
    """The event a watcher with this selector sees: leaving the selection is a deletion, entering an addition."""
    before = change.old is not None and selects(change.old)
    after = change.new is not None and selects(change.new)
    if after:
        return {"type": "MODIFIED" if before else "ADDED", "object": change.new}
    if before and change.old is not None:
        last = copy.deepcopy(change.old)
        last["metadata"]["resourceVersion"] = str(change.version)
        return {"type": "DELETED", "object": last}
    return None


def objects_in(document: KubeDict) -> Iterable[KubeDict]:
    """The objects of a List, or the one object itself."""
    return document["items"] if document.get("kind", "").endswith("List") else [document]


def resource_at(path: str) -> tuple[str, str, str]:
    """Kind, namespace and name of a request path; an empty kind when it is unknown."""
    parts = [part for part in path.split("/") if part]
    prefix = parts[:2] if parts[:1] == ["api"] else parts[:3]
    rest = parts[len(prefix) :]
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    kind = _KIND_BY_PLURAL.get(rest[0], "") if rest else ""
    if kind and (PATHS[kind].rpartition("/")[0] != "/" + "/".join(prefix)):
        kind = ""
    if kind in CLUSTER_SCOPED and namespace:
        kind = ""
    return kind, namespace, rest[1] if len(rest) > 1 else ""


def merged(old: Any, patch: Any) -> Any:
    """JSON merge patch."""
    if not isinstance(old, dict) or not isinstance(patch, dict):
        return patch
    result = dict(old)
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def strategically_merged(old: KubeDict, patch: KubeDict) -> KubeDict:
    """Strategic merge patch, as far as it concerns the conditions of a Node."""
    patch = copy.deepcopy(patch)
    changed = patch.get("status", {}).pop("conditions", [])
    result: KubeDict = merged(old, patch)
    known = {one["type"]: one for one in (old.get("status") or {}).get("conditions") or []}
    for one in changed:
        known[one["type"]] = {**known.get(one["type"], {}), **one}
    result["status"] = {**(result.get("status") or {}), "conditions": list(known.values())}
    return result


def json_patched(old: KubeDict, operations: list[KubeDict]) -> KubeDict:
    """JSON patch: `test` and `remove`. Raises PatchFailed."""
    result = copy.deepcopy(old)
    for operation in operations:
        *parents, last = (int(part) if part.isdigit() else part for part in operation["path"].split("/")[1:])
        try:
            target: Any = result
            for part in parents:
                target = target[part]
            if operation["op"] == "test" and target[last] != operation["value"]:
                raise PatchFailed(operation["path"])
            if operation["op"] == "remove":
                del target[last]
        except (KeyError, IndexError):
            raise PatchFailed(operation["path"]) from None
    return result


PATCHES: dict[str, Callable[[Any, Any], Any]] = {
    "application/strategic-merge-patch+json": strategically_merged,
    "application/json-patch+json": json_patched,
}
"""By content type; anything else is a JSON merge patch."""


def status_object(code: int, message: str, reason: str = "") -> KubeDict:
    """What the server says about a request: an object of kind Status."""
    outcome = "Success" if code < 400 else "Failure"
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": outcome,
        "message": message,
        "reason": reason,
        "code": code,
    }
