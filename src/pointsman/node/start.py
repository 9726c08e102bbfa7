"""The start of a proxy: what the first sync waits for, and whether this node can be served at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Protocol

from pointsman.errors import ConfigError
from pointsman.kube.status import WatchStatus
from pointsman.model.objects import EndpointSlice, KubeObject, Node, Service, ServiceCIDR, SourceEvent
from pointsman.node.state import NodeState
from pointsman.obs.log import get_log
from pointsman.wording.findings import render_message

KINDS: tuple[type[KubeObject], ...] = (Service, EndpointSlice, Node, ServiceCIDR)

_log = get_log(__name__)


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

    async def list_node_names(self) -> Sequence[str]:
        """Return the names of Nodes, the first of them in a large cluster; none where they cannot be listed."""

    def events(self) -> AsyncIterator[SourceEvent]:
        """Yield every object, then changes, until closed."""

    async def close(self) -> None:
        """End the iteration."""


class StartGate:
    """Opens once, when every kind of object has been listed and the Node is known, or optional ones are no longer waited for.

    Each method returns True when it opened the gate.
    """

    def __init__(self, node_name: str, *, needs_node: bool) -> None:
        self.is_open = False
        self.node_name = node_name
        self._unlisted = dict.fromkeys(KINDS)
        self._needs_node = needs_node
        self._node_known = False

    @property
    def waiting_for(self) -> str:
        """Describe what is missing before the first sync; empty once open."""
        if self._unlisted:
            return f"the first list of {', '.join(kind.__name__ for kind in self._unlisted)}"
        return "" if self.is_open else f"the Node {self.node_name}"

    def has_listed(self, kind: type[KubeObject]) -> bool:
        return kind not in self._unlisted

    def mark_listed(self, kind: type[KubeObject]) -> bool:
        self._unlisted.pop(kind, None)
        return self._open_if_complete()

    def mark_node(self, *, is_complete: bool) -> bool:
        """Note whether the Node has everything worth waiting for."""
        self._node_known = is_complete
        return self._open_if_complete()

    def skip_service_ranges(self) -> bool:
        self._unlisted.pop(ServiceCIDR, None)
        return self._open_if_complete()

    def skip_node(self) -> bool:
        self._needs_node = False
        return self._open_if_complete()

    def _open_if_complete(self) -> bool:
        if self.is_open or self._unlisted or (self._needs_node and not self._node_known):
            return False
        self.is_open = True
        return True


class Start:
    """Opens the gate as objects arrive or waiting times end, then calls `on_start` once.

    `run` raises ConfigError when the configuration cannot work on this node. It never ends by itself.
    """

    def __init__(self, node: NodeState, source: EventSource, on_start: Callable[[], None]) -> None:
        self.gate = StartGate(node.name, needs_node=not node.settings.from_manifests)
        self.has_started = False
        """Everything waited for has arrived, and this node can be served: from now on there are syncs."""
        self._node, self._source, self._on_start = node, source, on_start
        self._changed = asyncio.Event()
        self._fatal: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._logged_warnings: frozenset[str] = frozenset()

    def on_listed(self, kind: type[KubeObject]) -> None:
        self._start_if(self.gate.mark_listed(kind))
        self._changed.set()

    def on_node_update(self) -> None:
        """Call after a change of the Node, or of the configuration that must fit it."""
        is_complete = self._node.has_addresses and not self._node.lacks_pod_range
        self._start_if(self.gate.mark_node(is_complete=is_complete))
        self._changed.set()
        if self.has_started:
            self._log_warnings()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._raise_fatal())
            tasks.create_task(self._wait_for_service_ranges())
            if not self._node.settings.from_manifests:
                tasks.create_task(self._wait_for_node())

    def _start_if(self, opened: bool) -> None:
        if not opened:
            return
        errors = self._node.find_config_errors(self._node.config)
        if errors:
            self._fatal.set_exception(ConfigError(errors))
            return
        self.has_started = True
        self._log_warnings()
        self._on_start()

    def _log_warnings(self) -> None:
        """Log each warning once for as long as it lasts. A Node that changes may bring errors, and the proxy continues."""
        warnings = [render_message(finding) for finding in self._node.check_config(self._node.config)]
        for warning in warnings:
            if warning not in self._logged_warnings:
                _log.warning("The configuration may be incomplete or incorrect", reason=warning)
        self._logged_warnings = frozenset(warnings)

    async def _raise_fatal(self) -> None:
        await self._fatal

    async def _wait_for_service_ranges(self) -> None:
        await asyncio.sleep(self._node.settings.service_range_wait)
        self._start_if(self.gate.skip_service_ranges())

    async def _wait_for_node(self) -> None:
        """Wait for the Node; the periods begin with the first list, as in kube-proxy."""
        settings = self._node.settings
        if not await self._wait_until(self._has_listed_nodes, settings.node_wait):
            status = self._source.statuses.get(Node.__name__)
            _log.error(
                "The Node could not be listed yet; nothing is programmed before that",
                err=(status.last_error if status is not None else "") or None,
                node=self._node.name,
                waited=f"{settings.node_wait:.0f}s",
            )
            await self._wait_until(self._has_listed_nodes, None)
        if not await self._wait_until(lambda: self._node.has_addresses, settings.node_wait):
            self._log_missing_address(settings.node_wait)
        if self._node.lacks_pod_range:
            await self._wait_for_pod_range(settings.pod_range_wait)
        self._start_if(self.gate.skip_node())

    def _has_listed_nodes(self) -> bool:
        return self.gate.has_listed(Node)

    async def _wait_until(self, predicate: Callable[[], bool], timeout: float | None) -> bool:  # noqa: ASYNC109
        """Return whether the predicate became true in time; it is evaluated at every change."""
        try:
            async with asyncio.timeout(timeout):
                while not predicate():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def _log_missing_address(self, waited: float) -> None:
        if self._node.node_object is not None:
            message = "The Node has no addresses yet, continuing without them"
        else:
            message = (
                "The Node does not exist, continuing without its addresses. "
                "If the node has another name, set --hostname-override"
            )
        _log.error(message, node=self._node.name, waited=f"{waited:.0f}s")

    async def _wait_for_pod_range(self, seconds: float) -> None:
        name = self._node.name
        _log.warning("Waiting for the Node's pod range, which detectLocalMode NodeCIDR needs", node=name)
        if await self._wait_until(lambda: not self._node.lacks_pod_range, seconds):
            return
        if self._node.node_object is not None:
            raise ConfigError(self._node.find_config_errors(self._node.config))
        problem = (
            f"there is no Node {name} after {seconds:.0f} s, and detectLocalMode NodeCIDR needs its spec.podCIDRs: "
            "if the node has another name, set --hostname-override"
        )
        raise ConfigError([problem])
