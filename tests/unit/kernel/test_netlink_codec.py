"""Netlink framing and attributes: what is packed comes back, and broken input does no harm."""

from __future__ import annotations

import errno
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.errors import Busy, KernelError, NotSupported, Rejected
from pointsman.kernel import netlink
from pointsman.kernel.attributes import (
    iter_attributes,
    pack_attribute,
    pack_nested,
    pack_text,
    pack_u32be,
    parse_attributes,
    parse_text,
)

pairs = st.lists(st.tuples(st.integers(1, 0x3FFF), st.binary(max_size=40)), max_size=8)


@given(pairs)
def test_attributes_come_back_in_order_and_aligned(items: list[tuple[int, bytes]]) -> None:
    packed = b"".join(pack_attribute(kind, data) for kind, data in items)
    assert len(packed) % 4 == 0
    assert list(iter_attributes(packed)) == items


@given(st.binary(max_size=200))
def test_any_bytes_can_be_read_as_attributes_and_messages(data: bytes) -> None:
    list(iter_attributes(data))
    for answer in netlink.split(data):
        netlink.parse_reply(answer)


def test_nested_attributes_lose_their_flag_when_read() -> None:
    packed = pack_nested(5, pack_u32be(1, 7), pack_text(2, "lb-2"))
    inner = parse_attributes(parse_attributes(packed)[5])
    assert inner[1] == b"\0\0\0\x07"
    assert parse_text(inner[2]) == "lb-2"


def error_message(code: int, flags: int, extra: bytes = b"", original: bytes = b"") -> netlink.Answer:
    header = struct.pack("=IHHII", 16 + len(original), 1, 0, 9, 0)
    payload = struct.pack("=i", -code) + header + original + extra
    (answer,) = netlink.split(netlink.build_frame(netlink.NLMSG_ERROR, flags, 9, payload))
    return answer


@pytest.mark.parametrize(
    ("flags", "original"),
    [(netlink.NLM_F_ACK_TLVS, b"x" * 8), (netlink.NLM_F_ACK_TLVS | netlink.NLM_F_CAPPED, b"")],
)
def test_extended_acks_are_read_behind_whole_and_capped_requests(flags: int, original: bytes) -> None:
    extra = pack_text(1, "chain is in use") + pack_attribute(2, struct.pack("=I", 40))
    reply = netlink.parse_reply(error_message(errno.EBUSY, flags, extra, original))
    assert reply == netlink.Reply(errno.EBUSY, "chain is in use")


def test_an_acknowledgement_is_no_error() -> None:
    assert netlink.parse_reply(error_message(0, 0)).ok


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.EOPNOTSUPP, NotSupported),
        (errno.EBUSY, Busy),
        (errno.EEXIST, Rejected),
        (errno.EPERM, KernelError),
    ],
)
def test_error_numbers_become_errors_that_say_what_to_do(code: int, kind: type[KernelError]) -> None:
    error = netlink.build_kernel_error(code, "add chain lb-2", "the kernel's words", needs="CONFIG_NF_TABLES")
    assert type(error) is kind
    assert error.errno == code
    assert "add chain lb-2" in str(error)
    assert "the kernel's words" in str(error)
    assert ("CONFIG_NF_TABLES" in str(error)) == (kind is NotSupported)
