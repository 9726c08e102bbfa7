"""What a list-watch has delivered: enough to turn lists and watch events into changes, and no more."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Generic, cast

from pointsman.kube.codec import BadObject, Page, T
from pointsman.kube.status import OnFinding, WatchStatus
from pointsman.model.findings import Code, Finding, ObjectReference, Severity
from pointsman.model.objects import Delete, KubeObject, SourceEvent, Synced, Upsert

MAX_REJECTED = 1000
"""Objects whose error is kept; of further ones only the key."""

_MAX_DETAIL_CHARACTERS = 500
"""An object can make its own error message as long as itself."""


class Replica(Generic[T]):
    """Keys and resourceVersions of the delivered objects; the objects themselves belong to the consumer.

    An object is delivered again only with another resourceVersion.
    """

    def __init__(self, kind: type[T], status: WatchStatus, on_finding: OnFinding) -> None:
        self._kind = cast("type[KubeObject]", kind)
        self._status = status
        self._on_finding = on_finding
        self._versions: dict[str, str] = {}
        self._unlisted: set[str] = set()
        """Rejected objects beyond MAX_REJECTED."""

    def upsert(self, result: T | BadObject) -> Upsert | None:
        """Return the event; None for an object that cannot be decoded, or that was delivered in this version."""
        if isinstance(result, BadObject):
            self._reject(result)
            return None
        metadata = result.metadata
        key, version = metadata.key, metadata.resource_version
        self._accept(key)
        if version and self._versions.get(key) == version:
            return None
        self._versions[key] = version
        self._status.objects = len(self._versions)
        return Upsert(result)

    def upsert_page(self, page: Page[T], seen: set[str]) -> Iterator[Upsert | None]:
        """Yield the event, or None, for each object in one page of a list; `seen` collects its keys."""
        for item in page.items:
            seen.add(item.key if isinstance(item, BadObject) else item.metadata.key)
            yield self.upsert(item)

    def delete(self, key: str) -> Delete | None:
        """Return the event; None for an object that was never delivered."""
        self._accept(key)
        found = self._versions.pop(key, None)
        self._status.objects = len(self._versions)
        return None if found is None else Delete(self._kind, key)

    def forget_versions(self) -> None:
        """Deliver every object once more: other contents may come under the same resourceVersions."""
        self._versions = dict.fromkeys(self._versions, "")

    def finish_list(self, seen: AbstractSet[str]) -> list[SourceEvent]:
        """Return what follows a complete list: deletions of what it no longer holds, and Synced after the first."""
        status = self._status
        gone = [key for key in self._versions if key not in seen]
        for key in gone:
            del self._versions[key]
        for key in (status.rejected.keys() | self._unlisted) - seen:
            self._accept(key)
        status.objects = len(self._versions)
        events: list[SourceEvent] = [Delete(self._kind, key) for key in gone]
        if not status.synced:
            status.synced = True
            events.append(Synced(self._kind))
        return events

    def _reject(self, bad: BadObject) -> None:
        """Report an object that cannot be decoded, once per version of its error."""
        rejection = Finding(
            Code.UNDECODABLE,
            Severity.ERROR,
            ObjectReference(self._kind.__name__, bad.key),
            {"detail": bad.error[:_MAX_DETAIL_CHARACTERS]},
        )
        rejected = self._status.rejected
        if rejected.get(bad.key) == rejection or bad.key in self._unlisted:
            return
        if bad.key in rejected or len(rejected) < MAX_REJECTED:
            rejected[bad.key] = rejection
        else:
            self._unlisted.add(bad.key)
            self._status.truncated = len(self._unlisted)
        self._on_finding(rejection)

    def _accept(self, key: str) -> None:
        """Forget that an object was rejected."""
        self._status.rejected.pop(key, None)
        self._unlisted.discard(key)
        self._status.truncated = len(self._unlisted)
