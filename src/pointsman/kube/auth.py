"""Credentials that follow their files: what to present to the API server right now.

Bound tokens rotate hourly and kubelet client certificates every few months; kube-proxy's certificates need a
restart to be noticed. Here each request asks `Credentials.present()`, which stats the files (a few
microseconds) and reads them again when they changed. A rotation caught half-way (key not yet matching) keeps
the last good material and tries again with the next request.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pointsman.errors import ConfigError, KubeError
from pointsman.files import Signature, file_signature
from pointsman.kube.access import Access, ExecPlugin, Material
from pointsman.kube.execplugin import ExecCredential, run_plugin
from pointsman.kube.kubeconfig import access_from_kubeconfig

_log = logging.getLogger(__name__)
_EXPIRY_MARGIN_SECONDS = 10.0

PluginRunner = Callable[[ExecPlugin, Access], Awaitable[ExecCredential]]


@dataclass(frozen=True, slots=True)
class Presented:
    """Headers and TLS settings of one request."""

    headers: tuple[tuple[str, str], ...] = field(repr=False)
    tls: ssl.SSLContext | None
    """None for a plain http server."""


class Credentials:
    """The identity of an `Access`, kept fresh."""

    def __init__(
        self, access: Access, *, clock: Callable[[], float] = time.time, run: PluginRunner = run_plugin
    ) -> None:
        self._access = access
        self._clock = clock
        self._run_plugin = run
        self._granted: ExecCredential | None = None
        self._plugin_lock = asyncio.Lock()
        self._token = access.token
        self._token_signature: Signature | None = None
        self._context: ssl.SSLContext | None = None
        self._context_key: object = None
        self._file_signature = file_signature(access.kubeconfig) if access.kubeconfig is not None else None

    async def present(self) -> Presented:
        """What to send now. Raises KubeError when there is nothing usable at all."""
        self._reread_kubeconfig()
        granted = await self._exec_credential()
        headers = list(self._access.impersonation)
        token = granted.token if granted is not None and granted.token else self._current_token()
        if token:
            headers.append(("Authorization", f"Bearer {token}"))
        elif self._access.username:
            pair = f"{self._access.username}:{self._access.password}".encode()
            headers.append(("Authorization", f"Basic {base64.b64encode(pair).decode()}"))
        tls = self._tls(granted) if self._access.server.startswith("https:") else None
        return Presented(tuple(headers), tls)

    def forget(self) -> bool:
        """After a 401: drop what can be obtained anew; says whether another try makes sense."""
        renewable = self._granted is not None
        self._granted = None
        previous = self._token
        self._token_signature = None
        return renewable or self._current_token() != previous

    def _reread_kubeconfig(self) -> None:
        """Takes over the identity and the CA of a changed kubeconfig; the server stays what it was."""
        old, path = self._access, self._access.kubeconfig
        signature = file_signature(path) if path is not None else None
        if path is None or signature is None or signature == self._file_signature:
            return
        self._file_signature = signature
        try:
            new = access_from_kubeconfig(path.read_bytes(), path, master=old.master, context=old.context)
        except (OSError, ConfigError) as error:
            _log.warning("changed kubeconfig is unusable, keeping the last credentials: %s", error)
            return
        if new.server != old.server:
            _log.warning("kubeconfig %s now names another server; restart to use it", path)
            return
        _log.info("kubeconfig %s changed: its credentials are used from now on", path)
        self._access = new
        self._token, self._token_signature = new.token, None
        if new.exec_plugin != old.exec_plugin:
            self._granted = None

    async def _exec_credential(self) -> ExecCredential | None:
        plugin = self._access.exec_plugin
        if plugin is None:
            return None
        async with self._plugin_lock:
            granted = self._granted
            if granted is None or (
                granted.expires is not None and granted.expires - _EXPIRY_MARGIN_SECONDS <= self._clock()
            ):
                granted = self._granted = await self._run_plugin(plugin, self._access)
        return granted

    def _current_token(self) -> str:
        path = self._access.token_file
        if path is None:
            return self._token
        signature = file_signature(path)
        if signature is None or signature != self._token_signature:
            try:
                token = path.read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                if not self._token:
                    raise KubeError(f"token file {path} ({self._access.origin}): {error}") from error
                _log.warning("token file %s cannot be read, keeping the last token: %s", path, error)
                return self._token
            if token:
                self._token = token
                self._token_signature = signature
            elif not self._token:
                raise KubeError(f"token file {path} ({self._access.origin}) is empty")
        return self._token

    def _tls(self, granted: ExecCredential | None) -> ssl.SSLContext:
        certificate, key = self._access.client_certificate, self._access.client_key
        if granted is not None and granted.client_certificate is not None:
            certificate, key = granted.client_certificate, granted.client_key
        wanted = tuple(
            file_signature(material) if isinstance(material, Path) else material
            for material in (self._access.ca, certificate, key)
        )
        if self._context is not None and wanted == self._context_key:
            return self._context
        try:
            self._context = _context(self._access, certificate, key)
            self._context_key = wanted
        except (OSError, ValueError) as error:
            if self._context is None:
                raise KubeError(f"TLS material ({self._access.origin}): {error}") from error
            _log.warning(
                "new TLS material is unusable, keeping the last (%s): %s", self._access.origin, error
            )
        return self._context


def _context(access: Access, certificate: Material, key: Material) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if access.insecure_skip_tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif isinstance(access.ca, Path):
        context.load_verify_locations(cadata=_pem_text(access.ca.read_bytes(), str(access.ca)))
    elif access.ca is not None:
        context.load_verify_locations(cadata=_pem_text(access.ca, "certificate-authority-data"))
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    # Python 3.13 made strict X.509 the default; cluster CAs made by older tools lack the extensions it asks for.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if certificate is not None and key is not None:
        with (
            _as_file(certificate, "client-certificate") as cert_path,
            _as_file(key, "client-key") as key_path,
        ):
            try:
                # An encrypted key must fail; without a callback OpenSSL would ask on the terminal.
                context.load_cert_chain(cert_path, key_path, password=lambda: b"")
            except ssl.SSLError as error:
                names = f"{_name(certificate, 'client-certificate-data')} and {_name(key, 'client-key-data')}"
                raise ValueError(f"{names}: {error.reason or 'not a usable pair'}") from error
    return context


def _pem_text(data: bytes, name: str) -> str:
    text = data.decode("ascii", errors="replace")
    if "-----BEGIN CERTIFICATE-----" not in text:
        raise ValueError(f"{name} holds no PEM certificate")
    return text


@contextmanager
def _as_file(material: Material, name: str) -> Iterator[str]:
    """A path OpenSSL can open; inline keys live in anonymous memory, never on disk."""
    if isinstance(material, Path):
        material.stat()
        yield str(material)
        return
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        os.write(descriptor, material or b"")
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _name(material: Material, inline: str) -> str:
    return str(material) if isinstance(material, Path) else inline
