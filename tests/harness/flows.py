"""Connections of the lab's hosts that stay open between requests."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

import msgspec

from pointsman.lab.cluster import Cluster
from pointsman.lab.probe import (
    TIMEOUT_SECONDS,
    WIRES,
    Outcome,
    Probe,
    classify_error,
    open_socket,
    parse_answer,
)


class Flow:
    """A connection, or a UDP socket with a fixed source port, that stays open between requests."""

    def __init__(self, cluster: Cluster, probe: Probe, timeout: float = TIMEOUT_SECONDS) -> None:
        self._timeout = timeout
        self._sock = open_socket(cluster, probe, WIRES[probe.protocol]())
        self._sock.settimeout(timeout)
        with contextlib.suppress(OSError):
            self._sock.connect((probe.address, probe.port))
            if probe.protocol != "UDP":
                self._sock.recv(4096)

    def ask(self) -> Outcome:
        """Send a request and return who answered."""
        return ask_all([self])[0]

    def send(self) -> OSError | None:
        try:
            self._sock.send(b"?")
        except OSError as error:
            return error
        return None

    def receive(self, started: float) -> Outcome:
        """Return the answer, or a timeout counted from `started`."""
        self._sock.settimeout(max(0.001, started + self._timeout - time.monotonic()))
        try:
            outcome = parse_answer(self._sock.recv(4096))
        except OSError as error:
            return classify_error(error, started)
        return msgspec.structs.replace(outcome, seconds=time.monotonic() - started)

    def close(self) -> None:
        self._sock.close()


def ask_all(flows: Sequence[Flow]) -> list[Outcome]:
    """Send requests on all flows at once, so that many timeouts take no longer than one."""
    started = time.monotonic()
    errors = [flow.send() for flow in flows]
    return [
        flow.receive(started) if error is None else classify_error(error, started)
        for flow, error in zip(flows, errors, strict=True)
    ]
