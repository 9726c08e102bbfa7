"""Node ports at 127.0.0.1 and ::1, served in user space behind the gate KubeProxyNFTablesLocalhostNodePorts.

nftables rules cannot redirect packets for loopback addresses off the node without accepting martian sources, so TCP
connections are accepted here and forwarded to an endpoint. As in kube-proxy, a connection outlives its endpoint's removal
and ends with its node port.

Any process on the node may connect, and every connection takes two descriptors of the process that also watches the API
server and answers probes. So connections are limited, and further ones are reset.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
import socket
import struct
import time
from collections.abc import Callable, Collection
from collections.abc import Set as AbstractSet

import msgspec

from pointsman.model.addresses import Family, address_text
from pointsman.model.node_context import NodeContext
from pointsman.model.plan import FrontendKind, ServicePlan
from pointsman.model.service import Protocol, ServicePortName
from pointsman.model.slots import assign_slots
from pointsman.obs.log import get_log
from pointsman.obs.registry import Metrics
from pointsman.sync.loop import SyncListener
from pointsman.sync.reconcile import SyncOutcome

_LOOPBACK = {Family.IPV4: "127.0.0.1", Family.IPV6: "::1"}
_CONNECT_TIMEOUT_SECONDS = 10.0
_CHUNK_BYTES = 64 * 1024
_BACKLOG = 128
_MAX_CONNECTIONS = 1024
_LOG_INTERVAL_SECONDS = 60.0
_LINGER_ZERO = struct.pack("ii", 1, 0)

EndpointPlace = tuple[str, int]
"""Address and port to connect to."""

_log = get_log(__name__)


def compute_max_connections() -> int:
    """Return the limit of one IP family: with both families at most half of all descriptors."""
    return min(_MAX_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8)


class LoopbackPort(msgspec.Struct, frozen=True):
    """A node port on loopback and its endpoints."""

    port: int
    targets: tuple[EndpointPlace, ...]
    affinity_seconds: int = 0


def _has_tcp_node_port(plan: ServicePlan) -> bool:
    return plan.port.protocol is Protocol.TCP and bool(plan.port.node_port)


def find_loopback_port(plan: ServicePlan, node_ips: Collection[bytes] = ()) -> LoopbackPort | None:
    """Return the node port with the endpoints that its policy allows, each as often as it has slots.

    None without a TCP node port or endpoints, and where source ranges apply to the node port that do not include the
    node: a client on loopback is the node.
    """
    port = plan.port
    if not _has_tcp_node_port(plan) or not plan.external_endpoints:
        return None
    for frontend in plan.frontends:
        guarded = frontend.kind is FrontendKind.NODE_PORT and frontend.source_ranges
        if guarded and not frontend.admits_any(node_ips):
            return None
    slots = assign_slots(plan.external_endpoints, plan.balancing)
    targets = tuple((address_text(e.address), e.port) for e in slots)
    return LoopbackPort(port.node_port, targets, port.service.affinity_seconds)


class Balancer:
    """Chooses the endpoint of each connection; all clients have the same address, so affinity selects one endpoint."""

    def __init__(self, wanted: LoopbackPort) -> None:
        self._port = wanted
        self._kept: EndpointPlace | None = None
        self._last_use = 0.0

    def follow(self, wanted: LoopbackPort) -> None:
        if wanted.affinity_seconds != self._port.affinity_seconds:
            self._kept = None
        self._port = wanted

    def choose(self, now: float) -> EndpointPlace:
        """Return a random endpoint or, with session affinity, the last one until it was not used for the timeout."""
        port = self._port
        kept = self._kept
        if kept is None or kept not in port.targets or now - self._last_use > port.affinity_seconds:
            kept = random.choice(port.targets)  # noqa: S311 - balancing, not secrecy
        if port.affinity_seconds:
            self._kept, self._last_use = kept, now
        return kept


class LoopbackNodePorts(SyncListener):
    """Listeners at the loopback addresses, which follow the syncs of all IP families."""

    def __init__(
        self, metrics: Metrics, max_connections: Callable[[], int] = compute_max_connections
    ) -> None:
        self._metrics = metrics
        self._families = {family: _FamilyPorts(family, max_connections) for family in Family}
        self._tasks: set[asyncio.Task[None]] = set()

    def on_synced(self, outcome: SyncOutcome) -> None:
        task = asyncio.get_running_loop().create_task(self._follow(outcome))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def settled(self) -> None:
        """Wait until the listeners follow every sync so far."""
        await asyncio.gather(*self._tasks)

    async def close(self) -> None:
        """Stop listening, and end all connections."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for ports in self._families.values():
            await ports.close()

    async def _follow(self, outcome: SyncOutcome) -> None:
        ports, label = self._families[outcome.family], outcome.family.value
        failed = await ports.follow(outcome)
        self._metrics.modes.localhost_listeners.labels(ip_family=label).set(ports.count)
        self._metrics.modes.localhost_listener_failures.labels(ip_family=label).inc(failed)


