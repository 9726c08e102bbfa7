"""Tracked flows, decoded from the kernel's messages, and the filter that selects some; no I/O."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, cast

from pointsman.kernel import attributes
from pointsman.model.addresses import Family, host_port_text

_TUPLE_ORIGINAL, _TUPLE_REPLY, _STATUS, _ID, _ZONE, _FILTER, _STATUS_MASK = 1, 2, 3, 12, 18, 25, 26
_IP, _PROTO, _TUPLE_ZONE = 1, 2, 3
_NUMBER, _SOURCE_PORT, _DESTINATION_PORT = 1, 2, 3
_FILTER_ORIGINAL_FLAGS: Final = 1
_BY_DESTINATION, _BY_PROTOCOL, _BY_DESTINATION_PORT = 1 << 1, 1 << 3, 1 << 5
_SEEN_REPLY: Final = 1 << 1
_TCP, _UDP, _SCTP = 6, 17, 132
_ESTABLISHED: Final = {
    _TCP: struct.pack("=HHHB", 1 | attributes.NLA_F_NESTED, 5, 1, 3),
    _SCTP: struct.pack("=HHHB", 3 | attributes.NLA_F_NESTED, 5, 1, 4),
}
"""Bytes of a message about an established connection: the kind of the block, the head of its first attribute, the state."""
_ZONE_HEADER: Final = struct.pack("=HH", 6, _ZONE)
_NESTED: Final = attributes.NLA_F_NESTED
_HEADER_LENGTH: Final = 4

Wanted = Callable[[bytes, int, bytes, int], bool]
"""Returns whether a flow is of interest, by original destination and port, and by the address and port that answer."""


class Flow(NamedTuple):
    """One tracked flow: where its first packet went, and who answers."""

    protocol: int
    source: bytes
    source_port: int
    destination: bytes
    destination_port: int
    reply_source: bytes
    reply_source_port: int
    reply_destination: bytes
    reply_destination_port: int
    id: bytes
    replied: bool = False
    """A packet has come back."""

    @property
    def translated(self) -> bool:
        """Another address answers than the first packet was sent to."""
        return (self.reply_source, self.reply_source_port) != (self.destination, self.destination_port)

    def __str__(self) -> str:
        return (
            f"{host_port_text(self.source, self.source_port)} -> "
            f"{host_port_text(self.destination, self.destination_port)} answered by "
            f"{host_port_text(self.reply_source, self.reply_source_port)}"
        )


class FlowPath(NamedTuple):
    """Where the first packet of a flow went, and who answers."""

    destination: bytes
    destination_port: int
    reply_source: bytes
    reply_source_port: int


class Sighting(NamedTuple):
    """A tracked flow as far as counting needs it."""

    path: FlowPath
    is_open: bool
    key: int
    """Equal for the same flow in two readings; the chance that two flows have the same is negligible."""


class FlowQuery(NamedTuple):
    """Which flows to look for; None means any."""

    protocol: int
    destination: bytes | None = None
    destination_port: int | None = None
    unreplied: bool = False
    """Only flows on which no packet has come back."""

    def matches(self, protocol: int, destination: bytes, port: int) -> bool:
        return (
            protocol == self.protocol
            and self.destination in (None, destination)
            and self.destination_port in (None, port)
        )


def _find_address_attributes(family: Family) -> tuple[int, int]:
    """Return the kinds of the attributes that hold source and destination."""
    return (1, 2) if family is Family.IPV4 else (3, 4)


class _Layout:
    """Where the two tuples' fields lie in the form every kernel so far writes them.

    Comparing the few attribute headers in between as bytes is what makes a walk over a large table cheap; a message
    that looks different is parsed step by step.
    """

    def __init__(self, family: Family) -> None:
        size = family.address_length
        self.source, self.destination = _find_address_attributes(family)
        one = f"12x{size}s4x{size}s8xB3x4x2s2x4x2s2x"
        self.fields = struct.Struct(f"={_HEADER_LENGTH}x{one}{one}")
        length = 44 + 2 * size
        self.fixed = (
            *self._build_headers(size, _HEADER_LENGTH, length, _TUPLE_ORIGINAL),
            *self._build_headers(size, _HEADER_LENGTH + length, length, _TUPLE_REPLY),
        )

    def _build_headers(self, size: int, start: int, length: int, kind: int) -> Iterator[tuple[slice, bytes]]:
        def pack_headers(*headers: tuple[int, int]) -> bytes:
            return b"".join(struct.pack("=HH", *one) for one in headers)

        addresses, ports = 4 + 2 * (4 + size), 4 + 3 * 8
        for offset, expected in (
            (0, pack_headers((length, kind | _NESTED), (addresses, _IP | _NESTED), (4 + size, self.source))),
            (12 + size, pack_headers((4 + size, self.destination))),
            (16 + 2 * size, pack_headers((ports, _PROTO | _NESTED), (5, _NUMBER))),
            (28 + 2 * size, pack_headers((6, _SOURCE_PORT))),
            (36 + 2 * size, pack_headers((6, _DESTINATION_PORT))),
        ):
            yield slice(start + offset, start + offset + len(expected)), expected


_Fields = tuple[bytes, bytes, int, bytes, bytes, bytes, bytes, int, bytes, bytes]
"""Source, destination, protocol, source port and destination port of the original tuple, then of the reply."""


class FlowDecoder:
    """Turns the kernel's messages into flows; pure."""

    def __init__(self, family: Family) -> None:
        self._layout = _Layout(family)

    def decode(self, payload: bytes, query: FlowQuery, wanted: Wanted) -> Flow | None:
        """Return the flow of a message, if it matches the query and `wanted` accepts it."""
        fields = self.read_layout(payload) or self.read_attributes(payload)
        if fields is None:
            return None
        source, destination, protocol, source_port, port_bytes = fields[:5]
        port, answering_port = int.from_bytes(port_bytes, "big"), int.from_bytes(fields[8], "big")
        if not query.matches(protocol, destination, port):
            return None
        if not wanted(destination, port, fields[5], answering_port):
            return None
        found = attributes.parse_attributes(payload, _HEADER_LENGTH)
        # A flow without a status counts as replied, because such flows may have to be spared.
        replied = bool(int.from_bytes(found.get(_STATUS, b"\xff"), "big") & _SEEN_REPLY)
        if any(found.get(_ZONE, b"")) or (replied and query.unreplied):
            return None
        return Flow(
            protocol,
            source,
            int.from_bytes(source_port, "big"),
            destination,
            port,
            fields[5],
            answering_port,
            fields[6],
            int.from_bytes(fields[9], "big"),
            found.get(_ID, b""),
            replied,
        )

    def sight(self, payload: bytes, query: FlowQuery) -> Sighting | None:
        """Return the flow of a message, if it matches the query."""
        fields = self.read_layout(payload) or self.read_attributes(payload)
        if fields is None:
            return None
        port = int.from_bytes(fields[4], "big")
        if not query.matches(fields[2], fields[1], port):
            return None
        if _ZONE_HEADER in payload and any(
            attributes.parse_attributes(payload, _HEADER_LENGTH).get(_ZONE, b"")
        ):
            return None
        path = FlowPath(fields[1], port, fields[5], int.from_bytes(fields[8], "big"))
        return Sighting(path, is_open(fields[2], payload), hash(fields[:5]))

    def read_layout(self, payload: bytes) -> _Fields | None:
        """Return the fields of a message with the layout that every kernel so far writes; None for another layout."""
        for place, expected in self._layout.fixed:
            if payload[place] != expected:
                return None
        if len(payload) < self._layout.fields.size:
            return None
        return cast("_Fields", self._layout.fields.unpack_from(payload))

    def read_attributes(self, payload: bytes) -> _Fields | None:
        """Return the fields of a message whatever its layout; None when some are missing."""
        found = attributes.parse_attributes(payload, _HEADER_LENGTH)
        original = self._read_tuple(found.get(_TUPLE_ORIGINAL, b""))
        reply = self._read_tuple(found.get(_TUPLE_REPLY, b""))
        return (*original, *reply) if original and reply else None

    def _read_tuple(self, data: bytes) -> tuple[bytes, bytes, int, bytes, bytes] | None:
        """Return a tuple whatever the order of its attributes; None for other zones and protocols without ports."""
        found = attributes.parse_attributes(data)
        addresses = attributes.parse_attributes(found.get(_IP, b""))
        ports = attributes.parse_attributes(found.get(_PROTO, b""))
        source, destination = addresses.get(self._layout.source), addresses.get(self._layout.destination)
        if source is None or destination is None or any(found.get(_TUPLE_ZONE, b"")):
            return None
        if len(ports.get(_NUMBER, b"")) != 1 or _SOURCE_PORT not in ports or _DESTINATION_PORT not in ports:
            return None
        return source, destination, ports[_NUMBER][0], ports[_SOURCE_PORT], ports[_DESTINATION_PORT]


