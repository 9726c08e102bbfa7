"""Asking the running proxy over its control socket, with errors that say what to do."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlencode

import msgspec

from pointsman.errors import PointsmanError

_SECONDS: Final = 130.0

T = TypeVar("T")


class NoProxy(PointsmanError):
    """There is no answer from a running proxy; the message says why and what to do."""


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_SECONDS)
        self.sock.connect(str(self._path))


def ask(path: Path, route: str, kind: type[T], query: Mapping[str, str] | None = None) -> T:
    """The proxy's answer decoded as `kind`; raises NoProxy."""
    body = _body(path, f"{route}?{urlencode(query)}" if query else route)
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise NoProxy(
            f"the proxy at {path} gave an answer of another version ({error}); use its own pointsman command"
        ) from error


def _body(path: Path, url: str) -> bytes:
    connection = _UnixConnection(path)
    try:
        connection.request("GET", url)
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
    except (OSError, http.client.HTTPException) as error:
        raise NoProxy(f"the proxy at {path} does not answer: {error}") from error
    finally:
        connection.close()
    if answer.status != 200:
        raise NoProxy(body.decode(errors="replace").strip() or f"the proxy answered {answer.status}")
    return body
