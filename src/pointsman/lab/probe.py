"""Connections as a client sees them: many at once, each ending in who answered, a refusal, silence or an error."""

from __future__ import annotations

import collections
import contextlib
import enum
import errno
import itertools
import selectors
import socket
import struct
import time
from collections.abc import Iterable, Sequence

import msgspec

from pointsman.lab import sctp
from pointsman.lab.cluster import Cluster

_WINDOW = 256
"""Sockets open at once: below the usual limit of 1024 descriptors."""
_ECHO_REPLIES = (0, 129)
_IP_RECVERR, _IPV6_RECVERR = 11, 25
DEADLINE = 1.0
"""Seconds until silence is called silence; everything in the lab answers within milliseconds."""
PATIENT_DEADLINE = 8.0
"""For probes that should be answered, so that a busy machine is not taken for a silent one."""


class Kind(enum.Enum):
    """How a probe ended."""

    ANSWERED = "answered"
    REFUSED = "refused"
    """TCP reset or ICMP port unreachable."""
    SILENT = "silent"
    FORBIDDEN = "forbidden"
    """Sending itself failed with EPERM: a local rule dropped it."""
    UNREACHABLE = "unreachable"


class Probe(msgspec.Struct, frozen=True):
    """One connection to make."""

    host: str
    address: str
    port: int
    protocol: str = "TCP"
    source_port: int = 0
    """0: any."""
    source: str = ""
    """Local address to bind, default is the kernel's choice."""


class Outcome(msgspec.Struct, frozen=True):
    """What came of it."""

    kind: Kind
    by: str = ""
    seen: str = ""
    """The client's address as the server saw it."""
    seconds: float = 0.0
    retransmissions: int = 0
    """TCP: how often the kernel had to send again. In the lab only lost packets cause that."""

    @property
    def smooth(self) -> bool:
        """Answered, and no packet was lost on the way."""
        return self.kind is Kind.ANSWERED and not self.retransmissions

    def __str__(self) -> str:
        return (
            f"answered by {self.by}, seen as {self.seen}" if self.kind is Kind.ANSWERED else self.kind.value
        )


def run_probes(cluster: Cluster, probes: Sequence[Probe], deadline: float = DEADLINE) -> list[Outcome]:
    """All outcomes, in order; each probe has `deadline` seconds of its own."""
    return _Race(cluster, deadline).run(probes)


def connect(cluster: Cluster, probe: Probe, deadline: float = DEADLINE) -> Outcome:
    return run_probes(cluster, [probe], deadline)[0]


class Flow:
    """A connection (or a UDP socket with its port kept) that stays open between questions."""

    def __init__(self, cluster: Cluster, probe: Probe, deadline: float = DEADLINE) -> None:
        self._deadline = deadline
        self._sock = _socket(cluster, probe)
        self._sock.settimeout(deadline)
        with contextlib.suppress(OSError):
            self._sock.connect((probe.address, probe.port))
            if probe.protocol != "UDP":
                self._sock.recv(4096)

    def ask(self) -> Outcome:
        """Send something and see who answers."""
        return ask_all([self])[0]

    def send(self) -> OSError | None:
        try:
            self._sock.send(b"?")
        except OSError as error:
            return error
        return None

    def receive(self, started: float) -> Outcome:
        """The answer, waited for until the deadline counted from `started`."""
        self._sock.settimeout(max(0.001, started + self._deadline - time.monotonic()))
        try:
            return _outcome_of(self._sock.recv(4096), started)
        except OSError as error:
            return _outcome_of_error(error, started)

    def close(self) -> None:
        self._sock.close()


def ask_all(flows: Sequence[Flow]) -> list[Outcome]:
    """Ask on all flows at once: silence on many costs no more time than on one."""
    started = time.monotonic()
    errors = [flow.send() for flow in flows]
    return [
        flow.receive(started) if error is None else _outcome_of_error(error, started)
        for flow, error in zip(flows, errors, strict=True)
    ]


def _socket(cluster: Cluster, probe: Probe) -> socket.socket:
    family = socket.AF_INET6 if ":" in probe.address else socket.AF_INET
    kind = {"TCP": socket.SOCK_STREAM, "UDP": socket.SOCK_DGRAM}.get(probe.protocol, socket.SOCK_RAW)
    with cluster[probe.host].entered():
        sock = socket.socket(family, kind, _raw_protocol(probe.protocol, family))
    if kind is socket.SOCK_STREAM:
        # An ICMP error that arrives while connect() still runs is otherwise noticed only with the next SYN.
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


def _outcome_of(answer: bytes, started: float) -> Outcome:
    name, _, seen = answer.decode(errors="replace").split("\n")[0].partition(" ")
    return Outcome(Kind.ANSWERED, name, seen, time.monotonic() - started)


def _outcome_of_error(error: OSError, started: float) -> Outcome:
    seconds = time.monotonic() - started
    if isinstance(error, TimeoutError) or error.errno == errno.EAGAIN:
        return Outcome(Kind.SILENT, seconds=seconds)
    if error.errno in (errno.ECONNREFUSED, errno.ECONNRESET):
        return Outcome(Kind.REFUSED, seconds=seconds)
    if error.errno == errno.EPERM:
        return Outcome(Kind.FORBIDDEN, seconds=seconds)
    return Outcome(Kind.UNREACHABLE, seconds=seconds)


class _Running(msgspec.Struct):
    index: int
    sock: socket.socket
    started: float
    source_port: int = 0
    silence: Kind = Kind.SILENT
    """What it is called when nothing more comes."""


_sctp_ports = itertools.count(20000)


class _Race:
    """Runs probes with a bounded number of them in flight."""

    def __init__(self, cluster: Cluster, deadline: float) -> None:
        self._cluster = cluster
        self._deadline = deadline
        self._selector = selectors.DefaultSelector()
        self._running: dict[int, _Running] = {}
        self._outcomes: dict[int, Outcome] = {}

    def run(self, probes: Sequence[Probe]) -> list[Outcome]:
        waiting = collections.deque(enumerate(probes))
        try:
            while waiting or self._running:
                while waiting and len(self._running) < _WINDOW:
                    self._start(*waiting.popleft())
                self._wait()
        finally:
            for running in self._running.values():
                running.sock.close()
            self._selector.close()
        return [self._outcomes[index] for index in range(len(probes))]

    def _start(self, index: int, probe: Probe) -> None:
        started = time.monotonic()
        sock = _socket(self._cluster, probe)
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
            # A local drop; but a local reject says this too, and its ICMP error follows.
            running.silence = Kind.FORBIDDEN
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
        for key, _ in self._selector.select(max(0.0, oldest.started + self._deadline - now)):
            self._read(key.data)
        now = time.monotonic()
        for running in list(self._expired(now)):
            self._finish(running, Outcome(running.silence, seconds=now - running.started))

    def _expired(self, now: float) -> Iterable[_Running]:
        return itertools.takewhile(lambda r: r.started + self._deadline <= now, self._running.values())

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
        outcome = _outcome_of(received, running.started)
        if sock.type is socket.SOCK_STREAM:
            outcome = msgspec.structs.replace(outcome, retransmissions=_retransmissions(sock))
        self._finish(running, outcome)

    def _finish(self, running: _Running, outcome: Outcome) -> None:
        self._outcomes[running.index] = outcome
        del self._running[running.index]
        self._selector.unregister(running.sock)
        if running.sock.type is socket.SOCK_STREAM:
            # A reset leaves no TIME_WAIT behind: thousands of probes must not run out of ports.
            running.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        running.sock.close()