class _FamilyPorts:
    """The listeners of one IP family."""

    def __init__(self, family: Family, max_connections: Callable[[], int]) -> None:
        self._address = _LOOPBACK[family]
        self._domain = socket.AF_INET if family is Family.IPV4 else socket.AF_INET6
        self._capacity = _Capacity(self._address, max_connections)
        self._plans: dict[ServicePortName, ServicePlan] = {}
        """Plans with a TCP node port, also while loopback is not among the addresses of node ports."""
        self._context: NodeContext | None = None
        self._wanted: dict[ServicePortName, LoopbackPort] = {}
        self._listeners: dict[ServicePortName, _Listener] = {}
        self._lock = asyncio.Lock()

    @property
    def count(self) -> int:
        return len(self._listeners)

    async def follow(self, outcome: SyncOutcome) -> int:
        """Serve the node ports of the plans that were synced; return how many could not be opened.

        Those are tried again when they change, and by every full sync.
        """
        async with self._lock:
            changed = self._update(outcome)
            wanted = {name: self._wanted[name] for name in changed if name in self._wanted}
            for name in changed & self._listeners.keys():
                if name not in wanted or wanted[name].port != self._listeners[name].port:
                    await self._listeners.pop(name).close()
            return sum([not await self._serve(name, port) for name, port in wanted.items()])

    def _update(self, outcome: SyncOutcome) -> AbstractSet[ServicePortName]:
        """Compute the wanted ports again; return the service ports to look at."""
        for name, change in outcome.changes.items():
            self._plans.pop(name, None)
            if change.new is not None and _has_tcp_node_port(change.new):
                self._plans[name] = change.new
        everything = outcome.report.full or outcome.context != self._context
        self._context = outcome.context
        changed = self._plans.keys() | self._wanted.keys() if everything else outcome.changes.keys()
        for name in changed:
            self._wanted.pop(name, None)
            plan = self._plans.get(name) if self._context.node_port_addresses.loopback_requested else None
            port = None if plan is None else find_loopback_port(plan, self._context.node_ips)
            if port is not None:
                self._wanted[name] = port
        return changed

    def _open(self, port: int) -> socket.socket:
        sock = socket.socket(self._domain, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((self._address, port))
        except OSError:
            sock.close()
            raise
        return sock

    async def _serve(self, name: ServicePortName, wanted: LoopbackPort) -> bool:
        listener = self._listeners.get(name)
        if listener is not None:
            listener.balancer.follow(wanted)
            return True
        listener = _Listener(wanted, self._capacity)
        try:
            await listener.serve(self._open(wanted.port))
        except OSError as error:
            _log.warning(
                "Cannot listen on node port", address=self._address, port=wanted.port, err=error.strerror
            )
            return False
        self._listeners[name] = listener
        return True

    async def close(self) -> None:
        async with self._lock:
            for listener in self._listeners.values():
                await listener.close()
            self._listeners.clear()


class _Capacity:
    """Limits the connections of all listeners of one family together."""

    def __init__(self, address: str, max_connections: Callable[[], int]) -> None:
        self._address, self._max_connections = address, max_connections
        self._used = self._rejected = 0
        self._logged = float("-inf")

    def acquire(self) -> bool:
        """Return False when no further connection is allowed."""
        limit = self._max_connections()
        if self._used < limit:
            self._used += 1
            return True
        self._rejected += 1
        now = time.monotonic()
        if now - self._logged >= _LOG_INTERVAL_SECONDS:
            _log.warning(
                "Too many connections to node ports on loopback, rejecting new ones",
                address=self._address,
                limit=limit,
                times=self._rejected,
            )
            self._rejected, self._logged = 0, now
        return False

    def release(self) -> None:
        self._used -= 1


class _Listener:
    """One node port: its socket and connections."""

    def __init__(self, wanted: LoopbackPort, capacity: _Capacity) -> None:
        self.port = wanted.port
        self.balancer = Balancer(wanted)
        self._capacity = capacity
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def serve(self, sock: socket.socket) -> None:
        self._server = await asyncio.start_server(
            self._on_accepted, sock=sock, limit=_CHUNK_BYTES, backlog=_BACKLOG
        )

    async def close(self) -> None:
        """Stop listening, and end all connections."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _on_accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None or not self._capacity.acquire():
            _reset(writer)
            return
        connection = asyncio.ensure_future(self._forward(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._on_closed)
        # Cancelled only when the port is closed; the stream callback of Python 3.11 would log that as an error.
        with contextlib.suppress(asyncio.CancelledError):
            await connection

    def _on_closed(self, connection: asyncio.Task[None]) -> None:
        self._connections.discard(connection)
        self._capacity.release()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address, port = self.balancer.choose(time.monotonic())
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_SECONDS):
                endpoint_reader, endpoint_writer = await asyncio.open_connection(
                    address, port, limit=_CHUNK_BYTES
                )
        except OSError:
            writer.transport.abort()
            return
        except asyncio.CancelledError:
            writer.transport.abort()
            raise
        try:
            await asyncio.gather(_copy(reader, endpoint_writer), _copy(endpoint_reader, writer))
        except asyncio.CancelledError:
            writer.transport.abort()
            endpoint_writer.transport.abort()
            raise
        finally:
            writer.close()
            endpoint_writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until EOF and forward it, while the other direction may continue; forward a reset as a reset."""
    try:
        while data := await reader.read(_CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        _reset(writer)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection with a reset, so that the client sees an error instead of EOF."""
    with contextlib.suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
    writer.transport.abort()
