"""UDP clients that never pause and never change their source port, and who answered each of them last.

A client counts as dead when a newcomer from the same host to the same address is answered and it is not, or when its
answers come from an endpoint that serves no more.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Self

from pointsman.lab.cluster import Cluster
from pointsman.lab.probe import Probe, run_probes

_PAUSE = 0.001
_SENDS_PER_PAUSE = 3
_FIRST_PORT = 20000
_NEWCOMER_DEADLINE = 0.4
"""A newcomer that needs longer only leaves its place without a judgement."""


class _Client:
    """One socket and what it heard last."""

    def __init__(self, name: str, sock: socket.socket) -> None:
        self.name, self.sock = name, sock
        self.answered_by, self.answered_at = "", 0.0


class BusyClients:
    """Several sockets for each named place, which send in turn on a thread of their own until the block ends."""

    def __init__(self, cluster: Cluster, places: Mapping[str, Probe], each: int) -> None:
        self._cluster, self._places = cluster, places
        self._clients: list[_Client] = []
        self._selector = selectors.DefaultSelector()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="busy-clients", daemon=True)
        self.sent = 0
        for number, (name, probe) in enumerate(places.items()):
            for copy in range(each):
                self._add(name, probe, _FIRST_PORT + number * each + copy)

    def _add(self, name: str, probe: Probe, source_port: int) -> None:
        family = socket.AF_INET6 if ":" in probe.address else socket.AF_INET
        with self._cluster[probe.host].entered():
            sock = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        sock.bind(("", source_port))
        # Connected, so that an answer counts only when it comes from the Service's own address.
        sock.connect((probe.address, probe.port))
        client = _Client(name, sock)
        self._clients.append(client)
        self._selector.register(sock, selectors.EVENT_READ, client)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._selector.close()
        for client in self._clients:
            client.sock.close()

    def judged(self, by: frozenset[str], patience: float) -> tuple[list[str], list[str]]:
        """Where newcomers are answered, and the clients there that still are not when patience ends."""
        since = time.monotonic()
        while True:
            outcomes = run_probes(self._cluster, list(self._places.values()), _NEWCOMER_DEADLINE)
            served = [name for name, outcome in zip(self._places, outcomes, strict=True) if outcome.by in by]
            dead = self.unanswered(served, since, by)
            if not dead or time.monotonic() > since + patience:
                return served, dead
            time.sleep(0.1)

    def unanswered(self, names: Sequence[str], since: float, by: frozenset[str]) -> list[str]:
        """Clients of these names that none of `by` has answered since; with their ports and who did."""
        return [
            f"{client.name} from port {client.sock.getsockname()[1]}: last answered by "
            f"{client.answered_by or 'nobody'} {time.monotonic() - client.answered_at:.1f} s ago"
            for client in self._clients
            if client.name in names and not (client.answered_at >= since and client.answered_by in by)
        ]

    def _run(self) -> None:
        turn = 0
        while not self._ended.is_set():
            for _ in range(_SENDS_PER_PAUSE):
                client = self._clients[turn % len(self._clients)]
                turn += 1
                with contextlib.suppress(OSError):
                    client.sock.send(b"?")
                    self.sent += 1
            for key, _ in self._selector.select(_PAUSE):
                self._hear(key.data)

    def _hear(self, client: _Client) -> None:
        with contextlib.suppress(OSError):
            while True:
                answer = client.sock.recv(4096)
                client.answered_by = answer.decode().partition(" ")[0]
                client.answered_at = time.monotonic()
