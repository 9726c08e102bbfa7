"""Listening sockets, and ports that follow the configuration.

A port that cannot be bound is tried again every five seconds, because the usual cause (the previous proxy still
stopping) goes away by itself. With bindAddressHardFail it is fatal at start, and a reload whose ports cannot be opened is rejected.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from pointsman.errors import PointsmanError
from pointsman.model.addresses import address_from_text, port_from_text, split_host_port
from pointsman.obs.log import get_log
from pointsman.serve.connections import RESERVED_DESCRIPTORS, Connections, read_descriptor_limit
from pointsman.serve.messages import Handler, with_deadline
from pointsman.serve.server import HttpServer, PlainStream

if TYPE_CHECKING:
    from pointsman.serve.tls import ServerTls

RETRY_SECONDS: Final = 5.0
_BACKLOG: Final = 4096
"""As long as Go's: a flood of new connections must not make the kernel drop those of probes."""

_log = get_log(__name__)


class CertificateUnusable(PointsmanError):
    """There is no certificate to serve with; the message names flag and file."""


class BindFailed(PointsmanError):
    """An address cannot be listened on; the message names it and what to do."""

    def __init__(self, message: str, address: str = "") -> None:
        super().__init__(message)
        self.address = address


async def _ignore_failure(_failure: BindFailed) -> None:
    """Do nothing."""


def parse_bind_address(address: str) -> tuple[str, int]:
    """Return host and port of a bind address; raises BindFailed when it is not one."""
    host, text = split_host_port(address) or ("", "")
    port = port_from_text(text)
    if port is None:
        raise BindFailed(f"bind address {address!r}: write IP:port with a port below 65536")
    if host and address_from_text(host) is None:
        raise BindFailed(f"bind address {address!r}: {host!r} is not an IP address")
    return host, port


def open_socket(host: str, port: int, *, only_family: bool = False) -> socket.socket:
    """Open a listening socket. A wildcard means both families, as in Go, unless `only_family`."""
    packed = address_from_text(host) if host else bytes(4)
    if packed is None:
        raise BindFailed(f"cannot listen on {host!r}: not an IP address")
    wildcard = not any(packed)
    if wildcard and not only_family:
        try:
            return _open_listening(socket.AF_INET6, "::", port, v6only=False)
        except OSError as error:
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                raise
            return _open_listening(socket.AF_INET, "", port, v6only=False)
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    return _open_listening(family, socket.inet_ntop(family, packed), port, v6only=True)


def _open_listening(family: socket.AddressFamily, host: str, port: int, *, v6only: bool) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if sock.fileno() >= read_descriptor_limit() - RESERVED_DESCRIPTORS:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, v6only)
        sock.bind((host, port))
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


class Listener:
    """Keeps one handler reachable at one bind address, which may change while running."""

    def __init__(
        self,
        name: str,
        handler: Handler,
        *,
        hard_fail: bool = False,
        on_bind_failure: Callable[[BindFailed], Awaitable[None]] = _ignore_failure,
        on_settled: Callable[[bool], None] = lambda _listens: None,
        connections: Connections | None = None,
        retry_seconds: float = RETRY_SECONDS,
        tls: ServerTls | None = None,
    ) -> None:
        """`on_bind_failure` is called after every failed attempt, `on_settled` when they end, with whether it listens."""
        self._name, self._handler = name, handler
        self.hard_fail = hard_fail
        self._on_bind_failure, self._on_settled = on_bind_failure, on_settled
        self._last_failure = ""
        self._connections = Connections() if connections is None else connections
        self._retry_seconds = retry_seconds
        self._tls = tls
        self._address = ""
        self._server: HttpServer | None = None
        self._retry: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """The configured bind address; empty when stopped or switched off."""
        return self._address

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """Where it really listens; empty while it does not."""
        return self._server.addresses if self._server else ()

    async def start(self, address: str) -> None:
        """Listen; an empty address means that this server is switched off.

        Raises BindFailed only with hard_fail; otherwise a failure is reported and retried in the background.
        """
        self._address = address
        if not address:
            return
        try:
            self._serve(self._open(address))
        except BindFailed as failure:
            await self._report(failure)
            if self.hard_fail:
                raise
            self._retry = asyncio.create_task(self._keep_trying(), name=f"bind {self._name}")

    async def rebind(self, address: str) -> None:
        """Move to another address; the same one is left alone.

        Raises BindFailed only with hard_fail, and then listens where it did before.
        """
        previous = self._address
        if address == previous:
            return
        if not self.hard_fail or not address or _has_same_port(address, previous):
            await self.stop()
            try:
                await self.start(address)
            except BindFailed:
                await self.start(previous)
                self._settle(listens=True)
                raise
        else:
            sock = self._open(address)
            await self.stop()
            self._address = address
            self._serve(sock)

    async def stop(self) -> None:
        self._address = ""
        if self._retry is not None:
            self._retry.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._retry
            self._retry = None
            self._settle(listens=False)
        if self._server is not None:
            await self._server.close()
            self._server = None

    def _open(self, address: str) -> socket.socket:
        host, port = parse_bind_address(address)
        try:
            if self._tls is not None:
                self._tls.load()
            return open_socket(host, port)
        except CertificateUnusable as error:
            raise BindFailed(f"failed to start {self._name} on {address}: {error}", address) from error
        except OSError as error:
            raise BindFailed(
                f"failed to start {self._name} on {address}: {error.strerror}; "
                "is another proxy still running, or the address not on this node?",
                address,
            ) from error

    def _serve(self, sock: socket.socket) -> None:
        open_stream = PlainStream if self._tls is None else self._tls.open_stream
        self._server = HttpServer(with_deadline(self._handler), self._connections, open_stream)
        self._server.serve([sock])

    async def _keep_trying(self) -> None:
        while True:
            await asyncio.sleep(self._retry_seconds)
            try:
                self._serve(self._open(self._address))
            except BindFailed as failure:
                await self._report(failure)
            else:
                _log.info("Listening (retry succeeded)", server=self._name, address=self._address)
                self._retry = None
                self._settle(listens=True)
                return

    async def _report(self, failure: BindFailed) -> None:
        if str(failure) != self._last_failure:
            self._last_failure = str(failure)
            _log.error("Cannot listen", server=self._name, address=self._address, err=failure)
        await self._on_bind_failure(failure)

    def _settle(self, *, listens: bool) -> None:
        self._last_failure = ""
        self._on_settled(listens)


def _has_same_port(address: str, other: str) -> bool:
    """Return whether one of these addresses may have to be closed before the other can be opened."""
    return bool(other) and parse_bind_address(address)[1] == parse_bind_address(other)[1]
