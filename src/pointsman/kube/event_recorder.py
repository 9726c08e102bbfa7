"""Events for people: what happened to this node's proxy or to a Service, via events.k8s.io/v1.

Recording never blocks and never fails: the queue is bounded, sending is rate limited, repetitions of one event
become a series that is updated now and then. An event that cannot be sent is dropped and counted, because
nothing may depend on events.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from pointsman.errors import KubeError
from pointsman.kube.client import ApiClient
from pointsman.kube.timing import Clock, RateLimit
from pointsman.obs.log import get_log

_log = get_log(__name__)

_MAX_QUEUED = 256
_MAX_SERIES = 512
_BURST = 25
_PER_SECOND = 0.2
_SERIES_INTERVAL_SECONDS = 60.0
_MAX_NOTE_BYTES = 1024
_CONTROLLER = "kube-proxy"
_MERGE_PATCH = "application/merge-patch+json"


SYNCING, LISTENING = "SyncProxyRules", "Listen"
"""Actions of events, as kube-proxy names them."""


class EventObject(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The object an event is about."""

    kind: str
    name: str
    namespace: str = ""
    uid: str = ""
    api_version: str = "v1"


def refer_to_node(name: str) -> EventObject:
    """Return the reference to the own Node; kube-proxy uses the name as uid, which is what `kubectl describe node` looks for."""
    return EventObject("Node", name, uid=name)


@dataclass(frozen=True, slots=True)
class _Key:
    """What makes two events the same; the note may differ."""

    regarding: EventObject
    reason: str
    action: str
    type: str

    @property
    def fields(self) -> dict[str, Any]:
        """For a log line."""
        return {"reason": self.reason, "kind": self.regarding.kind, "object": self.regarding.name}


@dataclass(slots=True)
class _Series:
    """An event on the server and what has been added to it since."""

    path: str
    count: int
    updated: float
    sent: bool = False


class Recorder:
    """Takes events; never blocks, never fails. This one drops them, for runs without an API server: the log has the same."""

    def node_event(self, reason: str, note: str, *, warning: bool = True) -> None:
        """Record an event about this Node."""

    def service_event(self, key: str, reason: str, note: str, *, action: str = SYNCING) -> None:
        """Record a warning about the Service `namespace/name`; `action` is what was being done."""


class EventRecorder(Recorder):
    """Queues events and sends them in `run`."""

    def __init__(
        self,
        client: ApiClient,
        *,
        node_name: str,
        clock: Clock = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._node = refer_to_node(node_name)
        self._instance = f"{_CONTROLLER}-{node_name}"[:128]
        self._clock = clock
        self._now = now
        self._queue: asyncio.Queue[tuple[_Key, str]] = asyncio.Queue(_MAX_QUEUED)
        self._rate = RateLimit(_PER_SECOND, _BURST, clock=clock)
        self._series: OrderedDict[_Key, _Series] = OrderedDict()
        self._numbers = itertools.count(time.time_ns())
        self.dropped = 0
        """Events that were not sent: queue full, rate exceeded or refused by the server."""

    def node_event(self, reason: str, note: str, *, warning: bool = True) -> None:
        self.record(self._node, reason, note, warning=warning)

    def service_event(self, key: str, reason: str, note: str, *, action: str = SYNCING) -> None:
        namespace, _, name = key.rpartition("/")
        self.record(EventObject("Service", name, namespace), reason, note, warning=True, action=action)

    def record(
        self,
        regarding: EventObject,
        reason: str,
        note: str,
        *,
        warning: bool = False,
        action: str = "StartKubeProxy",
    ) -> None:
        """Queue an event. Must be called on the thread of the event loop."""
        key = _Key(regarding, reason, action, "Warning" if warning else "Normal")
        try:
            self._queue.put_nowait((key, _truncate(note)))
        except asyncio.QueueFull:
            self.dropped += 1

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            key, note = await self._queue.get()
            try:
                await self._send(key, note)
            except Exception as error:  # noqa: BLE001 one event must never stop the later ones
                self.dropped += 1
                _log.exception("Sending an event failed", err=error, **key.fields)
            finally:
                self._queue.task_done()

    async def flush(self, timeout: float) -> None:  # noqa: ASYNC109  a deadline is the point
        """Wait until everything recorded so far has been handled, at most this long."""
        try:
            async with asyncio.timeout(timeout):
                await self._queue.join()
        except TimeoutError:
            _log.info("Events not sent in time", v=2, events=self._queue.qsize())

    async def _send(self, key: _Key, note: str) -> None:
        series = self._series.get(key)
        now = self._clock()
        if series is not None:
            series.count += 1
            if series.sent and now - series.updated < _SERIES_INTERVAL_SECONDS:
                return
        if not self._rate.try_take():
            self.dropped += 1
            return
        try:
            if series is None or not await self._extend(series):
                self._remember(key, _Series(await self._create(key, note), 1, now))
            else:
                series.updated, series.sent = now, True
        except KubeError as error:
            self.dropped += 1
            _log.info("Event dropped", err=error, **key.fields)

    async def _create(self, key: _Key, note: str) -> str:
        namespace = key.regarding.namespace or "default"
        name = f"{key.regarding.name[:230]}.{next(self._numbers):x}"
        path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
        body = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "eventTime": self._format_now(),
            "reportingController": _CONTROLLER,
            "reportingInstance": self._instance,
            "action": key.action,
            "reason": key.reason,
            "type": key.type,
            "regarding": key.regarding,
            "note": note,
        }
        await self._client.request("POST", path, body=msgspec.json.encode(body), timeout=10.0)
        return f"{path}/{name}"

    async def _extend(self, series: _Series) -> bool:
        """Extend an existing event; return False when the server no longer has it."""
        body = {"series": {"count": series.count, "lastObservedTime": self._format_now()}}
        try:
            await self._client.request(
                "PATCH", series.path, body=msgspec.json.encode(body), content_type=_MERGE_PATCH, timeout=10.0
            )
        except KubeError as error:
            if error.status == 404:
                return False
            raise
        return True

    def _remember(self, key: _Key, series: _Series) -> None:
        self._series[key] = series
        self._series.move_to_end(key)
        while len(self._series) > _MAX_SERIES:
            self._series.popitem(last=False)

    def _format_now(self) -> str:
        return self._now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _truncate(note: str) -> str:
    """Return at most as many bytes as the API accepts, cut between characters."""
    data = note.encode(errors="replace")
    return (
        note if len(data) <= _MAX_NOTE_BYTES else data[: _MAX_NOTE_BYTES - 3].decode(errors="ignore") + "..."
    )
