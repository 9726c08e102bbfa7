"""How to reach one API server and who to be there: the value every kubeconfig, flag or pod mount is reduced to.

Secrets are kept out of every repr, because values like this end up in logs and tracebacks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pointsman.files import read_file

Material = bytes | Path | None
"""PEM given inline, or the file to read it from (and to read again when it changes)."""
MAX_CREDENTIAL_BYTES = 1 << 20
"""Bytes of a file with a token, a key or certificates."""


def read_material(material: bytes | Path) -> bytes:
    """Return the PEM. Raises OSError naming the file."""
    if isinstance(material, bytes):
        return material
    try:
        return read_file(material, MAX_CREDENTIAL_BYTES)
    except OSError as error:
        raise OSError(error.errno, f"{material}: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class ExecPlugin:
    """A command that prints an ExecCredential (kubeconfig `users[].user.exec`)."""

    command: str
    api_version: str
    args: tuple[str, ...] = field(default=(), repr=False)
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    provide_cluster_info: bool = False
    install_hint: str = ""


@dataclass(frozen=True, slots=True)
class Access:
    """One server and one identity. `origin` names file, context and user for error messages."""

    server: str
    origin: str
    ca: Material = field(default=None, repr=False)
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = field(default="", repr=False)
    disable_compression: bool = False
    token: str = field(default="", repr=False)
    token_file: Path | None = None
    client_certificate: Material = field(default=None, repr=False)
    client_key: Material = field(default=None, repr=False)
    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    impersonation: tuple[tuple[str, str], ...] = ()
    """Impersonate-* headers."""
    exec_plugin: ExecPlugin | None = None
    kubeconfig: Path | None = None
    """The file all this was read from, to be read again when it changes."""
    context: str = ""
    """The context asked for by name; empty for the file's current one."""
    master: str = ""
    """The server given by flag, which wins over the file's."""
    advice: str = ""
    """What to do when the server cannot be reached at this address."""
