"""Ask the running proxy over its control socket, with errors that say what to do.

Reading a large kernel table takes the proxy a while, so an answer may take long; a proxy that hangs must be
distinguished from that within seconds. While it waits, the client therefore probes whether the proxy is alive: a
request that needs no work, on a connection of its own.
"""

from __future__ import annotations

import select
import socket
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlencode

import msgspec

from pointsman.cli.output import warn
from pointsman.errors import PointsmanError

ALIVE_SECONDS: Final = 3.0
"""A proxy that is alive takes note of a question within that time, however long the answer takes."""
_MAX_SECONDS: Final = 130.0
_POLL_SECONDS: Final = 1.0
_CHUNK: Final = 1 << 16
_GZIP: Final = 16 + zlib.MAX_WBITS
_CREDENTIALS = struct.Struct("3i")

T = TypeVar("T")


class NoProxy(PointsmanError):
    """There is no answer from a running proxy; the message says why and what to do."""


class _Connection:
    """One request over the Unix socket, in HTTP/1.0; http.client would take long to load."""

    def __init__(self, path: Path, seconds: float) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(seconds)
        try:
            self._socket.connect(str(path))
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        self._socket.close()

    def request(self, url: str) -> None:
        self._socket.sendall(f"GET {url} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode("ascii"))

    def wait(self, seconds: float) -> bool:
        """Wait for the answer or the end of the connection; return whether it came in that time."""
        return bool(select.select([self._socket], [], [], seconds)[0])

    def read_answer(self) -> tuple[int, bytes]:
        """Return HTTP status and body; raises OSError when there is no complete answer."""
        received = bytearray()
        while part := self._socket.recv(_CHUNK):
            received += part
        head, _, body = bytes(received).partition(b"\r\n\r\n")
        first = head.split(b"\r\n", 1)[0].split()
        lengths = [
            int(line.partition(b":")[2])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length:")
        ]
        if len(first) < 2 or not first[1].isdigit() or lengths != [len(body)]:
            raise OSError("it closed the connection before its answer was complete")
        if b"content-encoding: gzip" in head.lower().split(b"\r\n"):
            body = zlib.decompress(body, _GZIP)
        return int(first[1]), body

    @property
    def peer(self) -> str:
        """The process that listens there, where the kernel reports it."""
        credentials = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        process, _, _ = _CREDENTIALS.unpack(credentials)
        return f" (process {process})" if process else ""


def ask(
    path: Path,
    route: str,
    kind: type[T],
    query: msgspec.Struct | None = None,
    *,
    alive_seconds: float = ALIVE_SECONDS,
) -> T:
    """Return the proxy's answer decoded as `kind`; raises NoProxy."""
    if query is not None:
        route += "?" + urlencode({"query": msgspec.json.encode(query)})
    body = request(path, route, alive_seconds)
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise NoProxy(
            f"the proxy at {path} has another version ({error}); use its own pointsman command"
        ) from error


def request(path: Path, url: str, alive_seconds: float = ALIVE_SECONDS) -> bytes:
    """Return the proxy's answer as received; raises NoProxy."""
    try:
        with closing(_Connection(path, _MAX_SECONDS)) as connection:
            connection.request(url)
            _await_answer(connection, path, url, alive_seconds)
            status, body = connection.read_answer()
    except FileNotFoundError:
        raise NoProxy(
            f"no proxy runs here: there is no control socket {path}. Start one with `pointsman run`, or name "
            "another socket with --control-socket; list, explain and render also work offline, with --manifests"
        ) from None
    except ConnectionRefusedError:
        raise NoProxy(f"no proxy listens on {path}: it was killed or is just starting; see its log") from None
    except PermissionError:
        raise NoProxy(f"not allowed to use {path}: run this as root, for example with sudo") from None
    except BlockingIOError:
        raise NoProxy(f"the proxy at {path} hangs: its queue of connections is full; see its log") from None
    except OSError as error:
        raise NoProxy(f"the proxy at {path} does not answer: {error}") from error
    if status != 200:
        raise NoProxy(body.decode(errors="replace").strip() or f"the proxy answered {status}")
    return body


def _await_answer(connection: _Connection, path: Path, url: str, alive_seconds: float) -> None:
    """Wait until the answer begins; raises NoProxy when the proxy is not alive meanwhile."""
    began = time.monotonic()
    while not connection.wait(alive_seconds):
        waited = time.monotonic() - began
        if waited < _MAX_SECONDS and _is_alive(path, alive_seconds):
            continue
        raise NoProxy(
            f"the proxy at {path}{connection.peer} has not answered {url.partition('?')[0]} for "
            f"{time.monotonic() - began:.0f} s and seems to hang: see its log, and whether it is stopped or "
            "starved of CPU"
        )


def _is_alive(path: Path, seconds: float) -> bool:
    """Whether it answers at all; 404 is an answer, too."""
    try:
        with closing(_Connection(path, seconds)) as connection:
            connection.request("/alive")
            connection.read_answer()
    except OSError:
        return False
    return True


def poll(command: str, ask_again: Callable[[], T]) -> Iterator[T | None]:
    """Yield an answer every second until interrupted; None while there is no proxy, which is waited for."""
    is_gone = False
    while True:
        time.sleep(_POLL_SECONDS)
        try:
            answer = ask_again()
        except NoProxy as error:
            if not is_gone:
                warn(command, [str(error)])
            is_gone = True
            yield None
        else:
            is_gone = False
            yield answer
