"""The kernel's IP Virtual Server over generic netlink: virtual servers, real servers, timeouts, counters.

Changes are encoded first (pure functions below) and sent many per system call by `IpvsSocket.apply`; nothing here decides
what should exist. Addresses have 16 bytes on the wire, whatever their family.
"""

from __future__ import annotations

import errno
import socket
import struct
import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache

from pointsman.errors import NotSupported
from pointsman.kernel import attributes as nla
from pointsman.kernel import netlink
from pointsman.kernel.ipvs_objects import (
    HASHED,
    PERSISTENT,
    SCHEDULER_1,
    SCHEDULER_2,
    RealKey,
    RealServer,
    ServerCounters,
    VirtualKey,
    VirtualServer,
)
from pointsman.kernel.netlink import Closable, Message, NetlinkSocket, Reply

NEEDS = "CONFIG_IP_VS (module ip_vs); try: modprobe ip_vs"

CMD_NEW_SERVICE, CMD_SET_SERVICE, CMD_DEL_SERVICE, CMD_GET_SERVICE = 1, 2, 3, 4
CMD_NEW_DEST, CMD_SET_DEST, CMD_DEL_DEST, CMD_GET_DEST = 5, 6, 7, 8
CMD_SET_CONFIG = 12

ATTR_SERVICE, ATTR_DEST = 1, 2
ATTR_TIMEOUT_TCP, ATTR_TIMEOUT_TCP_FIN, ATTR_TIMEOUT_UDP = 4, 5, 6
SVC_AF, SVC_PROTOCOL, SVC_ADDR, SVC_PORT, SVC_FWMARK, SVC_SCHEDULER = 1, 2, 3, 4, 5, 6
SVC_FLAGS, SVC_TIMEOUT, SVC_NETMASK, SVC_STATS, SVC_STATS64 = 7, 8, 9, 10, 12
DEST_ADDR, DEST_PORT, DEST_FORWARD, DEST_WEIGHT, DEST_UPPER, DEST_LOWER = 1, 2, 3, 4, 5, 6
DEST_ACTIVE, DEST_INACTIVE, DEST_FAMILY = 7, 8, 11
STAT_CONNS, STAT_INPKTS, STAT_OUTPKTS, STAT_INBYTES, STAT_OUTBYTES = 1, 2, 3, 4, 5

_BALANCING_FLAGS = PERSISTENT | SCHEDULER_1 | SCHEDULER_2
_SERVICE_ID = struct.Struct("=HHHxx HHHxx HH16s HH2sxx")
_SERVICE_REST = struct.Struct("=HHII HHI HHI")
_DEST_ID = struct.Struct("=HHHxx HH16s HH2sxx")
_DEST_REST = struct.Struct("=HHI HHI HHI HHI")
_NEST = struct.Struct("=HH")
_U32 = struct.Struct("=I")
_PORT = struct.Struct(">H")
_LISTED_ID = slice(8, 8 + _SERVICE_ID.size)
"""Position of the identity of a virtual server in an answer: after the headers of message and nest."""
_LISTED = slice(8, _LISTED_ID.stop + 8 + _SERVICE_REST.size)
"""And its settings; behind a scheduler's long name the network mask is cut off, which is always the same."""
_V4_ALL_BITS, _V6_ALL_BITS = 0xFFFFFFFF, 128

_GENL_ID_CTRL, _CTRL_CMD_GETFAMILY = 0x10, 3
_CTRL_ATTR_FAMILY_ID, _CTRL_ATTR_FAMILY_NAME = 1, 2
_HEADER = struct.Struct("=BBH")
HEADER_LENGTH = _HEADER.size


# --- messages -----------------------------------------------------------------------------------------------


