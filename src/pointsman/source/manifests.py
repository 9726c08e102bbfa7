"""A file or directory of manifests as a source: no cluster needed. Read again when changed, whichever way it is changed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from pathlib import Path

from pointsman.daemon_thread import run_in_daemon_thread
from pointsman.kernel.path_watch import watch_path
from pointsman.kube.status import OnFinding, WatchStatus
from pointsman.model.findings import Finding
from pointsman.model.objects import EndpointSlice, KubeObject, Node, Service, ServiceCIDR, SourceEvent, Synced
from pointsman.source.manifest_files import ManifestFiles, ManifestReading
from pointsman.wording.findings import render_finding

_KINDS: tuple[type[KubeObject], ...] = (Node, ServiceCIDR, Service, EndpointSlice)
_MAX_EVENTS_PER_TURN = 200
"""Of the event loop."""


class ManifestSource:
    """The same interface as ApiSource, fed by files. Reading and parsing happen on a thread of their own."""

    server = advice = ""

    def __init__(
        self,
        path: Path,
        *,
        node_name: str = "",
        on_finding: OnFinding = lambda _finding: None,
        debounce: float = 0.2,
        poll: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._files = ManifestFiles(path, node_name)
        self._on_finding = on_finding
        self._debounce = debounce
        self._poll = poll
        self._clock = clock
        self._status = WatchStatus()
        self._reported: frozenset[Finding] = frozenset()
        self._closed = asyncio.Event()

    @property
    def statuses(self) -> Mapping[str, WatchStatus]:
        return {"manifests": self._status}

    async def list_node_names(self) -> list[str]:
        return []

    async def events(self) -> AsyncGenerator[SourceEvent, None]:
        """Yield the objects, Synced for every kind, then changes, until `close`. To be iterated once.

        A path that does not exist yet is waited for: an empty answer would undo rules that a mount will bring.
        """
        async with aclosing(watch_path(self._path, debounce=self._debounce, poll=self._poll)) as changes:
            while not self._closed.is_set():
                reading = await run_in_daemon_thread(self._files.read, "manifests")
                self._update_status(reading)
                for number, event in enumerate(reading.changes, 1):
                    yield event
                    if number % _MAX_EVENTS_PER_TURN == 0:
                        await asyncio.sleep(0)
                if reading.found and not self._status.synced:
                    self._status.synced = True
                    for kind in _KINDS:
                        yield Synced(kind)
                await self._wait_for_change_or_close(changes)

    async def close(self) -> None:
        self._closed.set()

    async def _wait_for_change_or_close(self, changes: AsyncGenerator[None, None]) -> None:
        change = asyncio.ensure_future(anext(changes))
        closing = asyncio.ensure_future(self._closed.wait())
        try:
            await asyncio.wait((change, closing), return_when=asyncio.FIRST_COMPLETED)
            if change.done():
                change.result()
        finally:
            change.cancel()
            closing.cancel()
            await asyncio.gather(change, closing, return_exceptions=True)

    def _update_status(self, reading: ManifestReading) -> None:
        """Update the status and report new findings."""
        status = self._status
        if reading.rejected:
            status.note_failure(render_finding(reading.rejected[0]))
        else:
            status.note_data(self._clock())
        status.connected = reading.found
        status.last_event = self._clock()
        status.objects = reading.objects
        status.rejected = {render_finding(entry): entry for entry in reading.rejected}
        status.truncated = reading.truncated
        status.notices = reading.notices
        status.ignored = reading.ignored
        findings = (*reading.rejected, *reading.notices)
        for finding in findings:
            if finding not in self._reported:
                self._on_finding(finding)
        self._reported = frozenset(findings)
