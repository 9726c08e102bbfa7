"""TLS on served ports: one certificate from files that may be replaced, or a self-signed one.

Files are looked at with every new connection. Files that cannot be used leave the last usable certificate in place, with a
condition. Only TLS 1.3: it has no renegotiation, and no sessions are kept, so that a client can make neither of them cost.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

from pointsman.conditions import Condition
from pointsman.files import Signature, get_signature
from pointsman.kube.certificates import load_pair, trust
from pointsman.obs.log import get_log
from pointsman.serve.listeners import CertificateUnusable
from pointsman.serve.messages import ClientCertificate
from pointsman.serve.self_signed import make_certificate

_READ_BYTES: Final = 16384
_PLAIN_HTTP_REPLY: Final = b"HTTP/1.0 400 Bad Request\r\n\r\nThis port speaks HTTPS.\n"

_log = get_log(__name__)
T = TypeVar("T")


class ServerTls:
    """The TLS settings of a port, which follow their files."""

    def __init__(
        self, certificate: Path | None, key: Path | None, client_ca: Path | None, server_name: str
    ) -> None:
        """Without certificate and key, one for `server_name` is made; it lasts as long as this object."""
        self._certificate, self._key, self._client_ca = certificate, key, client_ca
        self._self_signed = None if certificate and key else make_certificate(server_name)
        self._context: ssl.SSLContext | None = None
        self._signatures: tuple[Signature | None, ...] = ()
        self._problem = ""

    def load(self) -> ssl.SSLContext:
        """Return the settings for a new connection. Raises CertificateUnusable while there has been no usable certificate."""
        files = (self._certificate, self._key, self._client_ca)
        signatures = tuple(get_signature(path) for path in files if path is not None)
        if self._context is not None and signatures == self._signatures:
            return self._context
        try:
            context = self._read()
        except (OSError, ValueError) as error:
            self._problem = str(error)
            if self._context is None:
                raise CertificateUnusable(self._problem) from error
            return self._context
        if self._context is not None:
            _log.info("Certificate files changed, using them for new connections", file=self._certificate)
        self._context, self._signatures, self._problem = context, signatures, ""
        return context

    def open_stream(self, sock: socket.socket) -> TlsStream:
        context = self.load()
        return TlsStream(sock, context, lambda: self._context is not context)

    def conditions(self) -> Iterator[Condition]:
        """Report changed files that cannot be used; while nothing could be loaded yet, the closed port is reported instead."""
        if self._context is None:
            return
        self.load()
        if self._problem:
            message = f"{self._problem}; the certificate before is still served"
            yield Condition.false("ServingCertificate", "Unusable", message)
        else:
            yield Condition.true("ServingCertificate")

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0
        # Python 3.13 made strict X.509 the default; cluster CAs made by older tools lack the extensions that it requires.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if self._self_signed is not None:
            load_pair(context, *self._self_signed, ("certificate", "key"))
        elif self._certificate is not None and self._key is not None:
            load_pair(context, self._certificate, self._key, ("--tls-cert-file", "--tls-private-key-file"))
        if self._client_ca is not None:
            trust(context, self._client_ca, "--client-ca-file")
            context.verify_mode = ssl.CERT_OPTIONAL
        return context


class TlsStream:
    """A stream of one accepted connection; see `server.Stream`."""

    needs_handshake: Final = True

    def __init__(
        self, sock: socket.socket, context: ssl.SSLContext, is_stale: Callable[[], bool] = lambda: False
    ) -> None:
        self._sock, self._loop = sock, asyncio.get_running_loop()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._is_stale = is_stale

    @property
    def is_stale(self) -> bool:
        return self._is_stale()

    async def handshake(self) -> ClientCertificate | None:
        try:
            await self._drive(self._tls.do_handshake)
        except ssl.SSLEOFError as error:
            raise ConnectionAbortedError("closed during the handshake") from error
        except ssl.SSLError as error:
            with contextlib.suppress(OSError):
                await self._flush()  # the alert with the reason for the client
                if error.reason == "HTTP_REQUEST":
                    await self._loop.sock_sendall(self._sock, _PLAIN_HTTP_REPLY)
            raise
        found = self._tls.getpeercert()
        return _read_certificate(found) if found else None

    async def receive(self, size: int) -> bytes:
        try:
            return await self._drive(lambda: self._tls.read(size))
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return b""

    async def send(self, data: bytes | memoryview) -> None:
        unsent = memoryview(data)
        while unsent:
            unsent = unsent[self._tls.write(unsent) :]
        await self._flush()

    async def _drive(self, step: Callable[[], T]) -> T:
        """Call `step` until it has read enough, sending and receiving what it needs."""
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                await self._flush()
                received = await self._loop.sock_recv(self._sock, _READ_BYTES)
                if received:
                    self._incoming.write(received)
                else:
                    self._incoming.write_eof()
            else:
                await self._flush()
                return result

    async def _flush(self) -> None:
        if self._outgoing.pending:
            await self._loop.sock_sendall(self._sock, self._outgoing.read())


def _read_certificate(certificate: Any) -> ClientCertificate:
    """Return user and groups as Kubernetes reads them: the common name, and the organizations."""
    parts = [part for names in certificate["subject"] for part in names]
    return ClientCertificate(
        user=next((value for name, value in parts if name == "commonName"), ""),
        groups=tuple(value for name, value in parts if name == "organizationName"),
        expires=float(ssl.cert_time_to_seconds(certificate["notAfter"])),
    )
