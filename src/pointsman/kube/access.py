"""Address of one API server, and the identity to use there: what every kubeconfig, flag or pod mount is reduced to.

Secrets are kept out of every repr, because values like this end up in logs and tracebacks.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from pointsman.files import read_file
from pointsman.model.addresses import port_from_text

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
    """The context that was requested by name; empty for the file's current one."""
    master: str = ""
    """The server given by flag, which wins over the file's."""
    advice: str = ""
    """What to do when the server cannot be reached at this address."""


def find_environment_proxy(url: str, environ: Mapping[str, str]) -> str:
    """Return the proxy for this URL by the rules of Go's http.ProxyFromEnvironment; an empty string for a direct connection.

    Go understands address ranges in NO_PROXY and never proxies loopback; Python's urllib does neither, and a DaemonSet with
    `NO_PROXY=10.96.0.0/12` must keep reaching the API server directly.
    """
    parts = urlsplit(url)
    name = f"{parts.scheme}_proxy"
    proxy = environ.get(name.upper()) or environ.get(name) or ""
    if not proxy:
        return ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    if _is_direct(parts.hostname or "", port, environ.get("NO_PROXY") or environ.get("no_proxy") or ""):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_direct(host: str, port: int, no_proxy: str) -> bool:
    address = _parse_address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    for entry in no_proxy.lower().split(","):
        entry = entry.strip()
        if entry == "*":
            return True
        name, _, text = entry.rpartition(":")
        number = port_from_text(text)
        if name and number is not None and _parse_address(entry) is None:
            if number != port:
                continue
            entry = name.strip("[]")
        if entry and _matches(host.lower(), address, entry):
            return True
    return False


def _matches(host: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None, entry: str) -> bool:
    if address is not None:
        try:
            return address in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    if entry.startswith("*."):
        entry = entry[1:]
    if entry.startswith("."):
        return host.endswith(entry)
    return host == entry or host.endswith(f".{entry}")


def _parse_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
