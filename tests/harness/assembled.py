"""The assembled Proxy with a scripted source, machine and kernel, for what needs no process to be shown."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

from tests.fake.recording import RecordingBackend
from tests.harness.waiting import async_wait_until

from pointsman.conditions import Condition, ConditionBoard
from pointsman.config.defaults import with_file_defaults, with_mode
from pointsman.config.mode_table import NFTABLES
from pointsman.config.types import KubeProxyConfiguration
from pointsman.errors import KernelError
from pointsman.kube.event_recorder import SYNCING, Recorder
from pointsman.kube.status import WatchStatus
from pointsman.model.addresses import Family
from pointsman.model.objects import (
    EndpointSlice,
    KubeObject,
    Node,
    Service,
    ServiceCIDR,
    SourceEvent,
    Synced,
    Upsert,
)
from pointsman.node.history import History
from pointsman.node.proxy import Proxy
from pointsman.node.state import Settings
from pointsman.obs.registry import Metrics
from pointsman.serve.connections import Connections
from pointsman.sync.loop import SyncListener


class ScriptedSource:
    """Delivers what a test puts in."""

    statuses: Mapping[str, WatchStatus] = {}
    server = advice = ""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[SourceEvent | None] = asyncio.Queue()

    async def list_node_names(self) -> list[str]:
        return ["n1-other"]

    async def events(self) -> AsyncIterator[SourceEvent]:
        while (event := await self.queue.get()) is not None:
            yield event

    async def close(self) -> None:
        self.queue.put_nowait(None)

    def put(self, *objects: KubeObject) -> None:
        for item in objects:
            self.queue.put_nowait(Upsert(item))

    def listed(self, *kinds: type[KubeObject]) -> None:
        for kind in kinds or (Service, EndpointSlice, Node, ServiceCIDR):
            self.queue.put_nowait(Synced(kind))


class ScriptedMachine:
    """Addresses set by a test; each KernelError in `failures` is raised once instead."""

    def __init__(self) -> None:
        self.addresses: dict[Family, tuple[bytes, ...]] = {Family.IPV4: (b"\x7f\0\0\1",), Family.IPV6: ()}
        self.failures: list[KernelError] = []
        self.changes: asyncio.Queue[None] = asyncio.Queue()

    def local_addresses(self, family: Family) -> tuple[bytes, ...]:
        if self.failures:
            raise self.failures.pop(0)
        return self.addresses[family]

    async def address_changes(self) -> AsyncIterator[None]:
        while True:
            await self.changes.get()
            yield


class ServiceEvents(Recorder):
    """Events about Services: key, reason, action."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str]] = []

    def service_event(self, key: str, reason: str, note: str, *, action: str = SYNCING) -> None:
        self.events.append((key, reason, action))


class Assembly:
    """A Proxy and everything around it."""

    def __init__(
        self,
        *,
        node_wait: float = 30.0,
        service_range_wait: float = 30.0,
        pod_range_wait: float = 30.0,
        families: Iterable[Family] = Family,
        unsupported: Mapping[Family, str] | None = None,
        node_name: str = "n1",
        listeners: Sequence[SyncListener] = (),
        **fields: Any,
    ) -> None:
        """`fields` are those of the configuration."""
        defaults = with_file_defaults(KubeProxyConfiguration(**fields))
        self.source = ScriptedSource()
        self.machine = ScriptedMachine()
        self.recorder = ServiceEvents()
        self.backends = {family: RecordingBackend(family) for family in families}
        self.metrics = Metrics(NFTABLES)
        history = History()
        self.board = ConditionBoard(on_transition=history.on_condition)
        self.proxy = Proxy(
            Settings(
                config=with_mode(defaults, NFTABLES),
                node_name=node_name,
                node_wait=node_wait,
                service_range_wait=service_range_wait,
                pod_range_wait=pod_range_wait,
            ),
            self.source,
            self.backends,
            self.machine,
            self.metrics,
            self.recorder,
            self.board,
            Connections(),
            unsupported=unsupported or {},
            listeners=listeners,
            history=history,
        )

    def condition(self, type_: str) -> Condition | None:
        """The condition of that type, if there is one."""
        return next((one for one in self.board.current() if one.type == type_), None)

    @property
    def syncs(self) -> int:
        return len(self.backends[Family.IPV4].requests)

    async def settled(self) -> None:
        """Until everything put in so far is programmed."""
        await async_wait_until(self.source.queue.empty)
        await asyncio.sleep(0)
        for family in self.proxy.families.values():
            await family.loop.wait_idle()


@contextlib.asynccontextmanager
async def assembled(**options: Any) -> AsyncIterator[Assembly]:
    """A running Assembly with these options; fails when the proxy ended by itself."""
    assembly = Assembly(**options)
    running = asyncio.create_task(assembly.proxy.run())
    try:
        async with asyncio.timeout(30):
            yield assembly
        assert not running.done(), running.exception()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await assembly.proxy.close()
