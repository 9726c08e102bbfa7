"""Node ports at 127.0.0.1 and ::1, served in user space behind the gate KubeProxyNFTablesLocalhostNodePorts.

Packets to loopback addresses cannot be redirected off the node by rules without opening martian sources, so TCP
connections are accepted here and carried to an endpoint. Only what asks for it pays: without such ports there is
neither a socket nor a thread. A connection lives on when its endpoint goes and ends with its node port, as in
kube-proxy: nothing but this process holds it, and nobody would ever end it.

Anybody on the node may connect, and every connection takes two descriptors of the process that also watches the API server
and answers probes. So there is a bound, and who comes too late is refused by a reset.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from pointsman.model.addresses import Family, address_text
from pointsman.model.plan import FrontendKind, ServicePlan
from pointsman.model.service import Protocol, ServicePortName
from pointsman.model.slots import assign_slots
from pointsman.obs.log import get_log

_LOOPBACK = {Family.IPV4: "127.0.0.1", Family.IPV6: "::1"}
_CONNECT_SECONDS = 10.0
_CHUNK = 64 * 1024
_BACKLOG = 128
_MOST_CONNECTIONS = 1024
_LOG_SECONDS = 60.0
_NO_LINGERING = struct.pack("ii", 1, 0)

Target = tuple[str, int]

_log = get_log(__name__)


def most_connections() -> int:
    """What the listeners of one family may carry: with both families at most half of all descriptors."""
    return min(_MOST_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8)


class Served(msgspec.Struct, frozen=True):
    """What a node port on loopback leads to."""

    port: int
    targets: tuple[Target, ...]
    affinity_seconds: int = 0


def loopback_port(plan: ServicePlan, node_ips: Collection[bytes] = ()) -> Served | None:
    """The node port and the endpoints that its policy allows, each as often as it has slots; None when not served.

    Where source ranges hold at the node port, the node must be in them: whoever comes by loopback is the node.
    """
    port = plan.port
    if port.protocol is not Protocol.TCP or not port.node_port or not plan.external_endpoints:
        return None
    for frontend in plan.frontends:
        guarded = frontend.kind is FrontendKind.NODE_PORT and frontend.source_ranges
        if guarded and not frontend.admits_any(node_ips):
            return None
    slots = assign_slots(plan.external_endpoints, plan.balancing)
    targets = tuple((address_text(e.address), e.port) for e in slots)
    return Served(port.node_port, targets, port.service.affinity_seconds)


class Balancer:
    """Chooses the endpoint of each connection. All clients on loopback have one address, so affinity is one endpoint."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._kept: Target | None = None
        self._last_use = 0.0

    def follow(self, served: Served) -> None:
        if served.affinity_seconds != self._served.affinity_seconds:
            self._kept = None
        self._served = served

    def choose(self, now: float) -> Target:
        """An endpoint at random, or with session affinity the last one, until nobody has used it for the timeout."""
        served = self._served
        kept = self._kept
        if kept is None or kept not in served.targets or now - self._last_use > served.affinity_seconds:
            kept = random.choice(served.targets)  # noqa: S311 - balancing, not secrecy
        if served.affinity_seconds:
            self._kept, self._last_use = kept, now
        return kept


