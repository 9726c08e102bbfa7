"""The open watches of the fake API server: what each is sent, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.fake.apistore import (
    API_VERSIONS,
    Change,
    KubeDict,
    Store,
    TooOld,
    status_object,
    watch_event,
)

if TYPE_CHECKING:
    from aiohttp import web

_WRITE_BYTES = 64 * 1024


@dataclass(eq=False)
class Watcher:
    """An open watch; None ends it, bytes are sent as they are, an exception resets the connection."""

    kind: str
    selects: Callable[[KubeDict], bool]
    encode: Callable[[KubeDict], bytes]
    initial: bool
    """It asked for the objects that are there before what changes."""
    compressed: bool = False
    """Each write is a gzip member, as API servers send a watch that began with a list."""
    after: int = 0
    """The version that it resumes from: what is older is not sent."""
    queue: asyncio.Queue[bytes | Exception | None] = field(default_factory=asyncio.Queue)

    def send(self, event: KubeDict) -> None:
        self.queue.put_nowait(self.encode(event))


class Watches:
    """Every open watch of one store."""

    def __init__(self, store: Store, chunk_size: Callable[[], int | None]) -> None:
        """`chunk_size` is asked at every write: the size of the pieces in which events are sent, if not whole."""
        self._store = store
        self._chunk_size = chunk_size
        self._watchers: list[Watcher] = []
        store.listeners.append(self._publish)

    def count(self, kind: str) -> int:
        """Open watches whose initial events, if any, are written."""
        return sum(not watcher.initial and kind in ("", watcher.kind) for watcher in self._watchers)

    def send(self, kind: str, item: bytes | Exception | None) -> None:
        """To all watches of a kind, or to all."""
        for watcher in self._watchers:
            if not kind or watcher.kind == kind:
                watcher.queue.put_nowait(item)

    def send_event(self, kind: str, event: KubeDict) -> None:
        for watcher in self._watchers:
            if watcher.kind == kind:
                watcher.send(event)

    def bookmark(self, kind: str) -> KubeDict:
        return {
            "kind": kind,
            "apiVersion": API_VERSIONS[kind],
            "metadata": {"resourceVersion": str(self._store.version), "creationTimestamp": None},
        }

    async def serve(
        self,
        request: web.Request,
        response: web.StreamResponse,
        watcher: Watcher,
        *,
        version: str,
        seconds: float,
    ) -> None:
        """Answers a watch from the version given, until its time is over or it is ended."""
        watcher.after = int(version or 0)
        self._fill(watcher, version)
        self._watchers.append(watcher)
        try:
            await response.prepare(request)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._deliver(response, watcher)
            await response.write_eof()
        except ConnectionError:
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._watchers.remove(watcher)

    def _publish(self, change: Change) -> None:
        for watcher in self._watchers:
            if watcher.kind == change.kind and change.version > watcher.after:
                event = watch_event(change, watcher.selects)
                if event is not None:
                    watcher.send(event)

    def _fill(self, watcher: Watcher, version: str) -> None:
        """Queues what lies between the version asked for and now."""
        stored = self._store.objects[watcher.kind]
        if watcher.initial or version in ("", "0"):
            for key in sorted(stored):
                if watcher.selects(stored[key]):
                    watcher.send({"type": "ADDED", "object": stored[key]})
            if watcher.initial:
                bookmark = self.bookmark(watcher.kind)
                bookmark["metadata"]["annotations"] = {"k8s.io/initial-events-end": "true"}
                watcher.send({"type": "BOOKMARK", "object": bookmark})
            return
        try:
            for change in self._store.since(watcher.kind, int(version)):
                event = watch_event(change, watcher.selects)
                if event is not None:
                    watcher.send(event)
        except TooOld as error:
            watcher.send({"type": "ERROR", "object": status_object(410, str(error), "Expired")})
            watcher.queue.put_nowait(None)

    async def _deliver(self, response: web.StreamResponse, watcher: Watcher) -> None:
        queue = watcher.queue
        while (item := await queue.get()) is not None:
            if isinstance(item, Exception):
                raise item
            batch = bytearray(item)
            while len(batch) < _WRITE_BYTES and not queue.empty():
                following = queue.get_nowait()
                if not isinstance(following, bytes):
                    await self._write(response, batch, watcher)
                    if following is None:
                        return
                    raise following
                batch += following
            await self._write(response, batch, watcher)
            if queue.empty():
                watcher.initial = False

    async def _write(self, response: web.StreamResponse, data: bytes | bytearray, watcher: Watcher) -> None:
        data = _gzip_member(data) if watcher.compressed else data
        chunk = self._chunk_size()
        size = chunk or len(data)
        for start in range(0, len(data), size):
            await response.write(bytes(data[start : start + size]))
            if chunk:
                await asyncio.sleep(0)


def _gzip_member(data: bytes | bytearray) -> bytes:
    """A gzip member as API servers make it: flushed before its final block, or clients in Go wait for the next member."""
    compressor = zlib.compressobj(1, wbits=zlib.MAX_WBITS | 16)
    return compressor.compress(data) + compressor.flush(zlib.Z_SYNC_FLUSH) + compressor.flush()
