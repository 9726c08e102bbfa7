"""Node ports at 127.0.0.1 and ::1, served in user space behind the gate KubeProxyNFTablesLocalhostNodePorts.

Packets to loopback addresses cannot be redirected off the node by rules without opening martian sources, so TCP
connections are accepted here and carried to an endpoint. Only what asks for it pays: without such ports there is
neither a socket nor a thread. Connections in progress live on when their port or endpoint goes, as everywhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import threading
from collections.abc import Iterable, Mapping

from pointsman.model.addresses import Family, address_text
from pointsman.model.plan import ServicePlan
from pointsman.model.service import Protocol, ServicePortName

_LOOPBACK = {Family.IPV4: "127.0.0.1", Family.IPV6: "::1"}
_CONNECT_SECONDS = 10.0
_CHUNK = 64 * 1024
_BACKLOG = 128

Target = tuple[str, int]


def loopback_targets(plan: ServicePlan) -> tuple[int, tuple[Target, ...]] | None:
    """Node port and the endpoints that its policy allows; None when not served."""
    if plan.port.protocol is not Protocol.TCP or not plan.port.node_port or not plan.external_endpoints:
        return None
    endpoints = tuple((address_text(e.address), e.port) for e in plan.external_endpoints)
    return plan.port.node_port, endpoints


class LoopbackNodePorts:
    """Listeners at the loopback address of one family, and the thread that serves them."""

    def __init__(self, family: Family) -> None:
        self._address = _LOOPBACK[family]
        self._domain = socket.AF_INET if family is Family.IPV4 else socket.AF_INET6
        self._ports: dict[ServicePortName, int] = {}
        self._targets: dict[int, tuple[Target, ...]] = {}
        self._servers: dict[int, asyncio.Server] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def replace(self, plans: Mapping[ServicePortName, ServicePlan]) -> list[str]:
        """Serve exactly these; says which ports could not be opened."""
        gone = [name for name in self._ports if name not in plans]
        return self.update({**dict.fromkeys(gone), **plans})

    def update(self, changed: Mapping[ServicePortName, ServicePlan | None]) -> list[str]:
        """Follow changed plans; None stands for one that is gone."""
        found = {name: None if plan is None else loopback_targets(plan) for name, plan in changed.items()}
        for name, wanted in found.items():
            before = self._ports.get(name)
            if before is not None and (wanted is None or wanted[0] != before):
                self._close(before)
                del self._ports[name]
        for name, wanted in found.items():
            if wanted is not None:
                self._ports[name], self._targets[wanted[0]] = wanted[0], wanted[1]
        opened = [wanted[0] for wanted in found.values() if wanted and wanted[0] not in self._servers]
        return self._open(opened)

    def close(self) -> None:
        for port in list(self._servers):
            self._close(port)
        self._ports.clear()
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._loop = self._thread = None

    def _open(self, ports: Iterable[int]) -> list[str]:
        problems: list[str] = []
        for port in ports:
            listener = socket.socket(self._domain, socket.SOCK_STREAM)
            try:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind((self._address, port))
                listener.listen(_BACKLOG)
            except OSError as error:
                listener.close()
                reason = os.strerror(error.errno or 0)
                problems.append(f"node port {port} is not served at {self._address}: {reason}")
                continue
            self._servers[port] = asyncio.run_coroutine_threadsafe(
                self._serve(listener, port), self._running_loop()
            ).result()
        return problems

    def _close(self, port: int) -> None:
        self._targets.pop(port, None)
        server = self._servers.pop(port, None)
        if server is not None and self._loop is not None:
            closed = threading.Event()

            def close() -> None:
                server.close()
                closed.set()

            self._loop.call_soon_threadsafe(close)
            closed.wait()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=self._run, args=(self._loop,), name="loopback-node-ports", daemon=True
            )
            self._thread.start()
        return self._loop

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        connections = asyncio.all_tasks(loop)
        for task in connections:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*connections, return_exceptions=True))

    async def _serve(self, listener: socket.socket, port: int) -> asyncio.Server:
        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            # Cancelled only when everything ends; the stream callback of Python 3.11 would log that as an error.
            with contextlib.suppress(asyncio.CancelledError):
                try:
                    await self._carry(port, reader, writer)
                finally:
                    writer.close()

        return await asyncio.start_server(accepted, sock=listener, limit=_CHUNK)

    async def _carry(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        targets = self._targets.get(port)
        if not targets:
            return
        address, target_port = random.choice(targets)  # noqa: S311 - balancing, not secrecy
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                far_reader, far_writer = await asyncio.open_connection(address, target_port, limit=_CHUNK)
        except OSError:
            writer.transport.abort()
            return
        try:
            await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
        finally:
            far_writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the end, then pass the end on; the other direction may go on. A reset is passed on as one."""
    try:
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except ConnectionError:
        writer.transport.abort()
