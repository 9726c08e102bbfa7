"""Connection attempts from this node; blocking, many at once.

TCP and SCTP show whether a server listens. UDP does not: most servers do not reply to an empty datagram.
"""

from __future__ import annotations

import enum
import errno
import os
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from pointsman.model.addresses import address_text
from pointsman.model.service import Protocol

_MAX_CONCURRENT = 64
_KINDS = {
    Protocol.TCP: (socket.SOCK_STREAM, socket.IPPROTO_TCP),
    Protocol.UDP: (socket.SOCK_DGRAM, socket.IPPROTO_UDP),
    Protocol.SCTP: (socket.SOCK_STREAM, socket.IPPROTO_SCTP),
}
_UNSUPPORTED = frozenset((errno.EPROTONOSUPPORT, errno.ESOCKTNOSUPPORT, errno.EAFNOSUPPORT))


class Reached(enum.Enum):
    """How an attempt ended."""

    CONNECTED = "connected"
    REFUSED = "refused"
    SILENT = "silent"
    UNREACHABLE = "unreachable"
    BLOCKED = "blocked"
    """A rule of this host forbade the packet to leave."""
    UNKNOWN = "unknown"


class Place(msgspec.Struct, frozen=True):
    """Where to connect."""

    address: bytes
    port: int
    protocol: Protocol


class Attempt(msgspec.Struct, frozen=True):
    """The result of a connection attempt."""

    reached: Reached
    seconds: float = 0.0
    detail: str = ""


def reach(places: Sequence[Place], seconds: float, source: bytes = b"") -> list[Attempt]:
    """Try to connect to each place, within `seconds` each, from `source` or the address that the kernel chooses."""
    with ThreadPoolExecutor(_MAX_CONCURRENT) as pool:
        return list(pool.map(lambda place: _try_to_connect(place, seconds, source), places))


def _try_to_connect(place: Place, seconds: float, source: bytes) -> Attempt:
    family = socket.AF_INET if len(place.address) == 4 else socket.AF_INET6
    kind, protocol = _KINDS[place.protocol]
    try:
        with socket.socket(family, kind, protocol) as sock:
            sock.settimeout(seconds)
            if len(source) == len(place.address):
                sock.bind((address_text(source), 0))
            started = time.monotonic()
            sock.connect((address_text(place.address), place.port))
            if place.protocol is Protocol.UDP:
                return _wait_for_reply(sock, started)
            return Attempt(Reached.CONNECTED, time.monotonic() - started)
    except TimeoutError:
        return Attempt(Reached.SILENT, seconds)
    except OSError as error:
        return _describe_failure(error)


def _wait_for_reply(sock: socket.socket, started: float) -> Attempt:
    sock.send(b"")
    try:
        sock.recv(1)
    except TimeoutError:
        return Attempt(Reached.UNKNOWN, detail="UDP: no reply, as many servers send none")
    return Attempt(Reached.CONNECTED, time.monotonic() - started)


def _describe_failure(error: OSError) -> Attempt:
    number = error.errno or 0
    detail = os.strerror(number) if number else str(error)
    if number == errno.ECONNREFUSED:
        return Attempt(Reached.REFUSED)
    if number in (errno.EPERM, errno.EACCES):
        return Attempt(Reached.BLOCKED, detail=detail)
    if number in _UNSUPPORTED:
        return Attempt(Reached.UNKNOWN, detail=f"this kernel cannot make such connections ({detail})")
    if number == errno.EADDRNOTAVAIL:
        return Attempt(Reached.UNKNOWN, detail="the source address is not one of this host")
    return Attempt(Reached.UNREACHABLE, detail=detail)