def _encode_command(command: int, service: bytes = b"", destination: bytes = b"") -> bytes:
    """Return a whole payload: the header of generic netlink, a virtual server, a real server."""
    payload = _HEADER.pack(command, 1, 0)
    for kind, content in ((ATTR_SERVICE, service), (ATTR_DEST, destination)):
        if content:
            payload += _NEST.pack(4 + len(content), kind | nla.NLA_F_NESTED) + content
    return payload


def _find_address_family(address: bytes) -> int:
    return socket.AF_INET if len(address) == 4 else socket.AF_INET6


def encode_service_id(key: VirtualKey) -> bytes:
    """Return the attributes that identify a virtual server; reuse them for every real server of the same one."""
    return _SERVICE_ID.pack(
        *(6, SVC_AF, _find_address_family(key.address)),
        *(6, SVC_PROTOCOL, key.protocol),
        *(20, SVC_ADDR, key.address),
        *(6, SVC_PORT, _PORT.pack(key.port)),
    )


def encode_service(command: int, server: VirtualServer) -> bytes:
    """Return the payload that adds (CMD_NEW_SERVICE) or changes (CMD_SET_SERVICE) a virtual server."""
    settings = _encode_settings(server.scheduler, server.flags, server.timeout, len(server.key.address))
    return _encode_command(command, encode_service_id(server.key) + settings)


@lru_cache
def _encode_settings(scheduler: str, flags: int, timeout: int, address_length: int) -> bytes:
    """Return the attributes of a virtual server after those that identify it; most servers have the same."""
    mask = _V4_ALL_BITS if address_length == 4 else _V6_ALL_BITS
    return nla.pack_text(SVC_SCHEDULER, scheduler) + _SERVICE_REST.pack(
        *(12, SVC_FLAGS, flags, 0xFFFFFFFF), *(8, SVC_TIMEOUT, timeout), *(8, SVC_NETMASK, mask)
    )


def encode_service_removal(key: VirtualKey) -> bytes:
    """Return the payload that deletes a virtual server with its real servers."""
    return _encode_command(CMD_DEL_SERVICE, encode_service_id(key))


def encode_marked_service(command: int, scheduler: str, mark: int) -> bytes:
    """Return the payload that adds or deletes an IPv4 virtual server that is addressed by a firewall mark."""
    identity = nla.pack_u16(SVC_AF, socket.AF_INET) + nla.pack_u32(SVC_FWMARK, mark)
    return _encode_command(command, identity + _encode_settings(scheduler, 0, 0, 4))


def _encode_destination_id(key: RealKey) -> bytes:
    return _DEST_ID.pack(
        *(6, DEST_FAMILY, _find_address_family(key.address)),
        *(20, DEST_ADDR, key.address),
        *(6, DEST_PORT, _PORT.pack(key.port)),
    )


def encode_destination(command: int, service: bytes, key: RealKey, weight: int) -> bytes:
    """Return the payload that adds (CMD_NEW_DEST) or changes (CMD_SET_DEST) a masqueraded real server of `encode_service_id`."""
    rest = _DEST_REST.pack(
        *(8, DEST_FORWARD, 0), *(8, DEST_WEIGHT, weight), *(8, DEST_UPPER, 0), *(8, DEST_LOWER, 0)
    )
    return _encode_command(command, service, _encode_destination_id(key) + rest)


def encode_destination_removal(service: bytes, key: RealKey) -> bytes:
    """Return the payload that deletes a real server."""
    return _encode_command(CMD_DEL_DEST, service, _encode_destination_id(key))


# --- answers ------------------------------------------------------------------------------------------------