def is_open(protocol: int, payload: bytes) -> bool:
    """Return whether a message is about an open connection: TCP and SCTP that is established, UDP that was answered.

    Every count of connections is made with this function. The kernel keeps a flow for minutes after either side closed it.
    """
    if protocol == _UDP:
        status = attributes.parse_attributes(payload, _HEADER_LENGTH).get(_STATUS, b"")
        return bool(int.from_bytes(status, "big") & _SEEN_REPLY)
    established = _ESTABLISHED.get(protocol)
    return established is not None and established in payload


def encode_selection(family: Family, query: FlowQuery) -> bytes:
    """Return the query as a filter for the kernel."""
    flags = _BY_PROTOCOL
    addresses, ports = b"", attributes.pack_u8(_NUMBER, query.protocol)
    # The kernel's filter by IPv6 address selects every address but the given one (seen on Linux 6.18).
    if query.destination is not None and family is Family.IPV4:
        flags |= _BY_DESTINATION
        addresses = attributes.pack_attribute(_find_address_attributes(family)[1], query.destination)
    if query.destination_port is not None:
        flags |= _BY_DESTINATION_PORT
        ports += attributes.pack_u16be(_DESTINATION_PORT, query.destination_port)
    parts = [attributes.pack_nested(_IP, addresses)] if addresses else []
    chosen = attributes.pack_nested(_TUPLE_ORIGINAL, *parts, attributes.pack_nested(_PROTO, ports))
    chosen += attributes.pack_nested(_FILTER, attributes.pack_u32(_FILTER_ORIGINAL_FLAGS, flags))
    if query.unreplied:
        chosen += attributes.pack_u32be(_STATUS, 0) + attributes.pack_u32be(_STATUS_MASK, _SEEN_REPLY)
    return chosen


def build_header(family: Family) -> bytes:
    """Return the header of every message about flows of this family."""
    return bytes((socket.AF_INET if family is Family.IPV4 else socket.AF_INET6, 0, 0, 0))


def encode_original(family: Family, flow: Flow) -> bytes:
    """Return the attribute that identifies a flow in a request about it."""
    source, destination = _find_address_attributes(family)
    return attributes.pack_nested(
        _TUPLE_ORIGINAL,
        attributes.pack_nested(
            _IP,
            attributes.pack_attribute(source, flow.source),
            attributes.pack_attribute(destination, flow.destination),
        ),
        attributes.pack_nested(
            _PROTO,
            attributes.pack_u8(_NUMBER, flow.protocol),
            attributes.pack_u16be(_SOURCE_PORT, flow.source_port),
            attributes.pack_u16be(_DESTINATION_PORT, flow.destination_port),
        ),
    )


def encode_id(flow: Flow) -> bytes:
    """Return the attribute by which the kernel ignores a request about a flow that took the place of this one."""
    return attributes.pack_attribute(_ID, flow.id) if flow.id else b""
