"""Connections from a client's point of view: answered (by which host), refused, timed out or failed."""

from __future__ import annotations

import collections
import enum
import errno
import itertools
import selectors
import socket
import struct
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Self

import msgspec

from pointsman.lab.cluster import Cluster

_MAX_IN_FLIGHT = 256
"""Sockets open at the same time, below the usual limit of 1024 descriptors."""
_IP_RECVERR, _IPV6_RECVERR = 11, 25
TIMEOUT_SECONDS = 1.0
"""For probes that should not be answered. An answer in the lab takes milliseconds."""
LONG_TIMEOUT_SECONDS = 8.0
"""For probes that should be answered, so that a busy machine does not look like a dropped packet."""


class Kind(enum.Enum):
    """How a probe ended."""

    ANSWERED = "answered"
    REFUSED = "refused"
    """TCP reset or ICMP port unreachable."""
    TIMED_OUT = "timed out"
    NOT_PERMITTED = "not permitted"
    """Sending failed with EPERM: a local rule dropped the packet."""
    UNREACHABLE = "unreachable"


class Probe(msgspec.Struct, frozen=True):
    """One connection to make."""

    host: str
    address: str
    port: int
    protocol: str = "TCP"
    source_port: int = 0
    """0 for any."""
    source: str = ""
    """Local address to bind; the kernel's choice when empty."""


class Outcome(msgspec.Struct, frozen=True):
    """Result of a probe."""

    kind: Kind
    by: str = ""
    seen: str = ""
    """The client's address as the server saw it."""
    seconds: float = 0.0
    retransmissions: int = 0
    """TCP retransmissions. In the lab only lost packets cause them."""

    @property
    def lossless(self) -> bool:
        """Answered without a lost packet."""
        return self.kind is Kind.ANSWERED and not self.retransmissions

    def __str__(self) -> str:
        return (
            f"answered by {self.by}, seen as {self.seen}" if self.kind is Kind.ANSWERED else self.kind.value
        )


def run_probes(cluster: Cluster, probes: Sequence[Probe], timeout: float = TIMEOUT_SECONDS) -> list[Outcome]:
    """Run all probes and return their outcomes in order. The timeout applies to each probe."""
    return _ProbeRun(cluster, timeout).run(probes)


def connect(cluster: Cluster, probe: Probe, timeout: float = TIMEOUT_SECONDS) -> Outcome:
    return run_probes(cluster, [probe], timeout)[0]


class TrafficGenerator:
    """Repeats probes on another thread until the block ends, and records those that lost a packet."""

    def __init__(self, cluster: Cluster, probes: Sequence[Probe]) -> None:
        self._cluster = cluster
        self._probes = probes
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="traffic", daemon=True)
        self.made = 0
        self.failures: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            outcomes = run_probes(self._cluster, self._probes, LONG_TIMEOUT_SECONDS)
            self.made += len(outcomes)
            self.failures += [
                f"{probe.host} -> {probe.address}:{probe.port} at {time.time():.3f}: {outcome}, "
                f"{outcome.retransmissions} retransmissions"
                for probe, outcome in zip(self._probes, outcomes, strict=True)
                if not outcome.lossless
            ]


class Wire:
    """How one probe looks on the network: TCP here, other protocols below and in the tests."""

    socket_kind = socket.SOCK_STREAM

    def open(self, family: socket.AddressFamily) -> socket.socket:
        sock = socket.socket(family, self.socket_kind)
        # Without this an ICMP error that arrives during connect() is reported only after the next SYN.
        if family == socket.AF_INET:
            sock.setsockopt(socket.IPPROTO_IP, _IP_RECVERR, 1)
        else:
            sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVERR, 1)
        return sock

    def send(self, sock: socket.socket, probe: Probe) -> None:
        """Connect, and send the request where the client speaks first."""
        sock.connect((probe.address, probe.port))

    def read_answer(self, sock: socket.socket, received: bytes) -> Outcome | None:
        """Return the outcome, or None for a packet that is not the answer."""
        if not received:
            return Outcome(Kind.REFUSED)
        return msgspec.structs.replace(parse_answer(received), retransmissions=_read_retransmissions(sock))

    def close(self, sock: socket.socket) -> None:
        # A reset leaves no TIME_WAIT behind, so thousands of probes do not exhaust the ports.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()


class UdpWire(Wire):
    """One datagram each way."""

    socket_kind = socket.SOCK_DGRAM

    def open(self, family: socket.AddressFamily) -> socket.socket:
        return socket.socket(family, self.socket_kind)

    def send(self, sock: socket.socket, probe: Probe) -> None:
        super().send(sock, probe)
        sock.send(b"?")

    def read_answer(self, sock: socket.socket, received: bytes) -> Outcome | None:  # noqa: ARG002
        return parse_answer(received)

    def close(self, sock: socket.socket) -> None:
        sock.close()


