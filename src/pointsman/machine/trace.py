"""Traces of real packets: a narrow rule marks them (`meta nftrace set 1`), and nftables reports what each rule did.

The rule is in a table of its own that belongs to the socket that made it: the kernel removes it when that socket
closes, however the process ends. Kernels before 5.12 have no owned tables; there `close` removes it, or the next trace.
"""

from __future__ import annotations

import contextlib
import errno
import select
import struct
import time
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from pointsman.backends.netfilter.names import TRACE_TABLE
from pointsman.errors import Busy, KernelError
from pointsman.kernel import attributes as nla
from pointsman.kernel import netlink, nfnl
from pointsman.kernel import nf_tables as nf
from pointsman.kernel import nft_wire as w
from pointsman.kernel.netlink import Answer, Closable, Message, NetlinkSocket
from pointsman.kernel.nfnl import (
    FAMILY_KEYWORDS,
    NFPROTO,
    BatchRejected,
    NftablesSocket,
    build_nftables_message,
)
from pointsman.machine.nft_rules import parse_verdict
from pointsman.machine.packet_filter import Action
from pointsman.model.addresses import Family, host_port_text
from pointsman.model.service import Protocol

_PRIORITY: Final = -350
"""After defragmentation, before everything else, `raw` rules included."""
_HOOKS: Final = {"prerouting": 0, "output": 3}
_TRACE_GROUP: Final = 1 << 8
"""NFNLGRP_NFTRACE, as a bit."""
_OFFSETS: Final = {Family.IPV4: (12, 16), Family.IPV6: (8, 24)}
_TCP_FLAGS: Final = 13
_FIN_SYN_RST_ACK, _SYN = b"\x17", b"\x02"


class TraceFilter(msgspec.Struct, frozen=True):
    """Which packets to trace: the first ones of connections to one address and port."""

    family: Family
    destination: bytes
    port: int
    protocol: Protocol
    source: bytes = b""
    """Empty: from any client."""


class Header(msgspec.Struct, frozen=True):
    """Source and destination of a packet at one point of its way."""

    source: str
    """`ip:port`."""
    destination: str


class TraceEvent(msgspec.Struct, frozen=True):
    """What one rule, or the end of a chain, did to one packet."""

    packet: int
    """The same for all events of one packet."""
    table: str
    """With its family, as in FilterChain."""
    chain: str
    handle: int
    """Of the rule; 0 for the policy or the end of a chain."""
    action: Action
    target: str = ""
    by_policy: bool = False
    header: Header | None = None
    """Reported once for every base chain."""
    in_interface: int = 0
    out_interface: int = 0

    @property
    def is_own(self) -> bool:
        """It is about the table that marks the packets, not about a rule of another program."""
        return self.table.partition(" ")[2] == TRACE_TABLE


class Tracer(Closable):
    """Traces packets while it is open. Needs CAP_NET_ADMIN."""

    def __init__(self, wanted: TraceFilter) -> None:
        self._wanted = wanted
        self._events = NetlinkSocket(netlink.NETLINK_NETFILTER, groups=_TRACE_GROUP)
        self._table = NftablesSocket()
        self._owned = True
        try:
            self._make_table()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if not self._owned:
            with contextlib.suppress(KernelError):
                self._table.delete_table(NFPROTO[self._wanted.family], TRACE_TABLE)
        self._table.close()
        self._events.close()

    def events(self, seconds: float, enough: Callable[[], bool]) -> Iterator[TraceEvent]:
        """Yield events until `enough` returns true or the time is over."""
        until = time.monotonic() + seconds
        while not enough() and (left := until - time.monotonic()) > 0:
            if not select.select([self._events], [], [], min(left, 0.05))[0]:
                continue
            for answer in self._events.receive(wait=False):
                event = parse_trace_event(answer)
                if event is not None:
                    yield event

    def _make_table(self) -> None:
        try:
            self._table.delete_table(NFPROTO[self._wanted.family], TRACE_TABLE)
            self._table.commit(self._build_messages(nf.NFT_TABLE_F_OWNER))
        except BatchRejected as refused:
            if refused.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise _build_in_use_error(refused) from refused
            self._owned = False
            self._table.commit(self._build_messages(0))
        except KernelError as error:
            raise _build_in_use_error(error) from error

    def _build_messages(self, flags: int) -> list[Message]:
        table = _NAME + nla.pack_u32be(nf.NFTA_TABLE_FLAGS, flags)
        made = [self._build_message(nf.NFT_MSG_NEWTABLE, netlink.NLM_F_CREATE, table)]
        for name, hook in _HOOKS.items():
            made.append(
                self._build_message(nf.NFT_MSG_NEWCHAIN, netlink.NLM_F_CREATE, _encode_chain(name, hook))
            )
            rule = nla.pack_attribute(nf.NFTA_RULE_EXPRESSIONS | nla.NLA_F_NESTED, self._encode_rule())
            body = _NAME + nla.pack_text(nf.NFTA_RULE_CHAIN, name) + rule
            made.append(
                self._build_message(nf.NFT_MSG_NEWRULE, netlink.NLM_F_CREATE | netlink.NLM_F_APPEND, body)
            )
        return made

    def _build_message(self, kind: int, flags: int, body: bytes) -> Message:
        return build_nftables_message(kind, NFPROTO[self._wanted.family], flags, body)

    def _encode_rule(self) -> bytes:
        """Encode the rule: as narrow as possible, first packets only, and few per second, for busy Services."""
        wanted, register = self._wanted, w.FIRST_REGISTER
        source, destination = _OFFSETS[wanted.family]
        length = wanted.family.address_length
        network, transport = nf.NFT_PAYLOAD_NETWORK_HEADER, nf.NFT_PAYLOAD_TRANSPORT_HEADER
        parts = [
            w.load_payload(register, network, destination, length)
            + w.compare(nf.NFT_CMP_EQ, wanted.destination),
            w.load_meta(nf.NFT_META_L4PROTO, register)
            + w.compare(nf.NFT_CMP_EQ, bytes((wanted.protocol.value,))),
            w.load_payload(register, transport, 2, 2)
            + w.compare(nf.NFT_CMP_EQ, struct.pack(">H", wanted.port)),
        ]
        if wanted.source:
            parts.append(
                w.load_payload(register, network, source, length) + w.compare(nf.NFT_CMP_EQ, wanted.source)
            )
        if wanted.protocol is Protocol.TCP:
            flags = w.load_payload(register, transport, _TCP_FLAGS, 1) + w.apply_mask(_FIN_SYN_RST_ACK, b"\0")
            parts.append(flags + w.compare(nf.NFT_CMP_EQ, _SYN))
        parts.append(
            w.pack_expression(
                "limit",
                nla.pack_u64be(nf.NFTA_LIMIT_RATE, 1),
                nla.pack_u64be(nf.NFTA_LIMIT_UNIT, 1),
                nla.pack_u32be(nf.NFTA_LIMIT_BURST, 3),
            )
        )
        parts.append(w.load_value(register, w.pack_value(b"\1")))
        parts.append(
            w.pack_expression(
                "meta",
                nla.pack_u32be(nf.NFTA_META_KEY, nf.NFT_META_NFTRACE),
                nla.pack_u32be(nf.NFTA_META_SREG, register),
            )
        )
        return b"".join(parts)