class LoopbackNodePorts:
    """Listeners at the loopback address of one family, and the thread that serves them."""

    def __init__(self, family: Family, most: Callable[[], int] = most_connections) -> None:
        self._address = _LOOPBACK[family]
        self._room = _Room(self._address, most)
        self._domain = socket.AF_INET if family is Family.IPV4 else socket.AF_INET6
        self._ports: dict[ServicePortName, int] = {}
        self._listeners: dict[int, _Listener] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    def replace(
        self, plans: Mapping[ServicePortName, ServicePlan], node_ips: Collection[bytes] = ()
    ) -> list[str]:
        """Serve exactly these; says which ports could not be opened."""
        gone = [name for name in self._ports if name not in plans]
        return self.update({**dict.fromkeys(gone), **plans}, node_ips)

    def update(
        self, changed: Mapping[ServicePortName, ServicePlan | None], node_ips: Collection[bytes] = ()
    ) -> list[str]:
        """Follow changed plans; None stands for one that is gone. Says which ports could not be opened."""
        found = {
            name: None if plan is None else loopback_port(plan, node_ips) for name, plan in changed.items()
        }
        closing: list[int] = []
        for name, wanted in found.items():
            before = self._ports.get(name)
            if before is not None and (wanted is None or wanted.port != before):
                closing.append(before)
                del self._ports[name]
        serving = {name: wanted for name, wanted in found.items() if wanted is not None}
        if not closing and not serving:
            return []
        self._ports |= {name: wanted.port for name, wanted in serving.items()}
        work = self._follow(closing, serving.values())
        return asyncio.run_coroutine_threadsafe(work, self._running_loop()).result()

    def close(self) -> None:
        self._ports.clear()
        if self._loop is not None and self._thread is not None:
            asyncio.run_coroutine_threadsafe(self._follow(list(self._listeners), ()), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._loop = self._thread = None

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=self._loop.run_forever, name="loopback-node-ports", daemon=True
            )
            self._thread.start()
        return self._loop

    # --- in the loop's thread -------------------------------------------------------------------------------

    async def _follow(self, closing: Iterable[int], serving: Iterable[Served]) -> list[str]:
        for port in closing:
            listener = self._listeners.pop(port, None)
            if listener is not None:
                await listener.close()
        problems: list[str] = []
        for served in serving:
            listener = self._listeners.get(served.port)
            if listener is not None:
                listener.balancer.follow(served)
                continue
            try:
                self._listeners[served.port] = await self._open(served)
            except OSError as error:
                reason = os.strerror(error.errno or 0)
                problems.append(f"node port {served.port} is not served at {self._address}: {reason}")
        return problems

    async def _open(self, served: Served) -> _Listener:
        sock = socket.socket(self._domain, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((self._address, served.port))
            listener = _Listener(served, self._room)
            await listener.serve(sock)
        except OSError:
            sock.close()
            raise
        return listener


class _Room:
    """For the connections of all listeners together."""

    def __init__(self, address: str, most: Callable[[], int]) -> None:
        self._address, self._most = address, most
        self._taken = self._refused = 0
        self._logged = float("-inf")

    def enter(self) -> bool:
        """False when there is no room for one more."""
        most = self._most()
        if self._taken < most:
            self._taken += 1
            return True
        self._refused += 1
        now = time.monotonic()
        if now - self._logged >= _LOG_SECONDS:
            _log.warning(
                "Too many connections to node ports on loopback; refusing more",
                address=self._address,
                most=most,
                times=self._refused,
            )
            self._refused, self._logged = 0, now
        return False

    def leave(self) -> None:
        self._taken -= 1


class _Listener:
    """One node port: its socket, and the connections that were accepted there."""

    def __init__(self, served: Served, room: _Room) -> None:
        self.balancer = Balancer(served)
        self._room = room
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def serve(self, sock: socket.socket) -> None:
        self._server = await asyncio.start_server(self._accepted, sock=sock, limit=_CHUNK, backlog=_BACKLOG)

    async def close(self) -> None:
        """Stop listening, and end all connections."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None or not self._room.enter():
            _reset(writer)
            return
        connection = asyncio.ensure_future(self._carry(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._left)
        # Cancelled only when the port goes; the stream callback of Python 3.11 would log that as an error.
        with contextlib.suppress(asyncio.CancelledError):
            await connection

    def _left(self, connection: asyncio.Task[None]) -> None:
        self._connections.discard(connection)
        self._room.leave()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address, port = self.balancer.choose(time.monotonic())
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                far_reader, far_writer = await asyncio.open_connection(address, port, limit=_CHUNK)
        except OSError:
            writer.transport.abort()
            return
        except asyncio.CancelledError:
            writer.transport.abort()
            raise
        try:
            await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
        except asyncio.CancelledError:
            writer.transport.abort()
            far_writer.transport.abort()
            raise
        finally:
            writer.close()
            far_writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the end, then pass the end on; the other direction may go on. A reset is passed on as one."""
    try:
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except ConnectionError:
        _reset(writer)


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection so that its client hears of a failure, not of an end."""
    with contextlib.suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGERING)
    writer.transport.abort()