def decode_virtual_server(payload: bytes) -> tuple[VirtualServer, ServerCounters] | None:
    """Return a virtual server and its counters; None for one that is addressed by a firewall mark."""
    fields = nla.parse_attributes(nla.parse_attributes(payload, HEADER_LENGTH).get(ATTR_SERVICE, b""))
    if SVC_ADDR not in fields or SVC_PORT not in fields:
        return None
    length = 4 if _parse_native(fields[SVC_AF]) == socket.AF_INET else 16
    key = VirtualKey(
        _parse_native(fields[SVC_PROTOCOL]), fields[SVC_ADDR][:length], _PORT.unpack(fields[SVC_PORT])[0]
    )
    flags = _U32.unpack_from(fields[SVC_FLAGS])[0] & _BALANCING_FLAGS
    timeout = _parse_native(fields[SVC_TIMEOUT]) if flags & PERSISTENT else 0
    server = VirtualServer(key, nla.parse_text(fields[SVC_SCHEDULER]), flags, timeout)
    stats = nla.parse_attributes(fields.get(SVC_STATS64) or fields.get(SVC_STATS, b""))
    counters = (STAT_CONNS, STAT_INPKTS, STAT_OUTPKTS, STAT_INBYTES, STAT_OUTBYTES)
    return server, ServerCounters(*(_parse_native(stats.get(number, b"\0")) for number in counters))


def compute_digest(payloads: Iterable[bytes]) -> int:
    """Return a number that is the same for the same virtual servers with the same settings, whatever their counters."""
    return hash(tuple(payload[_LISTED] for payload in payloads))


def diff_listing(
    payloads: Iterable[bytes], expected: Iterable[VirtualServer]
) -> tuple[list[VirtualServer], list[VirtualServer]]:
    """Return listed virtual servers that differ from the expected ones, and expected ones that are not listed.

    The kernel describes a virtual server by the attributes it was created with, in the same order, followed by the counters.
    One that is as expected is recognised by these bytes; only others are decoded.
    """
    wanted = {encode_service_id(server.key): server for server in expected}
    seen: set[bytes] = set()
    different: list[VirtualServer] = []
    for payload in payloads:
        listed = payload[_LISTED_ID]
        want = wanted.get(listed)
        if want is not None:
            seen.add(listed)
            flags, length = want.flags | HASHED, len(want.key.address)
            if payload.startswith(
                _encode_settings(want.scheduler, flags, want.timeout, length), _LISTED_ID.stop
            ):
                continue
        decoded = decode_virtual_server(payload)
        if decoded is None:
            continue
        own = encode_service_id(decoded[0].key)
        seen.add(own)
        if decoded[0] != wanted.get(own):
            different.append(decoded[0])
    return different, [server for identity, server in wanted.items() if identity not in seen]


def decode_real_server(payload: bytes, family: int) -> RealServer:
    """Return a real server; kernels before 3.18 do not report its family, which then is the virtual server's."""
    fields = nla.parse_attributes(nla.parse_attributes(payload, HEADER_LENGTH).get(ATTR_DEST, b""))
    number = _parse_native(fields[DEST_FAMILY]) if DEST_FAMILY in fields else family
    length = 4 if number == socket.AF_INET else 16
    return RealServer(
        RealKey(fields[DEST_ADDR][:length], _PORT.unpack(fields[DEST_PORT])[0]),
        weight=_parse_native(fields[DEST_WEIGHT]),
        active=_parse_native(fields[DEST_ACTIVE]),
        inactive=_parse_native(fields[DEST_INACTIVE]),
    )


def _parse_native(data: bytes) -> int:
    return int.from_bytes(data, sys.byteorder)


# --- the socket ---------------------------------------------------------------------------------------------


def _resolve_family(sock: NetlinkSocket) -> int:
    """Return the number that the kernel gave the family IPVS; asking for it loads the module where that is possible."""
    payload = _encode_command(_CTRL_CMD_GETFAMILY) + nla.pack_text(_CTRL_ATTR_FAMILY_NAME, "IPVS")
    reply = sock.request((Message(_GENL_ID_CTRL, 0, payload),))[0]
    if reply.errno == errno.ENOENT:
        raise NotSupported(f"the kernel has no IPVS family; it needs {NEEDS}", reply.errno)
    if reply.errno:
        raise netlink.build_kernel_error(reply.errno, "look up IPVS", reply.text, needs=NEEDS)
    for answer in reply.answers:
        number = nla.parse_attributes(answer.payload, HEADER_LENGTH).get(_CTRL_ATTR_FAMILY_ID)
        if number is not None:
            return _parse_native(number)
    raise NotSupported(f"the kernel reported no number for its IPVS family; it needs {NEEDS}")


