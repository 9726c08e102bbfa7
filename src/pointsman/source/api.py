"""The API server as a source: four list-watches merged into one sequence of events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import msgspec

from pointsman.errors import KubeError
from pointsman.kube.client import ApiClient
from pointsman.kube.codec import check_json
from pointsman.kube.formats import PREFER_PROTOBUF
from pointsman.kube.resources import ENDPOINT_SLICES, SERVICE_CIDRS, SERVICES, Resource, select_own_node
from pointsman.kube.status import OnFinding, WatchStatus
from pointsman.kube.timing import Timing
from pointsman.kube.watch import ListWatch
from pointsman.model.objects import SourceEvent
from pointsman.obs.log import get_log

_QUEUE_LIMIT = 128
"""Bounds the memory of a burst: a consumer that falls behind makes the watches wait, and TCP the server."""
_MAX_NODE_NAMES = 5000
_NAMES_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"

_log = get_log(__name__)


class _Name(msgspec.Struct):
    name: str


class _Named(msgspec.Struct):
    metadata: _Name


class _Names(msgspec.Struct):
    items: list[_Named]


class ApiSource:
    """Services, EndpointSlices, ServiceCIDRs and this node's Node from one API server.

    Events of one kind keep their order; between kinds there is none, as between kube-proxy's informers.
    The client belongs to the caller.
    """

    def __init__(
        self,
        client: ApiClient,
        *,
        node_name: str,
        on_finding: OnFinding = lambda _finding: None,
        accept: str = PREFER_PROTOBUF,
        watch_list: bool = True,
        timing: Timing | None = None,
    ) -> None:
        self._client = client
        self._statuses: dict[str, WatchStatus] = {}

        def make_watch(resource: Resource[Any]) -> ListWatch[Any]:
            status = self._statuses[resource.kind.__name__] = WatchStatus()
            return ListWatch(
                client,
                resource,
                status=status,
                on_finding=on_finding,
                accept=accept,
                watch_list=watch_list,
                timing=timing,
            )

        self._watches = [
            make_watch(resource)
            for resource in (select_own_node(node_name), SERVICE_CIDRS, SERVICES, ENDPOINT_SLICES)
        ]
        self._queue: asyncio.Queue[SourceEvent | Exception | None] = asyncio.Queue(_QUEUE_LIMIT)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def statuses(self) -> Mapping[str, WatchStatus]:
        """State of each watch, by kind (Service, EndpointSlice, Node, ServiceCIDR)."""
        return self._statuses

    @property
    def server(self) -> str:
        return self._client.server

    @property
    def advice(self) -> str:
        """What to do when the API server cannot be reached."""
        return self._client.advice

    async def list_node_names(self) -> list[str]:
        """Return the names of the first Nodes of the cluster; none where they cannot be listed."""
        params = {"limit": str(_MAX_NODE_NAMES), "resourceVersion": "0"}
        try:
            answer = await self._client.request("GET", "/api/v1/nodes", params=params, accept=_NAMES_ONLY)
            check_json(answer.body)
            return [item.metadata.name for item in msgspec.json.decode(answer.body, type=_Names).items]
        except (KubeError, msgspec.DecodeError) as error:
            _log.info("Cannot list the names of Nodes", v=2, err=error)
            return []

    async def events(self) -> AsyncGenerator[SourceEvent, None]:
        """Yield events until `close`; raises only what a bug in a watch raised. To be iterated once."""
        self._tasks = [asyncio.create_task(self._pump(watch)) for watch in self._watches]
        try:
            while (item := await self._queue.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            await self._stop_watches()

    async def close(self) -> None:
        """Stop the watches; the iteration ends after the events that are queued, of which a full queue loses one."""
        await self._stop_watches()
        if self._queue.full():
            self._queue.get_nowait()
        self._queue.put_nowait(None)

    async def _stop_watches(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _pump(self, watch: ListWatch[Any]) -> None:
        try:
            await watch.follow(self._queue.put)
        except Exception as error:  # noqa: BLE001  handed to the consumer, where it is raised
            await self._queue.put(error)
