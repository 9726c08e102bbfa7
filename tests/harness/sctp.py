"""The first round trip of SCTP over raw sockets: an INIT, and an INIT ACK with the server's name in its cookie.

Enough for conntrack and NAT to treat it as an association, and independent of SCTP support in the kernel.
"""

from __future__ import annotations

import socket
import struct

_INIT, _INIT_ACK = 1, 2
_COOKIE_PARAMETER = 7


def _crc32c_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ 0x82F63B78 if value & 1 else value >> 1
        table.append(value)
    return table


_TABLE = _crc32c_table()


def crc32c(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value = (value >> 8) ^ _TABLE[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


def packet(source_port: int, port: int, tag: int, chunk: bytes) -> bytes:
    """Common header with its checksum, and one chunk."""
    header = struct.pack("!HHI", source_port, port, tag)
    checksum = struct.pack("<I", crc32c(header + bytes(4) + chunk))
    return header + checksum + chunk


def init(source_port: int, port: int) -> bytes:
    return packet(source_port, port, 0, struct.pack("!BBHIIHHI", _INIT, 0, 20, 0x5EED, 65536, 1, 1, 1))


def init_ack(source_port: int, port: int, tag: int, cookie: bytes) -> bytes:
    padded = cookie + bytes(-len(cookie) % 4)
    parameter = struct.pack("!HH", _COOKIE_PARAMETER, 4 + len(cookie)) + padded
    body = struct.pack("!IIHHI", 0xACED, 65536, 1, 1, 1) + parameter
    return packet(source_port, port, tag, struct.pack("!BBH", _INIT_ACK, 0, 4 + len(body)) + body)


def payload(family: int, received: bytes) -> bytes:
    """Return what a raw socket received, without the IP header that IPv4 sockets include."""
    return received[(received[0] & 0xF) * 4 :] if family == socket.AF_INET else received


def cookie_of(message: bytes) -> tuple[int, int, bytes] | None:
    """Return (source port, destination port, cookie) of an INIT ACK, or None for anything else."""
    if len(message) < 36 or message[12] != _INIT_ACK:
        return None
    source_port, port = struct.unpack_from("!HH", message)
    (length,) = struct.unpack_from("!H", message, 34)
    return source_port, port, message[36 : 32 + length]


def answer_init(name: str, sock: socket.socket) -> None:
    """Answer every INIT waiting on a raw socket with `NAME ADDRESS` as the cookie."""
    while True:
        received, peer = sock.recvfrom(4096)
        message = payload(sock.family, received)
        if len(message) < 32 or message[12] != _INIT:
            continue
        source_port, port = struct.unpack_from("!HH", message)
        (tag,) = struct.unpack_from("!I", message, 16)
        sock.sendto(init_ack(port, source_port, tag, f"{name} {peer[0]}\n".encode()), (peer[0], 0))
