"""State of the Services on the Node object, on request: the condition `pointsman.dev/ServicesReady`, and no start-up taint.

The condition is `/readyz` on the Node. It is written when it changes, without a heartbeat, so a process that is killed leaves what it
wrote last; one that stops leaves Unknown, because the rules stay but no longer follow changes. A change by another program is
overwritten with the next change. The taint is removed wherever it is found once this node serves Services; it is never added.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple

import msgspec

from pointsman.conditions import Blocks, Condition, ConditionBoard, Status
from pointsman.errors import KubeError
from pointsman.kube.client import ApiClient
from pointsman.kube.timing import make_server_backoff
from pointsman.model.addresses import Family
from pointsman.model.objects import Node
from pointsman.obs.log import get_log

SERVICES_READY: Final = "pointsman.dev/ServicesReady"
STARTUP_TAINT: Final = "pointsman.dev/services-not-ready"

UPDATE_INTERVAL_SECONDS: Final = 3.0
MIN_CHANGE_SECONDS: Final = 10.0
"""Between two writes of the condition."""
MIN_MESSAGE_CHANGE_SECONDS: Final = 60.0
"""Where only the message differs: some hold a duration."""
START_SECONDS: Final = 60.0
"""Until then a restarted proxy that has not synced yet leaves the condition as it is: the rules of the last one still serve."""
MAX_MESSAGE_CHARACTERS: Final = 1024
_REQUEST_TIMEOUT_SECONDS, _STOP_TIMEOUT_SECONDS = 10.0, 2.0

_STARTED_TYPES: Final = frozenset(
    f"{name}{family.value}" for name in ("Sync", "Datapath") for family in Family
)
"""What must be true before pods may start here, as far as it is on the board."""
_TEST_FAILED: Final = 422
"""Of a JSON patch: the list of taints is no longer the one that was seen."""

_log = get_log(__name__)


class ServicesReady(NamedTuple):
    """The condition as it is written to the Node."""

    status: Status
    reason: str
    message: str

    def has_same_reason(self, other: ServicesReady) -> bool:
        return (self.status, self.reason) == (other.status, other.reason)


_STOPPED = ServicesReady(
    Status.UNKNOWN, "ProxyStopped", "the proxy stopped: its rules stay, and no longer follow changes"
)


def summarize(conditions: Iterable[Condition]) -> ServicesReady:
    """Return the worst of the conditions that block readiness; a state that is known is worse than one that is not."""
    blocking = [one for one in conditions if one.does_block(Blocks.READINESS)]
    if not blocking:
        return ServicesReady(Status.TRUE, "NothingBlocksReadiness", "Services are served on this node")
    order = list(Blocks)
    worst = max(blocking, key=lambda one: (one.is_failing, order.index(one.blocks)))
    return ServicesReady(worst.status, worst.reason, f"{worst.type}: {worst.text}"[:MAX_MESSAGE_CHARACTERS])


def build_taint_patch(node: Node) -> list[dict[str, str]]:
    """Return the JSON patch that removes the start-up taint, from the last one so that indices stay; empty without it.

    It changes nothing when another program has changed the taints meanwhile.
    """
    patch: list[dict[str, str]] = []
    for index, taint in reversed(list(enumerate(node.spec.taints or ()))):
        if taint.key == STARTUP_TAINT:
            path = f"/spec/taints/{index}"
            patch.append({"op": "test", "path": f"{path}/key", "value": STARTUP_TAINT})
            patch.append({"op": "remove", "path": path})
    return patch


class NodeStatus:
    """Keeps the own Node object up to date; failures are retried and are a condition that blocks nothing."""

    def __init__(
        self,
        client: ApiClient,
        node_name: str,
        board: ConditionBoard,
        read_node: Callable[[], Node | None],
        *,
        writes_condition: bool,
        removes_taint: bool,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client, self._board, self._read_node = client, board, read_node
        self._path = f"/api/v1/nodes/{node_name}"
        self._writes_condition, self._removes_taint = writes_condition, removes_taint
        self._clock, self._sleep, self._now = clock, sleep, now
        self._start_ends = clock() + START_SECONDS
        self._uid = ""
        """Of the Node that was last seen: a Node that was created again has lost the condition."""
        self._written: ServicesReady | None = None
        self._written_at = 0.0
        self._transition = ""
        """When the status last changed, as far as this process has seen."""
        self._untainted_version = ""
        """The resourceVersion of the Node whose taint was removed: its watch may lag behind."""
        self._failure = ""
        board.add_source("Node", self.conditions)

    async def run(self) -> None:
        """Update until cancelled."""
        backoff = make_server_backoff()
        while True:
            try:
                await self.update()
                self._failure = ""
                backoff.reset()
                pause = UPDATE_INTERVAL_SECONDS
            except KubeError as error:
                self._failure = str(error)
                pause = backoff.pause()
            await self._sleep(pause)

    async def update(self) -> None:
        """Write what changed; raises KubeError."""
        node = self._read_node()
        if node is None:
            return
        if node.metadata.uid != self._uid:
            self._uid, self._written = node.metadata.uid, None
        conditions = self._board.current()
        serves = all(one.is_true for one in conditions if one.type in _STARTED_TYPES)
        if serves:
            self._start_ends = self._clock()
        failure = None
        if self._removes_taint and serves:
            try:
                await self._remove_taint(node)
            except KubeError as error:
                failure = error
        if self._writes_condition and self._clock() >= self._start_ends:
            await self._update_condition(summarize(conditions))
        if failure is not None:
            raise failure

    async def report_stopped(self) -> None:
        """Write that no proxy follows changes; the last word of a process, so it is called after `run` has ended."""
        if not self._writes_condition or not self._uid:
            return
        try:
            async with asyncio.timeout(_STOP_TIMEOUT_SECONDS):
                await self._write_condition(_STOPPED)
        except (KubeError, TimeoutError) as error:
            _log.warning("Cannot write to the Node that the proxy stopped", err=error)

    def conditions(self) -> Iterator[Condition]:
        """Yield whether the Node could be written."""
        if self._failure:
            yield Condition.false("NodeStatus", "PatchFailed", self._failure)
        else:
            yield Condition.true("NodeStatus")

    async def _update_condition(self, found: ServicesReady) -> None:
        written = self._written
        if found == written:
            return
        if written is not None:
            pause = MIN_MESSAGE_CHANGE_SECONDS if found.has_same_reason(written) else MIN_CHANGE_SECONDS
            if self._clock() - self._written_at < pause:
                return
        await self._write_condition(found)
        _log.info("Node condition written", status=found.status.value, reason=found.reason)

    async def _write_condition(self, found: ServicesReady) -> None:
        """Send a strategic merge patch: the API server replaces the condition of this type and keeps all others."""
        now = self._now().strftime("%Y-%m-%dT%H:%M:%SZ")
        if self._written is None or self._written.status is not found.status:
            self._transition = now
        condition = {
            "type": SERVICES_READY,
            "status": found.status.value,
            "reason": found.reason,
            "message": found.message,
            "lastHeartbeatTime": now,
            "lastTransitionTime": self._transition,
        }
        body = {"status": {"conditions": [condition]}}
        await self._patch(f"{self._path}/status", body, "application/strategic-merge-patch+json")
        self._written, self._written_at = found, self._clock()

    async def _remove_taint(self, node: Node) -> None:
        version = node.metadata.resource_version
        patch = build_taint_patch(node)
        if not patch or version == self._untainted_version:
            return
        try:
            await self._patch(self._path, patch, "application/json-patch+json")
        except KubeError as error:
            if error.status != _TEST_FAILED:
                raise
            _log.info("Taints of the Node changed meanwhile, waiting for the next version", err=error)
        else:
            _log.info("Start-up taint removed", taint=STARTUP_TAINT)
        self._untainted_version = version

    async def _patch(self, path: str, body: object, content_type: str) -> None:
        await self._client.request(
            "PATCH",
            path,
            body=msgspec.json.encode(body),
            content_type=content_type,
            timeout=_REQUEST_TIMEOUT_SECONDS,
        )
