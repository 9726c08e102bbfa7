"""Echo servers that answer with their name and the source address of the client: one thread for the whole cluster.

A TCP client gets `NAME ADDRESS` when it connects and again for every chunk that it sends, so that long connections can
be checked later. A UDP datagram is answered the same way.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
from collections.abc import Callable, Iterable
from functools import partial

_BACKLOG = 512
_SO_RCVBUFFORCE = 33
_RECEIVE_BUFFER_BYTES = 4 << 20


class EchoServers:
    """All listening sockets of the lab and the thread that serves them."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._listeners: dict[str, list[socket.socket]] = {}
        self._wake_read, self._wake_write = os.pipe()
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="lab-echo", daemon=True)
        self._thread.start()

    def listen(self, name: str, addresses: Iterable[str], port: int) -> None:
        """Serve TCP and UDP on these addresses, in the namespace of the calling thread."""
        for address in addresses:
            stream = _bind(address, socket.SOCK_STREAM, port)
            stream.listen(_BACKLOG)
            self.add(name, stream, partial(self._greet, name, stream))
            datagram = _bind(address, socket.SOCK_DGRAM, port)
            self.add(name, datagram, partial(_answer_datagram, name, datagram))

    def stop(self, name: str) -> None:
        """Close the ports of that server. Open connections stay."""
        with self._lock:
            for sock in self._listeners.pop(name, []):
                self._selector.unregister(sock)
                sock.close()

    def close(self) -> None:
        os.write(self._wake_write, b"x")
        self._thread.join()
        with self._lock:
            for key in list(self._selector.get_map().values()):
                if isinstance(key.fileobj, socket.socket):
                    key.fileobj.close()
            self._selector.close()
        self._listeners.clear()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def add(self, name: str, sock: socket.socket, handler: Callable[[], None]) -> None:
        """Call `handler` whenever something arrives at the socket, until that server is stopped."""
        with self._lock:
            self._listeners.setdefault(name, []).append(sock)
            self._selector.register(sock, selectors.EVENT_READ, handler)

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj == self._wake_read:
                    return
                with contextlib.suppress(OSError):
                    key.data()

    def _greet(self, name: str, listener: socket.socket) -> None:
        while True:
            connection, peer = listener.accept()
            connection.setblocking(False)
            greeting = f"{name} {peer[0]}\n".encode()
            with self._lock:
                handler = partial(self._repeat, connection, greeting)
                self._selector.register(connection, selectors.EVENT_READ, handler)
            connection.send(greeting)

    def _repeat(self, connection: socket.socket, greeting: bytes) -> None:
        try:
            wanted = connection.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            wanted = b""
        if wanted:
            connection.send(greeting)
            return
        with self._lock:
            self._selector.unregister(connection)
        connection.close()


def _bind(address: str, kind: socket.SocketKind, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, kind | socket.SOCK_NONBLOCK)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if kind is not socket.SOCK_STREAM:
        # For bursts of hundreds of probes. Only root may exceed the system's limit.
        with contextlib.suppress(PermissionError):
            sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER_BYTES)
    sock.bind((address, port))
    return sock


def _answer_datagram(name: str, sock: socket.socket) -> None:
    while True:
        _, peer = sock.recvfrom(4096)
        sock.sendto(f"{name} {peer[0]}\n".encode(), peer)