_NAME: Final = nla.pack_text(nf.NFTA_TABLE_NAME, TRACE_TABLE)


def _encode_chain(name: str, hook: int) -> bytes:
    return (
        _NAME
        + nla.pack_text(nf.NFTA_CHAIN_NAME, name)
        + nla.pack_nested(
            nf.NFTA_CHAIN_HOOK,
            nla.pack_u32be(nf.NFTA_HOOK_HOOKNUM, hook),
            nla.pack_attribute(nf.NFTA_HOOK_PRIORITY, struct.pack(">i", _PRIORITY)),
        )
        + nla.pack_u32be(nf.NFTA_CHAIN_POLICY, nf.NF_ACCEPT)
        + nla.pack_text(nf.NFTA_CHAIN_TYPE, "filter")
    )


def _build_in_use_error(error: KernelError) -> KernelError:
    """Return the error to raise: EPERM means that the table has another owner, or that CAP_NET_ADMIN is missing."""
    if error.errno == errno.EPERM:
        return Busy(
            f"cannot make table {TRACE_TABLE}: another trace is running, or CAP_NET_ADMIN is missing",
            errno.EPERM,
        )
    return error


def parse_trace_event(answer: Answer) -> TraceEvent | None:
    """Return the event in a message of the kernel; None for other messages."""
    if answer.kind != (nfnl.SUBSYS_NFTABLES << 8) | nf.NFT_MSG_TRACE:
        return None
    found = nfnl.parse_answer(answer)
    kind = nla.parse_number(found.get(nf.NFTA_TRACE_TYPE))
    by_policy = kind == nf.NFT_TRACETYPE_POLICY
    if by_policy:
        dropped = nla.parse_number(found.get(nf.NFTA_TRACE_POLICY)) == nf.NF_DROP
        action, target = Action.DROP if dropped else Action.ACCEPT, ""
    elif kind == nf.NFT_TRACETYPE_RETURN:
        action, target = Action.RETURN, ""
    else:
        action, target = parse_verdict(nla.parse_attributes(found.get(nf.NFTA_TRACE_VERDICT, b"")))
    return TraceEvent(
        packet=nla.parse_number(found.get(nf.NFTA_TRACE_ID)),
        table=f"{FAMILY_KEYWORDS.get(answer.payload[0], '?')} {nla.parse_text(found.get(nf.NFTA_TRACE_TABLE, b''))}",
        chain=nla.parse_text(found.get(nf.NFTA_TRACE_CHAIN, b"")),
        handle=nla.parse_number(found.get(nf.NFTA_TRACE_RULE_HANDLE)),
        action=action,
        target=target,
        by_policy=by_policy,
        header=_parse_header(
            found.get(nf.NFTA_TRACE_NETWORK_HEADER, b""), found.get(nf.NFTA_TRACE_TRANSPORT_HEADER, b"")
        ),
        in_interface=nla.parse_number(found.get(nf.NFTA_TRACE_IIF)),
        out_interface=nla.parse_number(found.get(nf.NFTA_TRACE_OIF)),
    )


def _parse_header(network: bytes, transport: bytes) -> Header | None:
    if len(network) < 20 or len(transport) < 4:
        return None
    family = Family.IPV4 if network[0] >> 4 == 4 else Family.IPV6
    if len(network) < (20 if family is Family.IPV4 else 40):
        return None
    length = family.address_length
    source, destination = (network[offset : offset + length] for offset in _OFFSETS[family])
    first, last = struct.unpack_from(">HH", transport)
    return Header(host_port_text(source, first), host_port_text(destination, last))
