"""SCTP as applications use it: associations between the kernels' own SCTP stacks, with data both ways.

The lab's usual SCTP stops after the first round trip, so that it works without SCTP in the kernel; this needs it.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Iterator, Sequence
from typing import Self

import msgspec
from tests.harness.waiting import TIME_FACTOR

from pointsman.lab.cluster import Cluster
from pointsman.lab.hosts import HOSTS
from pointsman.lab.objects import TARGET_PORT
from pointsman.lab.probe import Probe

_SECONDS = 20.0 * TIME_FACTOR


def missing_sctp() -> str:
    """Why there can be no association here; empty when there can."""
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_SCTP).close()
    except OSError as error:
        return f"no SCTP sockets in this kernel: {error.strerror}"
    return ""


class Answer(msgspec.Struct, frozen=True):
    """What a server said over an association."""

    by: str
    seen: str
    """The client's address as the server saw it."""
    echoed: str


class Association:
    """One client's association; every question is answered by the same server as long as it lasts."""

    def __init__(self, cluster: Cluster, probe: Probe) -> None:
        family = 6 if ":" in probe.address else 4
        with cluster[probe.host].entered():
            self._sock = _socket(family)
        # Bound, so that it offers the server no second address: only this one's way leads through the Service.
        self._sock.bind((HOSTS[probe.host].address(family), 0))
        self._sock.settimeout(_SECONDS)
        self._sock.connect((probe.address, probe.port))

    def ask(self, text: str) -> Answer:
        self._sock.send(text.encode())
        by, seen, echoed = self._sock.recv(4096).decode().split(" ", 2)
        return Answer(by, seen, echoed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()


class _Server(threading.Thread):
    """Answers on listening sockets and the associations they accept, until the wake-up socket closes."""

    def __init__(self, listeners: Sequence[tuple[str, socket.socket]], wake: socket.socket) -> None:
        super().__init__(name="sctp-servers", daemon=True)
        self._selector = selectors.DefaultSelector()
        self._wake = wake
        self._selector.register(wake, selectors.EVENT_READ)
        for name, listener in listeners:
            self._selector.register(listener, selectors.EVENT_READ, (name, None))

    def run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._wake:
                    return
                assert isinstance(key.fileobj, socket.socket)
                with contextlib.suppress(OSError):
                    self._serve(key.fileobj, *key.data)

    def _serve(self, sock: socket.socket, name: str, peer: str | None) -> None:
        if peer is None:
            accepted, address = sock.accept()
            self._selector.register(accepted, selectors.EVENT_READ, (name, address[0]))
            return
        asked = sock.recv(4096)
        if asked:
            sock.send(f"{name} {peer} ".encode() + asked)
        else:
            self._selector.unregister(sock)
            sock.close()

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._selector.close()


@contextlib.contextmanager
def associating(cluster: Cluster, *hosts: str) -> Iterator[None]:
    """SCTP servers on the target port of these hosts, in both IP families."""
    listeners = []
    for host in hosts:
        for family in (4, 6):
            with cluster[host].entered():
                listener = _socket(family)
            listener.bind((HOSTS[host].address(family), TARGET_PORT))
            listener.listen(64)
            listeners.append((host, listener))
    stop, wake = socket.socketpair()
    server = _Server(listeners, wake)
    server.start()
    try:
        yield
    finally:
        stop.close()
        server.join()
        server.close()


def _socket(family: int) -> socket.socket:
    domain = socket.AF_INET if family == 4 else socket.AF_INET6
    return socket.socket(domain, socket.SOCK_STREAM, socket.IPPROTO_SCTP)
