"""Interfaces of a proxy to its surroundings: source of objects, machine, sink of events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Protocol

from pointsman.kube.event_recorder import EventRecorder, ObjectReference, node_reference
from pointsman.kube.status import WatchStatus
from pointsman.model.addresses import Family
from pointsman.model.objects import SourceEvent

SYNCING, LISTENING = "SyncProxyRules", "Listen"
"""Actions of events, as kube-proxy names them."""


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


class Recorder(Protocol):
    """Sink of Kubernetes events; never blocks, never raises."""

    def node_event(self, reason: str, note: str, *, warning: bool = True) -> None:
        """Record an event about this Node."""

    def service_event(self, key: str, reason: str, note: str, *, action: str = SYNCING) -> None:
        """Record a warning about the Service `namespace/name`; `action` is what was being done."""


class SilentRecorder:
    """Drops events, where there is no API server: the log has the same."""

    def node_event(self, reason: str, note: str, *, warning: bool = True) -> None:
        del reason, note, warning

    def service_event(self, key: str, reason: str, note: str, *, action: str = SYNCING) -> None:
        del key, reason, note, action


class ApiRecorder:
    """Sends events about the Node and Services to the API server."""

    def __init__(self, sender: EventRecorder, node_name: str) -> None:
        self._sender = sender
        self._node = node_reference(node_name)

    def node_event(self, reason: str, note: str, *, warning: bool = True) -> None:
        self._sender.record(self._node, reason, note, warning=warning)

    def service_event(self, key: str, reason: str, note: str, *, action: str = SYNCING) -> None:
        namespace, _, name = key.rpartition("/")
        service = ObjectReference("Service", name, namespace)
        self._sender.record(service, reason, note, warning=True, action=action)
