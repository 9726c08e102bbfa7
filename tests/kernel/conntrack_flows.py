"""Fills a real conntrack table quickly, for tests and measurements."""

from __future__ import annotations

import socket
from collections.abc import Iterable

from pointsman.kernel import attributes as nla
from pointsman.kernel import netlink
from pointsman.kernel.netlink import Message, NetlinkSocket
from pointsman.kernel.tracked_flows import Flow
from pointsman.model.addresses import Family

_NEW = 1 << 8
_STATUS, _TIMEOUT = 3, 7
_SEEN_REPLY, _CONFIRMED = 2, 8


def _header(family: Family) -> bytes:
    return bytes((socket.AF_INET if family is Family.IPV4 else socket.AF_INET6, 0, 0, 0))


def _side(kind: int, source: bytes, source_port: int, to: bytes, port: int, protocol: int) -> bytes:
    first = 1 if len(source) == 4 else 3
    addresses = nla.pack_nested(1, nla.pack_attribute(first, source), nla.pack_attribute(first + 1, to))
    ports = nla.pack_nested(
        2, nla.pack_u8(1, protocol), nla.pack_u16be(2, source_port), nla.pack_u16be(3, port)
    )
    return nla.pack_nested(kind, addresses, ports)


def _original(flow: Flow) -> bytes:
    return _side(1, flow.source, flow.source_port, flow.destination, flow.destination_port, flow.protocol)


def answer_flow(family: Family, flow: Flow) -> None:
    """Make a flow of the table one on which a packet has come back."""
    status = nla.pack_u32be(_STATUS, _SEEN_REPLY | _CONFIRMED)
    with NetlinkSocket(netlink.NETLINK_NETFILTER) as sock:
        sock.request_one(Message(_NEW, 0, _header(family) + _original(flow) + status), "answer a flow")


def add_flows(family: Family, flows: Iterable[Flow]) -> None:
    """Put flows into the table by netlink, many at once."""
    messages = [
        Message(
            _NEW,
            netlink.NLM_F_CREATE | netlink.NLM_F_EXCL,
            _header(family)
            + _original(f)
            + _side(
                2,
                f.reply_source,
                f.reply_source_port,
                f.reply_destination,
                f.reply_destination_port,
                f.protocol,
            )
            + nla.pack_u32be(_TIMEOUT, 600)
            + (nla.pack_u32be(_STATUS, _SEEN_REPLY | _CONFIRMED) if f.replied else b""),
        )
        for f in flows
    ]
    with NetlinkSocket(netlink.NETLINK_NETFILTER) as sock:
        assert {reply.errno for reply in sock.request(messages)} == {0}
