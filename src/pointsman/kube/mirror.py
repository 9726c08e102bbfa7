"""What a list-watch has delivered so far: enough to tell a difference from a repetition, and no more."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from pointsman.model.objects import Delete, KubeObject, Upsert


class Mirror:
    """Keys and resourceVersions of the delivered objects; the objects themselves belong to the consumer."""

    def __init__(self, kind: type[KubeObject]) -> None:
        self._kind = kind
        self._versions: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._versions)

    def upsert(self, item: KubeObject) -> Upsert | None:
        """The event, or None when exactly this version was delivered before."""
        key, version = item.metadata.key, item.metadata.resource_version
        if version and self._versions.get(key) == version:
            return None
        self._versions[key] = version
        return Upsert(item)

    def delete(self, key: str) -> Delete | None:
        """The event, or None when the object was never delivered."""
        return None if self._versions.pop(key, None) is None else Delete(self._kind, key)

    def delete_all_but(self, seen: AbstractSet[str]) -> list[Delete]:
        """Events for everything that a complete list no longer holds."""
        gone = [key for key in self._versions if key not in seen]
        for key in gone:
            del self._versions[key]
        return [Delete(self._kind, key) for key in gone]
