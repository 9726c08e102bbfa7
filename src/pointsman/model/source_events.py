"""What a source of objects tells: one object came, changed or went, or a kind is now complete."""

from __future__ import annotations

import msgspec

from pointsman.model.objects import KubeObject


class Upsert(msgspec.Struct, frozen=True, gc=False):
    """An object was added or changed."""

    object: KubeObject


class Delete(msgspec.Struct, frozen=True, gc=False):
    """An object is gone; `kind` is the struct's name (Service, EndpointSlice, Node, ServiceCIDR)."""

    kind: type[KubeObject]
    key: str


class Synced(msgspec.Struct, frozen=True, gc=False):
    """The initial list of this kind has been delivered completely."""

    kind: type[KubeObject]


SourceEvent = Upsert | Delete | Synced
"""What every source yields; a relist yields only the differences."""
