"""Credentials that follow their files: what to present to the API server right now.

Bound tokens rotate hourly and kubelet client certificates every few months; kube-proxy's certificates need a
restart to be noticed. Here each request calls `Credentials.present()`, which stats the files (a few
microseconds) and reads them again when they changed. A rotation caught half-way (key not yet matching) keeps
the last good material and tries again with the next request.
"""

from __future__ import annotations

import asyncio
import base64
import re
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from pointsman.errors import ConfigError, KubeError
from pointsman.files import Signature, get_signature, read_file
from pointsman.kube.access import MAX_CREDENTIAL_BYTES, Access, ExecPlugin, Material
from pointsman.kube.certificates import load_pair, trust
from pointsman.kube.client_metrics import RequestListener
from pointsman.kube.exec_plugin import ExecCredential, PluginFailed, run_plugin
from pointsman.kube.kubeconfig import access_from_kubeconfig, read_kubeconfig
from pointsman.obs.log import get_log

_log = get_log(__name__)
_EXPIRY_MARGIN_SECONDS = 10.0
_NOT_IN_A_HEADER = re.compile(r"[^\t\x20-\x7e\x80-\U0010ffff]|[\ud800-\udfff]")

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
        self,
        access: Access,
        *,
        clock: Callable[[], float] = time.time,
        run: PluginRunner = run_plugin,
        listener: RequestListener | None = None,
    ) -> None:
        self._access = access
        self._clock = clock
        self._run_plugin = run
        self._listener = listener or RequestListener()
        self._granted: ExecCredential | None = None
        self._plugin_lock = asyncio.Lock()
        self._token = access.token
        self._token_signature: Signature | None = None
        self._last_warning = ""
        self._context: ssl.SSLContext | None = None
        self._context_key: object = None
        self._file_signature = get_signature(access.kubeconfig) if access.kubeconfig is not None else None

    @property
    def access(self) -> Access:
        """The access as last read: its kubeconfig may have changed since the start."""
        return self._access

    async def present(self) -> Presented:
        """Return what to send now. Raises KubeError when nothing is usable."""
        self._reread_kubeconfig()
        granted = await self._get_exec_credential()
        headers = list(self._access.impersonation)
        token = granted.token if granted is not None and granted.token else self._read_token()
        if token:
            headers.append(("Authorization", f"Bearer {token}"))
        elif self._access.username:
            pair = f"{self._access.username}:{self._access.password}".encode(errors="replace")
            headers.append(("Authorization", f"Basic {base64.b64encode(pair).decode()}"))
        for name, value in headers:
            if _NOT_IN_A_HEADER.search(value):
                raise KubeError(f"{name} ({self._access.origin}): holds a character that no header may hold")
        tls = self._build_tls(granted) if self._access.server.startswith("https:") else None
        return Presented(tuple(headers), tls)

    def check(self) -> None:
        """Read the files once. Raises ConfigError naming field and file; later errors are reported by each request."""
        try:
            self._read_token()
            if self._access.server.startswith("https:"):
                self._build_tls(None)
        except KubeError as error:
            raise ConfigError([str(error)]) from error

    def forget(self) -> bool:
        """Drop after a 401 what can be obtained again; return whether another attempt makes sense."""
        renewable = self._granted is not None
        self._granted = None
        previous = self._token
        self._token_signature = None
        return renewable or self._read_token() != previous

    def _reread_kubeconfig(self) -> None:
        """Use the identity, CA, server name and proxy of a changed kubeconfig; a change of the server needs a restart."""
        old, path = self._access, self._access.kubeconfig
        signature = get_signature(path) if path is not None else None
        if path is None or signature is None or signature == self._file_signature:
            return
        self._file_signature = signature
        try:
            new = access_from_kubeconfig(read_kubeconfig(path), path, master=old.master, context=old.context)
        except ConfigError as error:
            self._warn_once("Changed kubeconfig not usable, keeping the last credentials", error)
            return
        if new.server != old.server:
            _log.warning("Kubeconfig names another server, restart to use it", file=path)
            return
        _log.info("Kubeconfig changed, using its credentials", file=path)
        self._access = new
        self._token, self._token_signature = new.token, None
        if new.insecure_skip_tls_verify != old.insecure_skip_tls_verify:
            self._context = None
        if new.exec_plugin != old.exec_plugin:
            self._granted = None

    async def _get_exec_credential(self) -> ExecCredential | None:
        plugin = self._access.exec_plugin
        if plugin is None:
            return None
        async with self._plugin_lock:
            granted = self._granted
            if granted is None or (
                granted.expires is not None and granted.expires - _EXPIRY_MARGIN_SECONDS <= self._clock()
            ):
                granted = self._granted = await self._run(plugin)
        return granted

    async def _run(self, plugin: ExecPlugin) -> ExecCredential:
        """Run the plugin and count its outcome; invalid output counts as a successful run."""
        outcome, code = "no_error", 0
        try:
            return await self._run_plugin(plugin, self._access)
        except PluginFailed as failed:
            outcome, code = failed.outcome, failed.code
            raise
        finally:
            self._listener.on_plugin_run(outcome, code)

    def _read_token(self) -> str:
        path = self._access.token_file
        if path is None:
            return self._token
        signature = get_signature(path)
        if signature is None or signature != self._token_signature:
            try:
                self._token = _read_token_file(path)
                self._token_signature = signature
            except ValueError as error:
                problem = KubeError(f"token file {path} ({self._access.origin}): {error}")
                if not self._token:
                    raise problem from error
                self._warn_once("Token file not usable, keeping the last token", problem)
        return self._token

    def _build_tls(self, granted: ExecCredential | None) -> ssl.SSLContext:
        certificate, key = self._access.client_certificate, self._access.client_key
        if granted is not None and granted.client_certificate is not None:
            certificate, key = granted.client_certificate, granted.client_key
        wanted = tuple(
            get_signature(material) if isinstance(material, Path) else material
            for material in (self._access.ca, certificate, key)
        )
        if self._context is not None and wanted == self._context_key:
            return self._context
        try:
            self._context = _build_context(self._access, certificate, key)
            self._context_key = wanted
        except (OSError, ValueError) as error:
            if self._context is None:
                raise KubeError(f"TLS material ({self._access.origin}): {error}") from error
            self._warn_once("New TLS material not usable, keeping the last", error)
        return self._context

    def _warn_once(self, message: str, error: Exception) -> None:
        """Log once, although every request has the same error."""
        if str(error) != self._last_warning:
            self._last_warning = str(error)
            _log.warning(message, origin=self._access.origin, err=error)


def _read_token_file(path: Path) -> str:
    """Return the token. Raises ValueError, without any of the content."""
    try:
        token = read_file(path, MAX_CREDENTIAL_BYTES).decode().strip()
    except UnicodeDecodeError:
        raise ValueError("not UTF-8 text") from None
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error
    if not token:
        raise ValueError("empty")
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise ValueError("holds a character that no token has; it must be the token alone")
    return token


def _build_context(access: Access, certificate: Material, key: Material) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if access.insecure_skip_tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif access.ca is not None:
        trust(context, access.ca, "certificate-authority")
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    # Python 3.13 made strict X.509 the default; cluster CAs made by older tools lack the extensions that it requires.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if certificate is not None and key is not None:
        load_pair(context, certificate, key, ("client-certificate", "client-key"))
    return context
