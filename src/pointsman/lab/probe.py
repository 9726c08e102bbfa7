"""Connections from a client's point of view: answered (by which host), refused, timed out or failed."""

from __future__ import annotations

import collections
import contextlib
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

from pointsman.lab import sctp
from pointsman.lab.cluster import Cluster

_MAX_IN_FLIGHT = 256
"""Sockets open at the same time, below the usual limit of 1024 descriptors."""
_ECHO_REPLIES = (0, 129)
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


class Flow:
    """A connection, or a UDP socket with a fixed source port, that stays open between requests."""

    def __init__(self, cluster: Cluster, probe: Probe, timeout: float = TIMEOUT_SECONDS) -> None:
        self._timeout = timeout
        self._sock = _open_socket(cluster, probe)
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
            return _parse_outcome(self._sock.recv(4096), started)
        except OSError as error:
            return _outcome_of_error(error, started)

    def close(self) -> None:
        self._sock.close()


def ask_all(flows: Sequence[Flow]) -> list[Outcome]:
    """Send requests on all flows at once, so that many timeouts take no longer than one."""
    started = time.monotonic()
    errors = [flow.send() for flow in flows]
    return [
        flow.receive(started) if error is None else _outcome_of_error(error, started)
        for flow, error in zip(flows, errors, strict=True)
    ]


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


def _open_socket(cluster: Cluster, probe: Probe) -> socket.socket:
    family = socket.AF_INET6 if ":" in probe.address else socket.AF_INET
    kind = {"TCP": socket.SOCK_STREAM, "UDP": socket.SOCK_DGRAM}.get(probe.protocol, socket.SOCK_RAW)
    with cluster[probe.host].entered():
        sock = socket.socket(family, kind, _raw_protocol(probe.protocol, family))
    if kind is socket.SOCK_STREAM:
        # Without this an ICMP error that arrives during connect() is reported only after the next SYN.
        if family == socket.AF_INET:
            sock.setsockopt(socket.IPPROTO_IP, _IP_RECVERR, 1)
        else:
            sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVERR, 1)
    if (probe.source_port or probe.source) and kind is not socket.SOCK_RAW:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((probe.source, probe.source_port))
    return sock


def _raw_protocol(protocol: str, family: int) -> int:
    if protocol == "SCTP":
        return socket.IPPROTO_SCTP
    if protocol == "ICMP":
        return socket.IPPROTO_ICMP if family == socket.AF_INET else socket.IPPROTO_ICMPV6
    return 0


def _echo_request(family: int) -> bytes:
    """A ping; the kernel fills in the checksum for IPv6 only."""
    if family == socket.AF_INET6:
        return struct.pack("!BBHHH", 128, 0, 0, 7, 7)
    return struct.pack("!BBHHH", 8, 0, 0xFFFF - 0x0800 - 7 - 7, 7, 7)


def _queued_error(sock: socket.socket) -> OSError | None:
    """The ICMP error waiting in a socket's error queue."""
    try:
        _, control, _, _ = sock.recvmsg(512, 512, socket.MSG_ERRQUEUE)
    except OSError:
        return None
    for _, kind, data in control:
        if kind in (_IP_RECVERR, _IPV6_RECVERR):
            return OSError(struct.unpack_from("=I", data)[0], "ICMP error")
    return None


def _retransmissions(sock: socket.socket) -> int:
    """`tcpi_total_retrans` of the kernel's struct tcp_info."""
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    return int(struct.unpack_from("=I", info, 100)[0])


def _parse_outcome(answer: bytes, started: float) -> Outcome:
    name, _, seen = answer.decode(errors="replace").split("\n")[0].partition(" ")
    return Outcome(Kind.ANSWERED, name, seen, time.monotonic() - started)


def _outcome_of_error(error: OSError, started: float) -> Outcome:
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
    started: float
    source_port: int = 0
    on_timeout: Kind = Kind.TIMED_OUT


_sctp_ports = itertools.count(20000)


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
        sock = _open_socket(self._cluster, probe)
        sock.setblocking(False)
        running = _Running(index, sock, started)
        try:
            if probe.protocol == "SCTP":
                running.source_port = 20000 + next(_sctp_ports) % 40000
                sock.connect((probe.address, 0))
                sock.send(sctp.init(running.source_port, probe.port))
            elif probe.protocol == "ICMP":
                sock.connect((probe.address, 0))
                sock.send(_echo_request(sock.family))
            elif probe.protocol == "UDP":
                sock.connect((probe.address, probe.port))
                sock.send(b"?")
            else:
                sock.connect((probe.address, probe.port))
        except BlockingIOError:
            pass
        except PermissionError:
            # A local drop, or a local reject, whose ICMP error follows.
            running.on_timeout = Kind.NOT_PERMITTED
        except OSError as error:
            sock.close()
            self._outcomes[index] = _outcome_of_error(error, started)
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
        for running in list(self._expired(now)):
            self._finish(running, Outcome(running.on_timeout, seconds=now - running.started))

    def _expired(self, now: float) -> Iterable[_Running]:
        return itertools.takewhile(lambda r: r.started + self._timeout <= now, self._running.values())

    def _read(self, running: _Running) -> None:
        sock = running.sock
        try:
            received = sock.recv(4096)
        except BlockingIOError:
            queued = _queued_error(sock)
            if queued is not None:
                self._finish(running, _outcome_of_error(queued, running.started))
            return
        except OSError as error:
            self._finish(running, _outcome_of_error(error, running.started))
            return
        if sock.type is socket.SOCK_RAW:
            message = sctp.payload(sock.family, received)
            if sock.proto != socket.IPPROTO_SCTP:
                if message[0] in _ECHO_REPLIES:
                    self._finish(
                        running, Outcome(Kind.ANSWERED, "ping", "", time.monotonic() - running.started)
                    )
                return
            answer = sctp.cookie_of(message)
            if answer is None or answer[1] != running.source_port:
                return
            received = answer[2]
        elif not received:
            self._finish(running, Outcome(Kind.REFUSED, seconds=time.monotonic() - running.started))
            return
        outcome = _parse_outcome(received, running.started)
        if sock.type is socket.SOCK_STREAM:
            outcome = msgspec.structs.replace(outcome, retransmissions=_retransmissions(sock))
        self._finish(running, outcome)

    def _finish(self, running: _Running, outcome: Outcome) -> None:
        self._outcomes[running.index] = outcome
        del self._running[running.index]
        self._selector.unregister(running.sock)
        if running.sock.type is socket.SOCK_STREAM:
            # A reset leaves no TIME_WAIT behind, so thousands of probes do not exhaust the ports.
            running.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        running.sock.close()
