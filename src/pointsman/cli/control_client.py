"""Asking the running proxy over its control socket, with errors that say what to do.

Reading a large kernel table takes the proxy a while, so an answer may be long in coming; a proxy that hangs must be
told apart from that within seconds. Whoever waits therefore asks again now and then whether it is alive: a question
that needs no work, on a connection of its own.
"""

from __future__ import annotations

import http.client
import select
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlencode

import msgspec

from pointsman.errors import PointsmanError

ALIVE_SECONDS: Final = 3.0
"""A proxy that is alive takes note of a question within that time, however long the answer takes."""
_LONGEST_SECONDS: Final = 130.0
_CREDENTIALS = struct.Struct("3i")

T = TypeVar("T")


class NoProxy(PointsmanError):
    """There is no answer from a running proxy; the message says why and what to do."""


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path, seconds: float) -> None:
        super().__init__("localhost", timeout=seconds)
        self._path = path
        self._seconds = seconds

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self._seconds)
        self.sock.connect(str(self._path))

    @property
    def peer(self) -> str:
        """The process that listens there, as far as the kernel tells."""
        credentials = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        process, _, _ = _CREDENTIALS.unpack(credentials)
        return f" (process {process})" if process else ""


def ask(
    path: Path,
    route: str,
    kind: type[T],
    query: Mapping[str, str] | None = None,
    *,
    alive_seconds: float = ALIVE_SECONDS,
) -> T:
    """The proxy's answer decoded as `kind`; raises NoProxy."""
    body = asked(path, f"{route}?{urlencode(query)}" if query else route, alive_seconds)
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise NoProxy(
            f"the proxy at {path} gave an answer of another version ({error}); use its own pointsman command"
        ) from error


def asked(path: Path, url: str, alive_seconds: float = ALIVE_SECONDS) -> bytes:
    """The proxy's answer as it came; raises NoProxy."""
    connection = _UnixConnection(path, _LONGEST_SECONDS)
    try:
        connection.request("GET", url)
        _await_answer(connection, path, url, alive_seconds)
        answer = connection.getresponse()
        body = answer.read()
    except FileNotFoundError:
        raise NoProxy(
            f"no proxy runs here: there is no control socket {path}. Start one with `pointsman run`, or name "
            "another socket with --control-socket; explain and render also work offline, with --manifests"
        ) from None
    except ConnectionRefusedError:
        raise NoProxy(
            f"no proxy listens on {path}: it was killed or is just starting; look at its log"
        ) from None
    except PermissionError:
        raise NoProxy(f"not allowed to use {path}: run this as root, for example with sudo") from None
    except BlockingIOError:
        raise NoProxy(
            f"the proxy at {path} hangs: others wait for it already, and it takes no more questions; look at its log"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        raise NoProxy(f"the proxy at {path} does not answer: {error}") from error
    finally:
        connection.close()
    if answer.status != 200:
        raise NoProxy(body.decode(errors="replace").strip() or f"the proxy answered {answer.status}")
    return body


def _await_answer(connection: _UnixConnection, path: Path, url: str, alive_seconds: float) -> None:
    """Until the answer begins; raises NoProxy when the proxy shows no sign of life meanwhile."""
    began = time.monotonic()
    while not select.select([connection.sock], [], [], alive_seconds)[0]:
        waited = time.monotonic() - began
        if waited < _LONGEST_SECONDS and _alive(path, alive_seconds):
            continue
        raise NoProxy(
            f"the proxy at {path}{connection.peer} has not answered {url.partition('?')[0]} for "
            f"{time.monotonic() - began:.0f} s and seems to hang: look at its log, and whether it is stopped or "
            "starved of CPU"
        )


def _alive(path: Path, seconds: float) -> bool:
    """Whether it answers at all; that it does not know the question is an answer, too."""
    connection = _UnixConnection(path, seconds)
    try:
        connection.request("GET", "/alive")
        connection.getresponse()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return True
