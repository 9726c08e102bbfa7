"""One kind of object, followed for ever: list, watch, resume, list again.

A consumer sees a plain sequence of differences. It never sees a relist: after one, only what changed meanwhile
is delivered. While the server is away nothing is delivered and nothing is taken back, because rules that may be
slightly old are better than none.

kube-proxy's configSyncPeriod makes its informers hand every cached object to the handlers again; they compare
equal and nothing happens. Here the repetition is left out, with the same result.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from typing import Generic, cast

from pointsman.errors import Gone, KubeError
from pointsman.kube.decode import BadObject, Page, T, Unreadable, WatchEvent
from pointsman.kube.formats import JSON, PREFER_PROTOBUF, Decoder, Decoders, decode_status
from pointsman.kube.mirror import Mirror
from pointsman.kube.page_cursor import PageCursor
from pointsman.kube.resources import Resource
from pointsman.kube.status import OnFinding, WatchStatus
from pointsman.kube.timing import Retries, Timing
from pointsman.kube.transport import Idle, RequestFailed, TooLarge, Transport
from pointsman.model.findings import Code, Finding, ObjectReference, Severity
from pointsman.model.objects import KubeObject, SourceEvent, Synced
from pointsman.obs.log import get_log

_log = get_log(__name__)

PAGE_LIMIT = 2000
"""Measured: the best compromise between memory held for a page and round trips."""
_TOO_SHORT_SECONDS = 1.0
_LONGEST_REJECTION = 500
"""Characters; an object can make its own error message as long as itself."""
_NOT_A_WATCH_LIST_REFUSAL = (0, 401, 403, 404, 429, 503, 504)
_FORMAT_REFUSED = (406, 415)
_RESUMABLE = (401, 403, 408, 429)
"""Refusals that say nothing about the place to resume from."""
_RESUMED_IN_VAIN_AT_MOST = 3
_SILENT_WATCHES = 2


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
        on_finding: OnFinding,
        accept: str = PREFER_PROTOBUF,
        watch_list: bool = True,
        page_limit: int = PAGE_LIMIT,
        timing: Timing | None = None,
    ) -> None:
        """`accept` is a choice of `kube/formats.py`; a server that refuses it is asked for JSON from then on."""
        self._transport = transport
        self._resource = resource
        self._status = status
        self._on_finding = on_finding
        self._watch_list = watch_list
        self._page_limit = page_limit
        self._timing = timing or Timing()
        self._name = resource.kind.__name__
        self._accept_header = accept
        self._decoders = Decoders(resource.kind)
        self._kind = cast("type[KubeObject]", resource.kind)
        self._mirror = Mirror(self._kind)
        self._retries = Retries(self._timing)
        self._field_selector = resource.field_selector
        self._version = ""
        """Where to resume; empty means that a list is due."""
        self._resumed_in_vain = 0

    async def events(self) -> AsyncGenerator[SourceEvent, None]:
        """Upserts, then Synced once, then whatever changes."""
        while True:
            try:
                async with aclosing(self._attempt()) as attempt:
                    async for event in attempt:
                        yield event
                continue
            except KubeError as error:
                if self._format_refused(error):
                    continue
                if self._is_absent(error):
                    for event in self._absent_events(error):
                        yield event
                    pause = self._retries.recheck(error)
                else:
                    pause = self._after_failure(error)
            await self._timing.sleep(pause)

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
                _log.info("Streamed lists are not available; using paged lists", kind=self._name, err=error)
        if not self._version:
            async with aclosing(self._paged_list()) as pages:
                async for event in pages:
                    yield event
        async with aclosing(self._watch()) as watch:
            async for event in watch:
                yield event

    async def _paged_list(self) -> AsyncGenerator[SourceEvent, None]:
        cursor = PageCursor(self._page_limit)
        seen: set[str] = set()
        while True:
            try:
                page = await self._page(cursor.params)
            except (Gone, TooLarge) as error:
                cursor.begin_again(error)
                self._page_limit = cursor.limit or self._page_limit
                seen.clear()
                continue
            if page is None:
                continue
            self._heard()
            for event in self._page_events(page, seen):
                yield event
            if not cursor.advance(page.metadata.continue_token):
                break
        for event in self._complete(seen, page.metadata.resource_version):
            yield event

    async def _page(self, params: dict[str, str]) -> Page | None:
        """One page of a list; None when it is to be asked for again, without a field selector."""
        try:
            response = await self._transport.request(
                "GET", self._resource.path, params=self._selectors() | params, accept=self._accept_header
            )
        except KubeError as error:
            if error.status != 400 or not self._field_selector or self._resource.field_selector_required:
                raise
            _log.info("The server refuses a field selector", kind=self._name, selector=self._field_selector)
            self._field_selector = ""
            return None
        try:
            return self._decoders.for_answer(response.headers.get("Content-Type", "")).page(response.body)
        except Unreadable as error:
            raise Unreadable(f"the list is not readable: {error}") from error

    def _page_events(self, page: Page, seen: set[str]) -> Iterator[SourceEvent]:
        for item in page.objects:
            seen.add(item.metadata.key)
            self._accept(item.metadata.key)
            change = self._mirror.upsert(item)
            if change is not None:
                yield change
        for bad in page.bad:
            seen.add(bad.key)
            self._reject(bad)

    async def _initial_events(self) -> AsyncGenerator[SourceEvent, None]:
        """A list in the form of a watch: the server keeps no copy of it and neither do we."""
        params = self._watch_params() | {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        seen: set[str] = set()
        async with aclosing(self._frames(params, self._timing.initial)) as frames:
            async for decoder, frame in frames:
                event = self._event_from(decoder, frame, seen)
                if event is _END:
                    for final in self._complete(seen, self._version):
                        yield final
                    return
                if event is not None and not isinstance(event, _EndOfInitialEvents):
                    yield event
        raise _ErrorEvent("the stream ended before its initial events did")

    async def _watch(self) -> AsyncGenerator[SourceEvent, None]:
        heard = False
        began = self._timing.clock()
        try:
            params = self._watch_params() | {"resourceVersion": self._version}
            async with aclosing(self._frames(params, self._timing.idle, on_open=self._opened)) as frames:
                async for decoder, frame in frames:
                    event = self._event_from(decoder, frame, None)
                    heard = True
                    if event is not None and not isinstance(event, _EndOfInitialEvents):
                        yield event
        except Idle as error:
            _log.info("A watch fell silent; opening a new one", v=2, kind=self._name, err=error)
        else:
            if not heard and self._timing.clock() - began < _TOO_SHORT_SECONDS:
                raise KubeError("the server closed the watch at once")
        self._retries.ended()
        self._doubt_silence()

    def _doubt_silence(self) -> None:
        """Raises KubeError, and makes a list due, when one watch after the other brought not even a bookmark.

        Something on the way may hold back changes, too: resuming would not bring them.
        """
        silent = self._status.age(self._timing.clock()) or 0.0
        if silent >= _SILENT_WATCHES * self._timing.idle:
            self._version = ""
            raise KubeError(f"the watches are silent: nothing was heard for {silent:g} s")

    async def _frames(
        self, params: dict[str, str], idle: float, on_open: Callable[[], None] = lambda: None
    ) -> AsyncGenerator[tuple[Decoder[T], bytes], None]:
        """The encoded events of a watch, with what decodes them.

        Raises Idle when none is completed for `idle` seconds, even while bytes trickle in.
        """
        timing = self._timing
        async with self._transport.stream(
            self._resource.path,
            params=params,
            accept=self._accept_header,
            idle_timeout=idle,
            answer_timeout=timing.answer,
        ) as stream:
            on_open()
            decoder = self._decoders.for_answer(stream.content_type)
            splitter = decoder.splitter()
            completed = timing.clock()
            async for chunk in stream.chunks:
                for frame in splitter.feed(chunk):
                    completed = timing.clock()
                    yield decoder, frame
                if timing.clock() - completed > idle:
                    raise Idle(f"no complete event for {idle:.0f} s")

    def _event_from(
        self, decoder: Decoder[T], frame: bytes, seen: set[str] | None
    ) -> SourceEvent | _EndOfInitialEvents | None:
        """Interprets one event; `seen` collects keys during initial events, when nothing may be resumed from yet."""
        try:
            event = decoder.event(frame)
            if event.type == "ERROR":
                raise self._error_from(event)
            self._heard()
            if event.type == "BOOKMARK":
                bookmark = decoder.bookmark(event.object)
                if seen is None or bookmark.ends_initial_events:
                    self._version = bookmark.metadata.resource_version or self._version
                return _END if seen is not None and bookmark.ends_initial_events else None
        except Unreadable as error:
            self._version = ""
            raise Unreadable(f"unreadable event in the watch: {error}") from error
        return self._object_event(event.type, decoder.object(event.object), seen)

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
            self._accept(key)
            event = self._mirror.delete(key)
        elif type_ not in ("ADDED", "MODIFIED"):
            _log.warning("Ignored a watch event of unknown type", kind=self._name, type=type_, object=key)
        elif isinstance(result, BadObject):
            self._reject(result)
        else:
            self._accept(key)
            event = self._mirror.upsert(result)
        self._status.objects = len(self._mirror)
        return event

    def _error_from(self, event: WatchEvent) -> KubeError:
        status = decode_status(event.object)
        message = f"ERROR event: {status.code} {status.message or status.reason}"
        self._version = ""
        if status.code == 410 or status.reason in ("Expired", "Gone"):
            return Gone(message, 410)
        return _ErrorEvent(message, status.code)

    def _complete(self, seen: set[str], version: str) -> list[SourceEvent]:
        """What follows a complete list: deletions of what it no longer holds, and Synced after the first."""
        if not version:
            raise Unreadable("the list carries no resourceVersion")
        events: list[SourceEvent] = list(self._mirror.delete_all_but(seen))
        for key in self._status.rejected.keys() - seen:
            self._accept(key)
        self._version = version
        self._resumed_in_vain = 0
        self._retries.listed()
        self._status.lists += 1
        self._status.objects = len(self._mirror)
        return events + self._synced_once()

    def _synced_once(self) -> list[SourceEvent]:
        if self._status.synced:
            return []
        self._status.synced = True
        return [Synced(self._kind)]

    def _opened(self) -> None:
        self._resumed_in_vain = 0
        self._retries.opened()
        self._tell_recovery()
        self._status.opened()

    def _heard(self) -> None:
        self._tell_recovery()
        self._status.heard(self._timing.clock())

    def _tell_recovery(self) -> None:
        """The server answers; after trouble, that is worth a line."""
        if self._status.failures:
            _log.info("The API server answers again", kind=self._name, failures=self._status.failures)
        elif self._status.absent:
            _log.info("The API server now has this kind", kind=self._name)

    def _after_failure(self, error: KubeError) -> float:
        """Notes a failure and what it says about the place to resume from; returns the seconds to wait."""
        if isinstance(error, Gone):
            self._version = ""
        elif error.status and error.status not in _RESUMABLE:
            # A refusal may be due to where we want to resume: a server restored from a backup does not know the place.
            self._resumed_in_vain += 1
            if error.status < 500 or self._resumed_in_vain >= _RESUMED_IN_VAIN_AT_MOST:
                self._version = ""
        pause = self._retries.pause(error, list_due=not self._version)
        self._status.failed(str(error), answered=not isinstance(error, RequestFailed))
        _log.warning(
            "Cannot follow the API server; trying again",
            kind=self._name,
            err=error,
            after=f"{pause:.1f}s",
            failures=self._status.failures,
        )
        return pause

    def _format_refused(self, error: KubeError) -> bool:
        """Whether the server does not give protobuf here; it is asked for JSON from then on."""
        if error.status not in _FORMAT_REFUSED or self._accept_header == JSON:
            return False
        _log.info("The server does not send protobuf; using JSON", kind=self._name, err=error)
        self._accept_header = JSON
        return True

    def _is_absent(self, error: KubeError) -> bool:
        if self._resource.required:
            return False
        return error.status == 404 or (error.status == 403 and not self._status.lists)

    def _absent_events(self, error: KubeError) -> list[SourceEvent]:
        if not self._status.absent:
            _log.info("Treated as empty until the API server shows it", kind=self._name, err=error)
        self._version = ""
        self._status.absent = True
        self._status.connected = False
        self._status.last_error = str(error)
        events: list[SourceEvent] = list(self._mirror.delete_all_but(frozenset()))
        self._status.objects = 0
        self._status.rejected.clear()
        return events + self._synced_once()

    def _accept(self, key: str) -> None:
        self._status.rejected.pop(key, None)

    def _reject(self, bad: BadObject) -> None:
        """Reports an object that cannot be decoded, once per version of its fault."""
        rejection = Finding(
            Code.UNDECODABLE,
            Severity.ERROR,
            ObjectReference(self._name, bad.key),
            {"detail": bad.error[:_LONGEST_REJECTION]},
        )
        if self._status.rejected.get(bad.key) != rejection:
            self._status.rejected[bad.key] = rejection
            self._on_finding(rejection)

    def _watch_params(self) -> dict[str, str]:
        timeout = str(self._timing.watch_lasts())
        return self._selectors() | {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": timeout}

    def _selectors(self) -> dict[str, str]:
        selectors = {}
        if self._resource.label_selector:
            selectors["labelSelector"] = self._resource.label_selector
        if self._field_selector:
            selectors["fieldSelector"] = self._field_selector
        return selectors


def _refuses_watch_list(error: KubeError) -> bool:
    if error.status in _FORMAT_REFUSED:
        return False
    return isinstance(error, Idle | _ErrorEvent) or error.status not in _NOT_A_WATCH_LIST_REFUSAL
