"""Which HTTP proxy the environment asks for, by the rules of Go's http.ProxyFromEnvironment.

Go understands address ranges in NO_PROXY and never proxies loopback; Python's urllib does neither, and a
DaemonSet with `NO_PROXY=10.96.0.0/12` must keep reaching the API server directly.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from pointsman.model.addresses import port_from_text


def proxy_from_environment(url: str, environ: Mapping[str, str]) -> str:
    """Return the proxy for this URL, or an empty string for a direct connection."""
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
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    for entry in no_proxy.lower().split(","):
        entry = entry.strip()
        if entry == "*":
            return True
        name, _, text = entry.rpartition(":")
        number = port_from_text(text)
        if name and number is not None and _address(entry) is None:
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


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
