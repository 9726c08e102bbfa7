"""Health check node ports: how load balancers learn which nodes hold endpoints of a Local service.

One listener per Service, on the addresses that nodePortAddresses selects, of one IP family. A port that is taken
harms only its own Service: it is reported (the caller makes an event of it) and tried again with the next sync.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable, Mapping, Sequence

import msgspec

from pointsman.obs.log import get_log
from pointsman.serve.connections import Connections
from pointsman.serve.listeners import open_socket
from pointsman.serve.messages import Request, Response, reply, with_deadline
from pointsman.serve.server import HttpServer

_log = get_log(__name__)


class ServiceHealth(msgspec.Struct, frozen=True):
    """The health of one Service, for load balancers."""

    namespace: str
    name: str
    port: int
    local_endpoints: int

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


def build_response(service: ServiceHealth, proxy_healthy: bool) -> Response:
    """Return 200 only where this node can serve traffic; the header carries its weight."""
    count = service.local_endpoints
    document = {
        "service": {"namespace": service.namespace, "name": service.name},
        "localEndpoints": count,
        "serviceProxyHealthy": proxy_healthy,
    }
    return reply(
        json.dumps(document, indent="\t").encode(),
        "application/json",
        status=200 if count > 0 and proxy_healthy else 503,
        headers={"X-Load-Balancing-Endpoint-Weight": str(count)},
    )


class _Port:
    """One open health check port; its response follows its Service."""

    def __init__(
        self, service: ServiceHealth, proxy_healthy: Callable[[], bool], connections: Connections
    ) -> None:
        self.service = service
        self._proxy_healthy = proxy_healthy
        self.server = HttpServer(with_deadline(self._answer), connections)

    async def _answer(self, _request: Request) -> Response:
        return build_response(self.service, self._proxy_healthy())


class ServiceHealthPorts:
    """Opens and closes health check ports as Services come and go. One instance per IP family."""

    def __init__(
        self,
        node_name: str,
        proxy_healthy: Callable[[], bool],
        on_bind_failure: Callable[[ServiceHealth, str], None] = lambda _service, _message: None,
        connections: Connections | None = None,
    ) -> None:
        self._node_name = node_name
        self._proxy_healthy = proxy_healthy
        self._on_bind_failure = on_bind_failure
        self._connections = Connections() if connections is None else connections
        self._addresses: tuple[str, ...] = ()
        self._ports: dict[str, _Port] = {}
        self.failures: dict[str, str] = {}
        """Why a port is closed, by `namespace/name`; the same failure is not logged again with every sync."""
        self._lock = asyncio.Lock()

    @property
    def open_ports(self) -> dict[str, tuple[tuple[str, int], ...]]:
        """Where each Service's port listens, by `namespace/name`."""
        return {key: port.server.addresses for key, port in self._ports.items()}

    async def sync(self, services: Mapping[str, ServiceHealth], addresses: Sequence[str]) -> None:
        """Make exactly these ports answer, on these addresses ("0.0.0.0" or "::" for all of a family).

        Ports that stay are not disturbed. Never raises for a port that cannot be opened. Overlapping calls run in
        the order they were made.
        """
        async with self._lock:
            await self._sync(services, addresses)

    async def _sync(self, services: Mapping[str, ServiceHealth], addresses: Sequence[str]) -> None:
        moved = tuple(addresses) != self._addresses
        self._addresses = tuple(addresses)
        for key, port in list(self._ports.items()):
            wanted = services.get(key)
            if moved or wanted is None or wanted.port != port.service.port:
                del self._ports[key]
                await port.server.close()
        self.failures = {key: message for key, message in self.failures.items() if key in services}
        for key, service in services.items():
            if key in self._ports:
                self._ports[key].service = service
            else:
                await self._open(key, service)

    async def close(self) -> None:
        await self.sync({}, ())

    async def _open(self, key: str, service: ServiceHealth) -> None:
        with contextlib.ExitStack() as opened:
            sockets: list[socket.socket] = []
            for address in self._addresses:
                try:
                    sock = open_socket(address, service.port, only_family=True)
                except OSError as error:
                    self._report(service, address, error)
                    return
                sockets.append(opened.enter_context(sock))
            port = _Port(service, self._proxy_healthy, self._connections)
            port.server.serve(sockets)
            opened.pop_all()
        self._ports[key] = port
        self.failures.pop(key, None)

    def _report(self, service: ServiceHealth, address: str, error: OSError) -> None:
        message = (
            f'node {self._node_name} failed to start healthcheck "{service.key}" on port {service.port}: '
            f"listen on {address}: {error.strerror}"
        )
        if self.failures.get(service.key) != message:
            self.failures[service.key] = message
            _log.error(
                "Cannot open health check port",
                err=error,
                service=service.key,
                port=service.port,
                address=address,
            )
        self._on_bind_failure(service, message)
