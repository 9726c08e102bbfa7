"""SCTP and ICMP in the lab, over raw sockets: importing this module adds them to the protocols of probes."""

from __future__ import annotations

import itertools
import socket
import struct
from functools import partial

from tests.harness import sctp

from pointsman.lab.cluster import Cluster
from pointsman.lab.hosts import HOSTS
from pointsman.lab.probe import WIRES, Kind, Outcome, Probe, UdpWire, parse_answer

_ECHO_REPLIES = (0, 129)
_source_ports = itertools.count(20000)


class SctpWire(UdpWire):
    """An INIT, answered by an INIT ACK with the server's name in its cookie."""

    def open(self, family: socket.AddressFamily) -> socket.socket:
        return socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_SCTP)

    def send(self, sock: socket.socket, probe: Probe) -> None:
        self._source_port = 20000 + next(_source_ports) % 40000
        sock.connect((probe.address, 0))
        sock.send(sctp.init(self._source_port, probe.port))

    def read_answer(self, sock: socket.socket, received: bytes) -> Outcome | None:
        answer = sctp.cookie_of(sctp.payload(sock.family, received))
        return None if answer is None or answer[1] != self._source_port else parse_answer(answer[2])


class IcmpWire(UdpWire):
    """A ping."""

    def open(self, family: socket.AddressFamily) -> socket.socket:
        protocol = socket.IPPROTO_ICMP if family == socket.AF_INET else socket.IPPROTO_ICMPV6
        return socket.socket(family, socket.SOCK_RAW, protocol)

    def send(self, sock: socket.socket, probe: Probe) -> None:
        sock.connect((probe.address, 0))
        sock.send(_build_echo_request(sock.family))

    def read_answer(self, sock: socket.socket, received: bytes) -> Outcome | None:
        is_reply = sctp.payload(sock.family, received)[0] in _ECHO_REPLIES
        return Outcome(Kind.ANSWERED, "ping") if is_reply else None


WIRES |= {"SCTP": SctpWire, "ICMP": IcmpWire}


def serve_sctp(cluster: Cluster, host: str) -> None:
    """Answer SCTP INITs to any port of `host`; the kernel needs no SCTP support."""
    with cluster[host].entered():
        for address in (HOSTS[host].ipv4, HOSTS[host].ipv6):
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            raw = socket.socket(family, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.IPPROTO_SCTP)
            raw.bind((address, 0))
            cluster.servers.add(host, raw, partial(sctp.answer_init, host, raw))


def _build_echo_request(family: int) -> bytes:
    """Build a ping; the kernel fills in the checksum for IPv6 only."""
    if family == socket.AF_INET6:
        return struct.pack("!BBHHH", 128, 0, 0, 7, 7)
    return struct.pack("!BBHHH", 8, 0, 0xFFFF - 0x0800 - 7 - 7, 7, 7)
