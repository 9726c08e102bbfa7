"""List and watch of one kind of object: list, watch, resume, list again.

A consumer sees a sequence of changes. It never sees a relist: after one, only what changed meanwhile is delivered. While
the server is unreachable nothing is delivered and nothing is deleted, because old rules are better than none.

kube-proxy's configSyncPeriod makes its informers deliver every cached object again; the handlers find them equal and do
nothing. The repetition is left out here, with the same result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, NoReturn

from pointsman.errors import Gone, KubeError
from pointsman.kube.client import ApiClient, RequestFailed
from pointsman.kube.codec import BadObject, Decoder, T, TooLarge, Unreadable, WatchEvent
from pointsman.kube.formats import PREFER_PROTOBUF, decode_status
from pointsman.kube.replica import Replica
from pointsman.kube.resources import Resource, ResourceRequests, is_format_refused
from pointsman.kube.status import OnFinding, WatchStatus
from pointsman.kube.timing import Retries, Timing
from pointsman.model.objects import SourceEvent
from pointsman.obs.log import get_log

_log = get_log(__name__)

PAGE_LIMIT = 2000
"""Measured: the best compromise between memory held for a page and round trips."""
_OBJECTS_PER_TURN = 100
"""Objects of a page after which others run."""
_MIN_WATCH_SECONDS = 1.0
_NOT_A_WATCH_LIST_REFUSAL = (0, 401, 403, 404, 429, 503, 504)
_RESUMABLE = (401, 403, 408, 429)
"""Statuses that do not concern the resourceVersion to resume from."""
_MAX_VERSION_DIGITS = 20
"""Of a resourceVersion in a message."""
_MAX_FAILED_RESUMES = 3
_MAX_SILENT_WATCHES = 2
_STREAMED_LIST = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}

Deliver = Callable[[SourceEvent], Awaitable[None]]


class Idle(KubeError):
    """A watch brought no complete event for as long as is allowed."""


class _ErrorEvent(KubeError):
    """The server ended a watch with an ERROR event; the resourceVersion to resume from may be invalid."""


class ListWatch(Generic[T]):
    """Follows one resource."""

    def __init__(
        self,
        client: ApiClient,
        resource: Resource[T],
        *,
        status: WatchStatus,
        on_finding: OnFinding,
        accept: str = PREFER_PROTOBUF,
        watch_list: bool = True,
        page_limit: int = PAGE_LIMIT,
        timing: Timing | None = None,
    ) -> None:
        """`accept` is a value of `kube/formats.py`; from a server that refuses it, JSON is requested from then on."""
        self._requests = ResourceRequests(client, resource, accept)
        self._is_required = resource.required
        self._status = status
        self._watch_list = watch_list
        self._page_limit = page_limit
        self._timing = timing or Timing()
        self._name = resource.kind.__name__
        self._replica = Replica(resource.kind, status, on_finding)
        self._retries = Retries(self._timing)
        self._version = ""
        """The resourceVersion to resume from; empty when a list is due."""
        self._ended_early = False
        """The last watch ended by an error, or before the time that was requested: the server may be another one."""
        self._seen: set[str] | None = None
        """Keys of the initial events while a streamed list arrives."""
        self._failed_resumes = 0

    async def follow(self, deliver: Deliver) -> NoReturn:
        """Deliver upserts, then Synced once, then changes, until cancelled. Failures of the server are retried."""
        while True:
            try:
                await self._list_and_watch(deliver)
            except KubeError as error:
                if self._requests.fall_back_to_json(error):
                    continue
                if self._is_absent(error):
                    pause = await self._treat_as_empty(error, deliver)
                else:
                    pause = self._handle_failure(error)
                await self._timing.sleep(pause)

    async def _list_and_watch(self, deliver: Deliver) -> None:
        """List if that is due, then watch until the server ends the watch.

        A watch may begin with the list: neither the server nor this process holds a copy of all objects then, and servers that compress such a
        stream compress the changes that follow as well.
        """
        if self._ended_early and self._version:
            await self._check_version()
        self._seen = set() if not self._version and self._watch_list else None
        if self._seen is not None:
            try:
                await self._watch(_STREAMED_LIST, deliver)
                return
            except KubeError as error:
                if self._seen is None or not _refuses_watch_list(error):
                    raise
                self._seen, self._watch_list = None, False
                _log.info("Streamed lists not available, using paged lists", kind=self._name, err=error)
        if not self._version:
            await self._list_pages(deliver)
        await self._watch({"resourceVersion": self._version}, deliver)

    async def _check_version(self) -> None:
        """Make a list due, and raise Gone, when the server has an older version than this process: its etcd was restored from a backup.

        Such a server accepts the watch, and sends nothing until it has caught up. In a cluster at rest nothing is checked.
        """
        page = await self._requests.get_page({"limit": "1"})
        current = page.metadata.resource_version if page is not None else ""
        if current.isdecimal() and self._version.isdecimal() and _is_lower(current, self._version):
            self._replica.forget_versions()
            before = self._version[:_MAX_VERSION_DIGITS]
            raise Gone(f"the resourceVersion went back from {before} to {current[:_MAX_VERSION_DIGITS]}", 410)
        self._ended_early = False

    async def _list_pages(self, deliver: Deliver) -> None:
        cursor = _PageCursor(self._page_limit)
        seen: set[str] = set()
        has_more = True
        while has_more:
            try:
                page = await self._requests.get_page(cursor.params)
            except (Gone, TooLarge) as error:
                cursor.restart(error)
                self._page_limit = cursor.limit or self._page_limit
                seen.clear()
                continue
            if page is None:
                continue
            self._note_event()
            for number, event in enumerate(self._replica.upsert_page(page, seen)):
                if event is not None:
                    await deliver(event)
                if not number % _OBJECTS_PER_TURN:  # nothing is awaited for objects that cannot be used
                    await asyncio.sleep(0)
            has_more = cursor.advance(page.metadata.continue_token)
            version = page.metadata.resource_version
        await self._finish_list(seen, version, deliver)

    async def _watch(self, params: dict[str, str], deliver: Deliver) -> None:
        started, seconds = self._timing.clock(), self._timing.watch_seconds()
        self._ended_early = True
        try:
            count = await self._read_events(params | {"timeoutSeconds": str(seconds)}, deliver)
        except Idle as error:
            if self._seen is not None:
                raise
            _log.info("Watch idle, reconnecting", v=2, kind=self._name, err=error)
        else:
            if self._seen is not None:
                raise _ErrorEvent("the stream ended before the initial events did")
            lasted = self._timing.clock() - started
            self._ended_early = lasted < seconds
            if not count and lasted < _MIN_WATCH_SECONDS:
                raise KubeError("the server closed the watch at once")
        self._retries.note_end()
        self._check_bookmarks()

    def _check_bookmarks(self) -> None:
        """Raise KubeError, and make a list due, when several watches brought not even a bookmark.

        Something in between may hold back changes as well, and resuming would not bring them.
        """
        silent = self._status.age(self._timing.clock()) or 0.0
        if silent >= _MAX_SILENT_WATCHES * self._timing.idle:
            self._version = ""
            raise KubeError(f"silent watches: no event for {silent:g} s")

    async def _read_events(self, params: dict[str, str], deliver: Deliver) -> int:
        """Handle the events of a watch until it ends; return their number.

        Raises Idle when no event is completed for some time, even while bytes trickle in; the time that the consumer takes
        does not count.
        """
        timing = self._timing
        clock = asyncio.get_running_loop().time
        count, before = 0, -1
        async with self._requests.open_watch(params, timing.headers) as (response, decoder):
            if self._seen is None:
                self._note_open()
            splitter = decoder.make_splitter()
            while True:
                if count > before:
                    before = count
                    idle = timing.idle if self._seen is None else timing.initial
                    deadline = clock() + idle
                try:
                    async with asyncio.timeout_at(deadline):
                        chunk = await response.read()
                except TimeoutError as error:
                    raise Idle(f"no complete event for {idle:g} s") from error
                if not chunk:
                    return count
                for frame in splitter.feed(chunk):
                    count += 1
                    await self._handle_event(decoder, frame, deliver)

    async def _handle_event(self, decoder: Decoder[T], frame: bytes, deliver: Deliver) -> None:
        """Deliver what one event changes. Raises KubeError."""
        try:
            event = decoder.decode_event(frame)
            if event.type == "ERROR":
                raise self._build_error(event)
            self._note_event()
            bookmark = decoder.decode_bookmark(event.object) if event.type == "BOOKMARK" else None
        except Unreadable as error:
            self._version = ""
            raise Unreadable(f"unreadable event in the watch: {error}") from error
        if bookmark is None:
            change = self._apply(event.type, decoder.decode_object(event.object))
            if change is not None:
                await deliver(change)
        elif self._seen is None:
            self._version = bookmark.metadata.resource_version or self._version
        elif bookmark.ends_initial_events:
            await self._finish_list(self._seen, bookmark.metadata.resource_version, deliver)
            self._seen = None
            self._note_open()

    def _apply(self, type_: str, result: T | BadObject) -> SourceEvent | None:
        """Return what an event about an object changes, if anything."""
        if isinstance(result, BadObject):
            key, version = result.key, result.resource_version
        else:
            key, version = result.metadata.key, result.metadata.resource_version
        if self._seen is None:
            self._version = version or self._version
        else:
            self._seen.add(key)
        if type_ == "DELETED":
            return self._replica.delete(key)
        if type_ in ("ADDED", "MODIFIED"):
            return self._replica.upsert(result)
        _log.warning("Ignored watch event of unknown type", kind=self._name, type=type_, object=key)
        return None

    def _build_error(self, event: WatchEvent) -> KubeError:
        status = decode_status(event.object)
        message = f"ERROR event: {status.code} {status.message or status.reason}"
        self._version = ""
        if status.code == 410 or status.reason in ("Expired", "Gone"):
            return Gone(message, 410)
        return _ErrorEvent(message, status.code)

    async def _finish_list(self, seen: set[str], version: str, deliver: Deliver) -> None:
        if not version:
            raise Unreadable("the list has no resourceVersion")
        self._version = version
        self._failed_resumes = 0
        self._retries.note_list()
        self._status.lists += 1
        for event in self._replica.finish_list(seen):
            await deliver(event)

    def _note_open(self) -> None:
        self._failed_resumes = 0
        self._retries.note_open()
        self._log_recovery()
        self._status.note_open()

    def _note_event(self) -> None:
        self._log_recovery()
        self._status.note_data(self._timing.clock())

    def _log_recovery(self) -> None:
        """Log the end of failures; that of an unreachable server is a condition, logged once for all watches."""
        if self._status.failures:
            verbosity = 0 if self._status.answered else 2
            _log.info("Watch recovered", v=verbosity, kind=self._name, failures=self._status.failures)
        elif self._status.absent:
            _log.info("Kind now available", kind=self._name)

    def _handle_failure(self, error: KubeError) -> float:
        """Record a failure and what it means for the resourceVersion to resume from; return the seconds to wait."""
        if isinstance(error, Gone):
            self._version = ""
        elif error.status and error.status not in _RESUMABLE:
            # The resourceVersion may be the cause: a server restored from a backup has not reached it.
            self._failed_resumes += 1
            if error.status < 500 or self._failed_resumes >= _MAX_FAILED_RESUMES:
                self._version = ""
        pause = self._retries.pause(error, list_due=not self._version)
        self._status.note_failure(str(error), answered=not isinstance(error, RequestFailed))
        _log.warning(
            "Watch failed, retrying",
            kind=self._name,
            err=error,
            after=f"{pause:.1f}s",
            failures=self._status.failures,
        )
        return pause

    def _is_absent(self, error: KubeError) -> bool:
        """Return whether the server lacks this optional kind, or has denied access to it from the start."""
        if self._is_required:
            return False
        return error.status == 404 or (error.status == 403 and not self._status.lists)

    async def _treat_as_empty(self, error: KubeError, deliver: Deliver) -> float:
        """Return the seconds after which an absent kind is requested again."""
        if not self._status.absent:
            _log.info("Kind not available, treated as empty", kind=self._name, err=error)
        self._version = ""
        self._status.absent = True
        self._status.connected = False
        self._status.last_error = str(error)
        for event in self._replica.finish_list(frozenset()):
            await deliver(event)
        return self._retries.recheck(error)


class _PageCursor:
    """Which page of a list to request next."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """Objects of a page; 0 for the whole list."""
        self._token = ""

    @property
    def params(self) -> dict[str, str]:
        params = {"limit": str(self.limit) if self.limit else "", "continue": self._token}
        return {name: value for name, value in params.items() if value}

    def advance(self, token: str) -> bool:
        """Continue after a page with this token; return False after the last one."""
        self._token = token
        return bool(token)

    def restart(self, error: KubeError) -> None:
        """Start again in another size after an error; raise it when there is no other size to try.

        A snapshot that expired between two pages means that paging is too slow here: the list is requested as a whole.
        When that is too large as well, a pause may help.
        """
        if isinstance(error, Gone) and self._token:
            self.limit = 0
        elif isinstance(error, TooLarge) and self.limit > 1:
            self.limit = max(1, self.limit // 4)
        else:
            raise error
        self._token = ""


def _refuses_watch_list(error: KubeError) -> bool:
    if is_format_refused(error):
        return False
    return isinstance(error, Idle | _ErrorEvent) or error.status not in _NOT_A_WATCH_LIST_REFUSAL


def _is_lower(version: str, other: str) -> bool:
    """Compare two decimal numbers of any length; Python refuses to convert very long ones."""
    return (len(version), version) < (len(other), other)