class IpvsSocket(Closable):
    """IPVS of the network namespace it was opened in. Raises NotSupported where the kernel has none."""

    def __init__(self) -> None:
        self._netlink = NetlinkSocket(netlink.NETLINK_GENERIC)
        try:
            self._family = _resolve_family(self._netlink)
        except BaseException:
            self._netlink.close()
            raise

    def close(self) -> None:
        self._netlink.close()

    def apply(self, payloads: Sequence[bytes]) -> list[Reply]:
        """Send changes, many per system call; return the replies in the same order."""
        return self._netlink.request([Message(self._family, 0, payload) for payload in payloads])

    def list_services(self) -> dict[VirtualServer, ServerCounters]:
        """Return every virtual server with an address, and its counters."""
        return dict(filter(None, map(decode_virtual_server, self.dump_services())))

    def dump_services(self) -> list[bytes]:
        """Return the kernel's description of each virtual server, undecoded: `compute_digest` and `diff_listing` need no more, and are much faster."""
        request = Message(self._family, 0, _encode_command(CMD_GET_SERVICE))
        return [answer.payload for answer in self._netlink.dump(request, "list virtual servers", needs=NEEDS)]

    def find_service(self, key: VirtualKey) -> VirtualServer | None:
        """Return the virtual server of this address, protocol and port, if there is one."""
        payload = _encode_command(CMD_GET_SERVICE, encode_service_id(key))
        reply = self._netlink.request((Message(self._family, 0, payload),))[0]
        if reply.errno not in (0, errno.ESRCH):
            raise netlink.build_kernel_error(
                reply.errno, f"look up virtual server {key}", reply.text, needs=NEEDS
            )
        decoded = decode_virtual_server(reply.answers[0].payload) if reply.answers else None
        return decoded[0] if decoded is not None else None

    def list_destinations(self, key: VirtualKey) -> list[RealServer]:
        """Return the real servers of a virtual server with their connections; empty when there is no such server."""
        payload = _encode_command(CMD_GET_DEST, encode_service_id(key))
        answers = self._netlink.dump(Message(self._family, 0, payload), f"list real servers of {key}")
        return [decode_real_server(answer.payload, _find_address_family(key.address)) for answer in answers]

    def has_scheduler(self, name: str) -> bool:
        """Return whether the kernel has, or can load, a scheduler; adds a virtual server for an unused mark and deletes it.

        The mark is the number of this socket: the IP families may probe at the same time.
        """
        add, remove = (
            encode_marked_service(command, name, self._netlink.port_id)
            for command in (CMD_NEW_SERVICE, CMD_DEL_SERVICE)
        )
        added, removed = self.apply((add, remove))
        if added.errno not in (0, errno.ENOENT):
            raise netlink.build_kernel_error(
                added.errno, f"try IPVS scheduler {name}", added.text, needs=NEEDS
            )
        return added.ok and removed.ok

    def set_timeouts(self, tcp: int = 0, tcp_fin: int = 0, udp: int = 0) -> None:
        """Set the timeouts that are not 0."""
        kinds = (ATTR_TIMEOUT_TCP, ATTR_TIMEOUT_TCP_FIN, ATTR_TIMEOUT_UDP)
        payload = _encode_command(CMD_SET_CONFIG) + b"".join(
            nla.pack_u32(kind, seconds) for kind, seconds in zip(kinds, (tcp, tcp_fin, udp), strict=True)
        )
        self._netlink.request_one(Message(self._family, 0, payload), "set the IPVS timeouts")
