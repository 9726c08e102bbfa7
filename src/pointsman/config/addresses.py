"""Addresses as settings spell them: an IP, a range, an IP with a port."""

from __future__ import annotations

from pointsman.model.addresses import Cidr, address_from_text, cidr_from_text

_LONGEST_TEXT = 128


def ip_from_text(text: str) -> bytes | None:
    """The packed address, or None; text too long for any address is not even looked at."""
    return address_from_text(text) if len(text) <= _LONGEST_TEXT else None


def range_from_text(text: str) -> Cidr | None:
    """The range, or None."""
    return cidr_from_text(text) if len(text) <= _LONGEST_TEXT else None


def host_and_port(text: str) -> tuple[str, str] | None:
    """Host and port of `host:port` or `[host]:port`, split as Go does; None when the text has no such form."""
    host, colon, port = text.rpartition(":")
    if not colon:
        return None
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        return None
    return None if any(bracket in host + port for bracket in "[]") else (host, port)


def port_from_text(text: str) -> int | None:
    """A port from 0 to 65535, or None."""
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        return None
    return int(text) if int(text) <= 65535 else None


def with_port(address: str, port: int) -> str:
    """`address` with the port appended when it is a bare IP; anything else unchanged, for validation to judge."""
    if ip_from_text(address) is None:
        return address
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
