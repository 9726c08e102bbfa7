"""One kind of object, followed for ever: list, watch, resume, list again.

A consumer sees a plain sequence of differences. It never sees a relist: after one, only what changed meanwhile
is delivered. While the server is away nothing is delivered and nothing is taken back, because rules that may be
slightly old are better than none.

kube-proxy's configSyncPeriod makes its informers hand every cached object to the handlers again; they compare
equal and nothing happens. Here the repetition is left out, with the same result.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Generic, cast

import msgspec

from pointsman.errors import Gone, KubeError, Throttled
from pointsman.kube.decode import (
    BadObject,
    LineSplitter,
    ObjectDecoder,
    T,
    WatchEvent,
    decode_bookmark,
    decode_event,
    status_of,
)
from pointsman.kube.mirror import Mirror
from pointsman.kube.ratelimit import Clock, Sleep, Uniform, server_backoff
from pointsman.kube.resources import Resource
from pointsman.kube.status import WatchStatus
from pointsman.kube.transport import Idle, Transport
from pointsman.model.objects import KubeObject
from pointsman.model.source_events import SourceEvent, Synced

_log = logging.getLogger(__name__)

PAGE_LIMIT = 2000
"""Measured: the best compromise between memory held for a page and round trips."""
_INITIAL_EVENTS_SECONDS = 30.0
_WATCH_IDLE_SECONDS = 180.0
_WATCH_LASTS_SECONDS = (300.0, 600.0)
_STABLE_AFTER_SECONDS = 5.0
_TOO_SHORT_SECONDS = 1.0
_ABSENT_RECHECK_SECONDS = (600.0, 900.0)
_NOT_A_WATCH_LIST_REFUSAL = (0, 401, 403, 404, 429, 503, 504)

BadObjectCallback = Callable[[str, str, str], None]
"""Called with kind, `namespace/name` and what is wrong."""


class _ErrorEvent(KubeError):
    """The server ended a watch with an ERROR event; where we stood in it is in doubt."""


class _EndOfInitialEvents:
    """Marks the bookmark that closes the initial events of a watch-list."""


_END = _EndOfInitialEvents()


class ListWatch(Generic[T]):
    """Follows one resource. `events()` never ends and never raises for trouble with the server."""

    def __init__(
        self,
        transport: Transport,
        resource: Resource[T],
        *,
        status: WatchStatus,
        on_bad_object: BadObjectCallback,
        watch_list: bool = True,
        page_limit: int = PAGE_LIMIT,
        idle_timeout: float = _WATCH_IDLE_SECONDS,
        initial_timeout: float = _INITIAL_EVENTS_SECONDS,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
        uniform: Uniform = random.uniform,
    ) -> None:
        self._transport = transport
        self._resource = resource
        self._status = status
        self._on_bad_object = on_bad_object
        self._watch_list = watch_list
        self._page_limit = page_limit
        self._idle_timeout = idle_timeout
        self._initial_timeout = initial_timeout
        self._clock = clock
        self._sleep = sleep
        self._uniform = uniform
        self._name = resource.kind.__name__
        self._decoder = ObjectDecoder(resource.kind)
        self._kind = cast("type[KubeObject]", resource.kind)
        self._mirror = Mirror(self._kind)
        self._backoff = server_backoff(uniform)
        self._field_selector = resource.field_selector
        self._version = ""
        """Where to resume; empty means that a list is due."""
        self._opened_at: float | None = None
        self._forgotten_in_a_row = 0

    async def events(self) -> AsyncGenerator[SourceEvent, None]:
        """Upserts, then Synced once, then whatever changes."""
        while True:
            try:
                async with aclosing(self._attempt()) as attempt:
                    async for event in attempt:
                        yield event
                continue
            except Gone as error:
                pause = self._after_forgotten(error)
            except KubeError as error:
                if self._is_absent(error):
                    for event in self._absent_events(error):
                        yield event
                    pause = self._uniform(*_ABSENT_RECHECK_SECONDS)
                else:
                    pause = self._after_failure(error)
            await self._sleep(pause)

    async def _attempt(self) -> AsyncGenerator[SourceEvent, None]:
        """Lists if that is due, then watches until the server ends the watch."""
        if not self._version and self._watch_list:
            try:
                async with aclosing(self._initial_events()) as initial:
                    async for event in initial:
                        yield event
            except KubeError as error:
                if not _refuses_watch_list(error):
                    raise
                self._watch_list = False
                _log.info("%s: streamed lists are not available, using paged lists: %s", self._name, error)
        if not self._version:
            async with aclosing(self._paged_list()) as pages:
                async for event in pages:
                    yield event
        async with aclosing(self._watch()) as watch:
            async for event in watch:
                yield event

    async def _paged_list(self) -> AsyncGenerator[SourceEvent, None]:
        limit, token = self._page_limit, ""
        seen: set[str] = set()
        while True:
            params = self._selectors()
            if limit:
                params["limit"] = str(limit)
            if token:
                params["continue"] = token
            try:
                response = await self._transport.request("GET", self._resource.path, params=params)
            except Gone:
                if not token:
                    raise
                # The snapshot expired between two pages: paging is too slow here, take the list in one piece.
                limit, token = 0, ""
                seen.clear()
                continue
            except KubeError as error:
                if error.status != 400 or not self._field_selector or self._resource.field_selector_required:
                    raise
                _log.info("%s: the server refuses field selector %s", self._name, self._field_selector)
                self._field_selector = ""
                continue
            try:
                page = self._decoder.page(response.body)
            except msgspec.DecodeError as error:
                raise KubeError(f"the list is not readable: {error}") from error
            self._status.heard(self._clock())
            for item in page.objects:
                seen.add(item.metadata.key)
                change = self._mirror.upsert(item)
                if change is not None:
                    yield change
            for bad in page.bad:
                seen.add(bad.key)
                self._report(bad)
            token = page.metadata.continue_token
            if not token:
                break
        for event in self._complete(seen, page.metadata.resource_version):
            yield event

    async def _initial_events(self) -> AsyncGenerator[SourceEvent, None]:
        """A list in the form of a watch: the server keeps no copy of it and neither do we."""
        params = self._selectors() | {
            "watch": "true",
            "sendInitialEvents": "true",
            "resourceVersionMatch": "NotOlderThan",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(int(_WATCH_LASTS_SECONDS[1])),
        }
        seen: set[str] = set()
        splitter = LineSplitter()
        path = self._resource.path
        async with self._transport.stream(path, params=params, idle_timeout=self._initial_timeout) as chunks:
            async for chunk in chunks:
                for line in splitter.feed(chunk):
                    event = self._event_from_line(line, seen)
                    if event is _END:
                        for final in self._complete(seen, self._version):
                            yield final
                        return
                    if event is not None and not isinstance(event, _EndOfInitialEvents):
                        yield event
        raise _ErrorEvent("the stream ended before its initial events did")

    async def _watch(self) -> AsyncGenerator[SourceEvent, None]:
        params = self._selectors() | {
            "watch": "true",
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(int(self._uniform(*_WATCH_LASTS_SECONDS))),
        }
        splitter = LineSplitter()
        path = self._resource.path
        heard = False
        opened_at = self._clock()
        try:
            async with self._transport.stream(path, params=params, idle_timeout=self._idle_timeout) as chunks:
                opened_at = self._opened_at = self._clock()
                self._opened()
                async for chunk in chunks:
                    for line in splitter.feed(chunk):
                        event = self._event_from_line(line, None)
                        heard = True
                        self._forgotten_in_a_row = 0
                        if event is not None and not isinstance(event, _EndOfInitialEvents):
                            yield event
        except Idle as error:
            _log.debug("%s: %s; opening a new watch", self._name, error)
        if not heard and self._clock() - opened_at < _TOO_SHORT_SECONDS:
            raise KubeError("the server closed the watch at once")
        self._opened_at = None
        self._backoff.reset()

    def _event_from_line(
        self, line: bytes, seen: set[str] | None
    ) -> SourceEvent | _EndOfInitialEvents | None:
        """Interprets one line; `seen` collects keys during initial events, when nothing may be resumed from yet."""
        if not line or line.isspace():
            return None
        try:
            event = decode_event(line)
            if event.type == "ERROR":
                raise self._error_from(event)
            self._status.heard(self._clock())
            if event.type == "BOOKMARK":
                bookmark = decode_bookmark(event.object)
                if seen is None or bookmark.ends_initial_events:
                    self._version = bookmark.metadata.resource_version or self._version
                return _END if seen is not None and bookmark.ends_initial_events else None
            result = self._decoder.object(event.object)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._version = ""
            raise KubeError(f"unreadable line in the watch: {error}") from error
        return self._object_event(event.type, result, seen)

    def _object_event(self, type_: str, result: T | BadObject, seen: set[str] | None) -> SourceEvent | None:
        if isinstance(result, BadObject):
            key, version = result.key, result.resource_version
        else:
            key, version = result.metadata.key, result.metadata.resource_version
        if seen is None:
            self._version = version or self._version
        else:
            seen.add(key)
        event: SourceEvent | None = None
        if type_ == "DELETED":
            event = self._mirror.delete(key)
        elif type_ not in ("ADDED", "MODIFIED"):
            _log.warning("%s: unknown watch event type %r for %s is ignored", self._name, type_, key)
        elif isinstance(result, BadObject):
            self._report(result)
        else:
            event = self._mirror.upsert(result)
        self._status.objects = len(self._mirror)
        return event

    def _error_from(self, event: WatchEvent) -> KubeError:
        status = status_of(event)
        message = f"ERROR event: {status.code} {status.message or status.reason}"
        self._version = ""
        if status.code == 410 or status.reason in ("Expired", "Gone"):
            return Gone(message, 410)
        return _ErrorEvent(message, status.code)

    def _complete(self, seen: set[str], version: str) -> list[SourceEvent]:
        """What follows a complete list: deletions of what it no longer holds, and Synced after the first."""
        if not version:
            raise KubeError("the list carries no resourceVersion")
        events: list[SourceEvent] = list(self._mirror.delete_all_but(seen))
        self._version = version
        self._status.lists += 1
        self._status.objects = len(self._mirror)
        return events + self._synced_once()

    def _synced_once(self) -> list[SourceEvent]:
        if self._status.synced:
            return []
        self._status.synced = True
        return [Synced(self._kind)]

    def _opened(self) -> None:
        if self._status.failures:
            _log.info("%s: watching again after %d failures", self._name, self._status.failures)
        self._status.heard(self._clock())

    def _after_forgotten(self, error: Gone) -> float:
        """A relist is due at once; only a server that forgets again before saying anything is given time."""
        self._version = ""
        self._opened_at = None
        self._forgotten_in_a_row += 1
        _log.info("%s: %s; listing again", self._name, error)
        if self._forgotten_in_a_row == 1:
            return 0.0
        self._status.failed(str(error))
        return self._backoff.pause()

    def _after_failure(self, error: KubeError) -> float:
        if self._opened_at is not None and self._clock() - self._opened_at >= _STABLE_AFTER_SECONDS:
            self._backoff.reset()
        self._opened_at = None
        self._status.failed(str(error))
        pause = self._backoff.pause()
        if isinstance(error, Throttled):
            pause = max(pause, error.retry_after)
        _log.warning(
            "%s: %s; next attempt in %.1f s, %d failed so far",
            self._name,
            error,
            pause,
            self._status.failures,
        )
        return pause

    def _is_absent(self, error: KubeError) -> bool:
        if self._resource.required:
            return False
        return error.status == 404 or (error.status == 403 and not self._status.lists)

    def _absent_events(self, error: KubeError) -> list[SourceEvent]:
        if not self._status.absent:
            _log.info("%s: treated as empty: %s", self._name, error)
        self._version = ""
        self._status.absent = True
        self._status.connected = False
        self._status.last_error = str(error)
        events: list[SourceEvent] = list(self._mirror.delete_all_but(frozenset()))
        self._status.objects = 0
        return events + self._synced_once()

    def _report(self, bad: BadObject) -> None:
        self._status.bad_objects += 1
        _log.warning("%s %s is left out: %s", self._name, bad.key, bad.error)
        self._on_bad_object(self._name, bad.key, bad.error)

    def _selectors(self) -> dict[str, str]:
        selectors = {}
        if self._resource.label_selector:
            selectors["labelSelector"] = self._resource.label_selector
        if self._field_selector:
            selectors["fieldSelector"] = self._field_selector
        return selectors


def _refuses_watch_list(error: KubeError) -> bool:
    return isinstance(error, Idle | _ErrorEvent) or error.status not in _NOT_A_WATCH_LIST_REFUSAL
