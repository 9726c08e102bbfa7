"""Credentials from an external command (ExecCredential v1 and v1beta1).

The command's standard output is a secret and is never logged nor quoted in an error. The command gets no terminal:
no user of a node could answer it.
"""

from __future__ import annotations

import asyncio
import base64
import os
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec

from pointsman.errors import KubeError
from pointsman.kube.access import MAX_CREDENTIAL_BYTES, Access, ExecPlugin, read_material

_TIMEOUT_SECONDS = 60.0
_STANDARD_ERROR = 2
_MAX_STDERR_BYTES = 4096


class PluginFailed(KubeError):
    """A plugin failed; `code` is its exit status, or 1 where it has none."""

    def __init__(self, message: str, outcome: str, code: int = 1) -> None:
        super().__init__(message)
        self.outcome, self.code = outcome, code
        """As the metric of every Kubernetes component names it."""


@dataclass(frozen=True, slots=True)
class ExecCredential:
    """Credentials from a plugin; `expires` is a Unix time, None when it lasts until the server refuses it."""

    token: str = field(default="", repr=False)
    client_certificate: bytes | None = field(default=None, repr=False)
    client_key: bytes | None = field(default=None, repr=False)
    expires: float | None = None


class _Status(msgspec.Struct, rename="camel"):
    """status of an ExecCredential"""

    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime | None = None


class _Output(msgspec.Struct, rename="camel"):
    """An ExecCredential as printed by a plugin"""

    kind: str = ""
    api_version: str = ""
    status: _Status | None = None


class _OutputCollector(asyncio.SubprocessProtocol):
    """Collects what a plugin prints: its output up to a limit, and the end of its standard error."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.finished: asyncio.Future[None] = loop.create_future()
        """Done when the output is complete, or too long."""
        self.closed: asyncio.Future[None] = loop.create_future()
        self.output, self.stderr = bytearray(), bytearray()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == _STANDARD_ERROR:
            self.stderr += data
            del self.stderr[:-_MAX_STDERR_BYTES]
            return
        self.output += data
        if len(self.output) > MAX_CREDENTIAL_BYTES and not self.finished.done():
            self.finished.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.closed.set_result(None)
        if not self.finished.done():
            self.finished.set_result(None)


async def run_plugin(
    plugin: ExecPlugin,
    access: Access,
    *,
    timeout: float = _TIMEOUT_SECONDS,  # noqa: ASYNC109  tests bring a shorter one
) -> ExecCredential:
    """Run the plugin once. Raises PluginFailed naming the command and the last line of its standard error."""
    name = f"exec plugin {plugin.command} ({access.origin})"
    try:
        environment = {
            **os.environ,
            **dict(plugin.env),
            "KUBERNETES_EXEC_INFO": _build_exec_info(plugin, access),
        }
        process, collector = await asyncio.get_running_loop().subprocess_exec(
            _OutputCollector,
            plugin.command,
            *plugin.args,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except (OSError, ValueError) as error:
        hint = f"; {plugin.install_hint}" if plugin.install_hint else ""
        reason = error.strerror if isinstance(error, OSError) else error
        outcome = (
            "plugin_not_found_error" if isinstance(error, FileNotFoundError) else "client_internal_error"
        )
        raise PluginFailed(f"{name}: cannot be started: {reason}{hint}", outcome) from error
    try:
        async with asyncio.timeout(timeout):
            await collector.finished
    except TimeoutError as error:
        message = f"{name}: gave no answer within {timeout:.0f} s"
        raise PluginFailed(message, "client_internal_error") from error
    finally:
        process.close()
        await collector.closed
    if len(collector.output) > MAX_CREDENTIAL_BYTES:
        message = f"{name}: printed more than {MAX_CREDENTIAL_BYTES >> 20} MiB"
        raise PluginFailed(message, "client_internal_error")
    if code := process.get_returncode():
        last_line = collector.stderr.decode(errors="replace").strip().rpartition("\n")[2][:200]
        message = f"{name}: exit status {code}: {last_line or 'no message'}"
        raise PluginFailed(message, "plugin_execution_error", code)
    return credential_from_output(bytes(collector.output), plugin.api_version, name)


def credential_from_output(output: bytes, api_version: str, name: str) -> ExecCredential:
    """Parse what the plugin printed. Raises KubeError with what is wrong, without repeating any of it."""
    try:
        answer = msgspec.json.decode(output, type=_Output)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        detail = f": {error}" if isinstance(error, msgspec.DecodeError) else ""
        raise KubeError(f"{name}: printed no usable ExecCredential{detail}") from None
    if answer.kind != "ExecCredential" or answer.api_version != api_version:
        raise KubeError(f"{name}: must print kind ExecCredential of apiVersion {api_version}")
    status = answer.status
    if status is None or not (status.token or status.client_certificate_data):
        raise KubeError(f"{name}: status has neither token nor clientCertificateData")
    if bool(status.client_certificate_data) != bool(status.client_key_data):
        raise KubeError(f"{name}: clientCertificateData and clientKeyData must come together")
    expires = None
    if status.expiration_timestamp is not None:
        moment = status.expiration_timestamp
        expires = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return ExecCredential(
        token=status.token,
        client_certificate=status.client_certificate_data.encode() or None,
        client_key=status.client_key_data.encode() or None,
        expires=expires,
    )


def _build_exec_info(plugin: ExecPlugin, access: Access) -> str:
    spec: dict[str, object] = {"interactive": False}
    if plugin.provide_cluster_info:
        cluster: dict[str, object] = {"server": access.server}
        if access.tls_server_name:
            cluster["tls-server-name"] = access.tls_server_name
        if access.insecure_skip_tls_verify:
            cluster["insecure-skip-tls-verify"] = True
        if access.ca is not None:
            cluster["certificate-authority-data"] = base64.b64encode(read_material(access.ca)).decode()
        if access.proxy_url:
            cluster["proxy-url"] = access.proxy_url
        spec["cluster"] = cluster
    return msgspec.json.encode(
        {"kind": "ExecCredential", "apiVersion": plugin.api_version, "spec": spec}
    ).decode()
