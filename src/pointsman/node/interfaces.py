"""Interfaces of a proxy to its surroundings: source of objects, machine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

from pointsman.kube.status import WatchStatus
from pointsman.model.addresses import Family
from pointsman.model.objects import SourceEvent


class EventSource(Protocol):
    """An API server or a directory of manifests."""

    @property
    def statuses(self) -> Mapping[str, WatchStatus]:
        """Status of each watch, by kind."""

    @property
    def server(self) -> str:
        """The URL of the API server; empty where there is none."""

    @property
    def advice(self) -> str:
        """What to do when the API server cannot be reached."""

    async def list_node_names(self) -> Sequence[str]:
        """Return the names of Nodes, the first of them in a large cluster; none where they cannot be listed."""

    def events(self) -> AsyncIterator[SourceEvent]:
        """Yield every object, then changes, until closed."""

    async def close(self) -> None:
        """End the iteration."""


class Machine(Protocol):
    """The node as the kernel sees it."""

    def local_addresses(self, family: Family) -> tuple[bytes, ...]:
        """Addresses of all interfaces but kube-ipvs0."""

    def address_changes(self) -> AsyncIterator[None]:
        """Yield when addresses may have changed."""