WIRES: dict[str, type[Wire]] = {"TCP": Wire, "UDP": UdpWire}
"""By protocol; each probe has an instance of its own."""


def open_socket(cluster: Cluster, probe: Probe, wire: Wire) -> socket.socket:
    """Open the socket of a probe in the namespace of its host, bound to the source that the probe names."""
    family = socket.AF_INET6 if ":" in probe.address else socket.AF_INET
    with cluster[probe.host].entered():
        sock = wire.open(family)
    if probe.source_port or probe.source:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((probe.source, probe.source_port))
    return sock


def _read_queued_error(sock: socket.socket) -> OSError | None:
    """Return the ICMP error waiting in a socket's error queue."""
    try:
        _, control, _, _ = sock.recvmsg(512, 512, socket.MSG_ERRQUEUE)
    except OSError:
        return None
    for _, kind, data in control:
        if kind in (_IP_RECVERR, _IPV6_RECVERR):
            return OSError(struct.unpack_from("=I", data)[0], "ICMP error")
    return None


def _read_retransmissions(sock: socket.socket) -> int:
    """Return `tcpi_total_retrans` of the kernel's struct tcp_info."""
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    return int(struct.unpack_from("=I", info, 100)[0])


def parse_answer(answer: bytes) -> Outcome:
    name, _, seen = answer.decode(errors="replace").split("\n")[0].partition(" ")
    return Outcome(Kind.ANSWERED, name, seen)


def classify_error(error: OSError, started: float) -> Outcome:
    seconds = time.monotonic() - started
    if isinstance(error, TimeoutError) or error.errno == errno.EAGAIN:
        return Outcome(Kind.TIMED_OUT, seconds=seconds)
    if error.errno in (errno.ECONNREFUSED, errno.ECONNRESET):
        return Outcome(Kind.REFUSED, seconds=seconds)
    if error.errno == errno.EPERM:
        return Outcome(Kind.NOT_PERMITTED, seconds=seconds)
    return Outcome(Kind.UNREACHABLE, seconds=seconds)


class _Running(msgspec.Struct):
    index: int
    sock: socket.socket
    wire: Wire
    started: float
    on_timeout: Kind = Kind.TIMED_OUT


class _ProbeRun:
    """Runs probes with a limited number of them in flight."""

    def __init__(self, cluster: Cluster, timeout: float) -> None:
        self._cluster = cluster
        self._timeout = timeout
        self._selector = selectors.DefaultSelector()
        self._running: dict[int, _Running] = {}
        self._outcomes: dict[int, Outcome] = {}

    def run(self, probes: Sequence[Probe]) -> list[Outcome]:
        waiting = collections.deque(enumerate(probes))
        try:
            while waiting or self._running:
                while waiting and len(self._running) < _MAX_IN_FLIGHT:
                    self._start(*waiting.popleft())
                self._wait()
        finally:
            for running in self._running.values():
                running.sock.close()
            self._selector.close()
        return [self._outcomes[index] for index in range(len(probes))]

    def _start(self, index: int, probe: Probe) -> None:
        started = time.monotonic()
        wire = WIRES[probe.protocol]()
        sock = open_socket(self._cluster, probe, wire)
        sock.setblocking(False)
        running = _Running(index, sock, wire, started)
        try:
            wire.send(sock, probe)
        except BlockingIOError:
            pass
        except PermissionError:
            # A local drop, or a local reject, whose ICMP error follows.
            running.on_timeout = Kind.NOT_PERMITTED
        except OSError as error:
            sock.close()
            self._outcomes[index] = classify_error(error, started)
            return
        self._running[index] = running
        self._selector.register(sock, selectors.EVENT_READ, running)

    def _wait(self) -> None:
        if not self._running:
            return
        oldest = next(iter(self._running.values()))
        now = time.monotonic()
        for key, _ in self._selector.select(max(0.0, oldest.started + self._timeout - now)):
            self._read(key.data)
        now = time.monotonic()
        for running in list(self._find_expired(now)):
            self._finish(running, Outcome(running.on_timeout, seconds=now - running.started))

    def _find_expired(self, now: float) -> Iterable[_Running]:
        return itertools.takewhile(lambda r: r.started + self._timeout <= now, self._running.values())

    def _read(self, running: _Running) -> None:
        sock = running.sock
        try:
            received = sock.recv(4096)
        except BlockingIOError:
            queued = _read_queued_error(sock)
            if queued is not None:
                self._finish(running, classify_error(queued, running.started))
            return
        except OSError as error:
            self._finish(running, classify_error(error, running.started))
            return
        outcome = running.wire.read_answer(sock, received)
        if outcome is not None:
            seconds = time.monotonic() - running.started
            self._finish(running, msgspec.structs.replace(outcome, seconds=seconds))

    def _finish(self, running: _Running, outcome: Outcome) -> None:
        self._outcomes[running.index] = outcome
        del self._running[running.index]
        self._selector.unregister(running.sock)
        running.wire.close(running.sock)
