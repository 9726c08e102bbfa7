"""Messages of IPVS and ipset, byte for byte: what the kernel sent for objects made by ipvsadm and ipset, and what we send."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from tests.factory import packed

from pointsman.kernel import attributes as nla
from pointsman.kernel import ipset, ipvs
from pointsman.kernel.ipset import decode_listing, encode_entries
from pointsman.kernel.ipvs_objects import (
    PERSISTENT,
    SCHEDULER_2,
    RealKey,
    ServerCounters,
    SetEntry,
    SetHeader,
    SetType,
    VirtualKey,
    VirtualServer,
)
from pointsman.model.addresses import Family

STATS = (
    "60000a000800010000000000080002000000000008000300000000000c000400000000000000000004000b000c0005000000000000000000"
    "080006000000000008000700000000000800080000000000080009000000000008000a0000000000"
)
STATS64 = (
    "a0000c000c000100050000000000000004000b000c000200070000000000000004000b000c000300080000000000000004000b00"
    "0c0004000000000001000000" + "04000b000c000500090000000000000004000b000c000600000000000000000004000b00"
    "0c000700000000000000000004000b000c000800000000000000000004000b000c000900000000000000000004000b00"
    "0c000a000000000000000000"
)
TCP_SERVICE = (
    "010100005401010006000100020000000600020006000000140003000a6000010000000000000000000000000600040001bb0000"
    "070006006d6800000c00070013000000ffffffff08000800302a000008000900ffffffff" + STATS + STATS64
)
UDP6_SERVICE = (
    "0101000054010100060001000a000000060002001100000014000300fd00001000960000000000000000000a0600040000350000"
    "07000600727200000c00070002000000ffffffff08000800000000000800090080000000" + STATS + STATS64
)
MARK_SERVICE = (
    "010100003c0101000600010002000000080005000700000007000600727200000c00070002000000ffffffff"
    "080008000000000008000900ffffffff"
)
TCP_DESTINATION = (
    "050100007c010200140001000af4010500000000000000000000000006000200192b00000800030000000000080004000100000005000d00"
    "0000000006000e000000000006000f0000000000080005000000000008000600000000000800070003000000080008000200000008000900"
    "0000000006000b0002000000"
)
UDP6_DESTINATION = (
    "050100007c01020014000100fd0000100244000100000000000000050600020014e90000080003000000000008000400000000000500"
    "0d000000000006000e000000000006000f000000000008000500000000000800060000000000080007000000000008000800000000000800"
    "09000000000006000b000a000000"
)
BITMAP_SET = (
    "0200000005000100060000000600020042000000100003006269746d61703a706f727400050005000000000005000400030000002c000780"
    "060004400000000006000540ffff0000080019400000000008001a40000020480800184000000001100008800c0007800600044075800000"
)
PORT_SET = (
    "020000000500010006000000060002005000000011000300686173683a69702c706f727400000000050005000200000005000400060000003c"
    "00078008001240000004000800134000010000050015000c0000000800114088efe986080019400000000008001a40000000f00800184000"
    "000001240008802000078"
    "00c000180080001000a6000010600044001bb00000500070006000000"
)
NET_SET = (
    "020000000500010006000000060002004e00000015000300686173683a69702c706f72742c6e657400000000050005000a0000000500040008"
    "0000003c00078008001240000004000800134000010000050015000c0000000800114012f4489b080019400000000008001a400000054808"
    "00184000000001500008804c0007801800018014000200fd0000000000000000000000000000011800148014000200fd0000300000000000"
    "00000000000000060004400035000005001500400000000500070011000000"
)
IP_SET = (
    "020000000500010006000000060002004900000014000300686173683a69702c706f72742c697000050005000200000005000400060000003c"
    "00078008001240000004000800134000010000050015000c00000008001140a46230df080019400000000008001a40000001000800184000"
    "000001300008802c0007800c000180080001000af401050c001480080001000af4010506000440005000000500070084000000"
)

KEY = VirtualKey(6, packed("10.96.0.1"), 443)
SERVER = VirtualServer(KEY, "mh", PERSISTENT | SCHEDULER_2, 10800)


def _with_length(text: str) -> bytes:
    """A recorded message cut short after the attributes that matter: its one outer attribute gets its true length."""
    data = bytearray.fromhex(text)
    data[4:6] = (len(data) - 4).to_bytes(2, "little")
    return bytes(data)


def test_a_listed_virtual_server_is_read_with_its_64_bit_counters() -> None:
    assert ipvs.decode_virtual_server(bytes.fromhex(TCP_SERVICE)) == (
        SERVER,
        ServerCounters(5, 7, 8, 1 << 32, 9),
    )


def test_a_listed_ipv6_server_has_no_affinity_and_no_internal_flags() -> None:
    found = ipvs.decode_virtual_server(bytes.fromhex(UDP6_SERVICE))
    assert found is not None
    assert found[0] == VirtualServer(VirtualKey(17, packed("fd00:10:96::a"), 53), "rr")


def test_a_server_for_a_firewall_mark_is_none_of_ours() -> None:
    assert ipvs.decode_virtual_server(_with_length(MARK_SERVICE)) is None


def test_virtual_servers_are_compared_without_regard_to_their_counters() -> None:
    six = VirtualServer(VirtualKey(17, packed("fd00:10:96::a"), 53), "rr")
    listed = [bytes.fromhex(TCP_SERVICE), bytes.fromhex(UDP6_SERVICE), _with_length(MARK_SERVICE)]
    assert ipvs.diff_listing([*listed, listed[0]], [SERVER, six]) == ([], [])
    gone = VirtualServer(VirtualKey(6, packed("10.96.0.9"), 80), "rr")
    assert ipvs.diff_listing(listed, [SERVER, six, gone]) == ([], [gone])
    assert ipvs.diff_listing(listed, [SERVER]) == ([six], [])


@pytest.mark.parametrize("text", [TCP_SERVICE, UDP6_SERVICE])
def test_a_digest_is_of_names_and_settings_and_of_no_counters(text: str) -> None:
    payload = bytes.fromhex(text)
    settings_end = payload.index(bytes.fromhex(STATS))
    for position in range(8, len(payload)):
        touched = payload[:position] + bytes((payload[position] ^ 1,)) + payload[position + 1 :]
        assert (ipvs.compute_digest([touched]) != ipvs.compute_digest([payload])) is (
            position < settings_end
        ), position


@pytest.mark.parametrize("change", [{"scheduler": "rr"}, {"flags": PERSISTENT}, {"timeout": 60}])
def test_a_changed_setting_of_a_virtual_server_is_seen(change: dict[str, Any]) -> None:
    assert ipvs.diff_listing([bytes.fromhex(TCP_SERVICE)], [SERVER._replace(**change)]) == ([SERVER], [])


def test_a_kernel_that_describes_virtual_servers_in_another_order_is_understood() -> None:
    content = nla.parse_attributes(
        nla.parse_attributes(bytes.fromhex(TCP_SERVICE), ipvs.HEADER_LENGTH)[ipvs.ATTR_SERVICE]
    )
    mixed = b"".join(nla.pack_attribute(kind, content[kind]) for kind in sorted(content, reverse=True))
    payload = bytes.fromhex(TCP_SERVICE)[: ipvs.HEADER_LENGTH] + nla.pack_nested(ipvs.ATTR_SERVICE, mixed)
    assert ipvs.diff_listing([payload], [SERVER]) == ([], [])


def test_listed_real_servers_carry_weight_and_connections() -> None:
    real = ipvs.decode_real_server(_with_length(TCP_DESTINATION), socket.AF_INET)
    assert (real.key, real.weight, real.active, real.inactive, real.connections) == (
        RealKey(packed("10.244.1.5"), 6443),
        1,
        3,
        2,
        5,
    )
    real = ipvs.decode_real_server(_with_length(UDP6_DESTINATION), socket.AF_INET6)
    assert (real.key, real.weight) == (RealKey(packed("fd00:10:244:1::5"), 5353), 0)


def test_what_identifies_and_sets_up_a_server_is_sent_as_the_kernel_lists_it() -> None:
    listed = nla.parse_attributes(
        nla.parse_attributes(bytes.fromhex(TCP_SERVICE), ipvs.HEADER_LENGTH)[ipvs.ATTR_SERVICE]
    )
    sent = nla.parse_attributes(
        nla.parse_attributes(ipvs.encode_service(ipvs.CMD_NEW_SERVICE, SERVER), ipvs.HEADER_LENGTH)[
            ipvs.ATTR_SERVICE
        ]
    )
    for number in (ipvs.SVC_AF, ipvs.SVC_PROTOCOL, ipvs.SVC_ADDR, ipvs.SVC_PORT, ipvs.SVC_SCHEDULER):
        assert sent[number] == listed[number]
    for number in (ipvs.SVC_TIMEOUT, ipvs.SVC_NETMASK):
        assert sent[number] == listed[number]
    hashed = (PERSISTENT | SCHEDULER_2 | 2).to_bytes(4, "little")
    assert listed[ipvs.SVC_FLAGS][:4] == hashed, "the kernel adds a flag of its own"
    assert sent[ipvs.SVC_FLAGS] == (PERSISTENT | SCHEDULER_2).to_bytes(4, "little") + b"\xff" * 4


def test_real_servers_are_sent_masqueraded_and_without_thresholds() -> None:
    real = RealKey(packed("10.244.1.5"), 6443)
    payload = ipvs.encode_destination(ipvs.CMD_SET_DEST, ipvs.encode_service_id(KEY), real, 1)
    assert payload[0] == ipvs.CMD_SET_DEST
    fields = nla.parse_attributes(payload, ipvs.HEADER_LENGTH)
    sent = nla.parse_attributes(fields[ipvs.ATTR_DEST])
    listed = nla.parse_attributes(
        nla.parse_attributes(_with_length(TCP_DESTINATION), ipvs.HEADER_LENGTH)[ipvs.ATTR_DEST]
    )
    for number in sent:
        assert sent[number] == listed[number]
    assert nla.parse_attributes(fields[ipvs.ATTR_SERVICE])[ipvs.SVC_PORT] == b"\x01\xbb"


def test_listed_sets_are_read_with_their_counts() -> None:
    found = decode_listing(bytes.fromhex(text) for text in (BITMAP_SET, PORT_SET, NET_SET, IP_SET))
    assert found == [
        (SetHeader("B", SetType.BITMAP_PORT, None, 0, 0, 1), [SetEntry(port=30080)]),
        (
            SetHeader("P", SetType.HASH_IP_PORT, Family.IPV4, 65536, 0, 1),
            [SetEntry(packed("10.96.0.1"), 6, 443)],
        ),
        (
            SetHeader("N", SetType.HASH_IP_PORT_NET, Family.IPV6, 65536, 0, 1),
            [SetEntry(packed("fd00::1"), 17, 53, packed("fd00:30::"), 64)],
        ),
        (
            SetHeader("I", SetType.HASH_IP_PORT_IP, Family.IPV4, 65536, 0, 1),
            [SetEntry(packed("10.244.1.5"), 132, 80, packed("10.244.1.5"))],
        ),
    ]


def test_the_second_message_of_a_long_set_names_no_type() -> None:
    entry = nla.pack_nested(ipset.ATTR_DATA, ipset.encode_entry(SetEntry(packed("10.96.0.2"), 6, 80)))
    second = bytes(4) + nla.pack_text(ipset.ATTR_NAME, "P") + nla.pack_nested(ipset.ATTR_ENTRIES, entry)
    found = decode_listing((bytes.fromhex(PORT_SET), second))
    assert [entries for _, entries in found] == [
        [SetEntry(packed("10.96.0.1"), 6, 443)],
        [SetEntry(packed("10.96.0.2"), 6, 80)],
    ]


def test_sets_of_foreign_types_are_overlooked() -> None:
    foreign = bytes(4) + nla.pack_text(ipset.ATTR_NAME, "X") + nla.pack_text(ipset.ATTR_TYPE, "hash:mac")
    assert decode_listing((foreign,)) == []


def test_entries_are_sent_as_the_kernel_lists_them() -> None:
    for text, kind in (
        (PORT_SET, SetType.HASH_IP_PORT),
        (NET_SET, SetType.HASH_IP_PORT_NET),
        (BITMAP_SET, SetType.BITMAP_PORT),
    ):
        listed = nla.parse_attributes(nla.parse_attributes(bytes.fromhex(text), 4)[ipset.ATTR_ENTRIES])[
            ipset.ATTR_DATA
        ]
        entry = ipset.decode_entry(listed, kind)
        sent = ipset.encode_entry(entry)
        assert nla.parse_attributes(sent).keys() == nla.parse_attributes(listed).keys()
        assert ipset.decode_entry(sent, kind) == entry


def test_many_entries_share_a_message_and_have_line_numbers() -> None:
    message = encode_entries(ipset.CMD_ADD, "P", [SetEntry(port=1), SetEntry(port=2)])
    assert message.kind == 0x0609
    fields = nla.parse_attributes(message.payload, 4)
    assert nla.parse_text(fields[ipset.ATTR_NAME]) == "P"
    lines = [
        nla.parse_attributes(data)[ipset.DATA_LINE]
        for _, data in nla.iter_attributes(fields[ipset.ATTR_ENTRIES])
    ]
    assert lines == [b"\0\0\0\1", b"\0\0\0\2"]


def test_values_print_as_the_tools_write_them() -> None:
    assert KEY.option == "-t 10.96.0.1:443"
    assert VirtualKey(132, packed("fd00::1"), 80).option == "--sctp-service [fd00::1]:80"
    assert str(SetEntry(packed("10.0.0.1"), 6, 80, packed("10.0.0.0"), 8)) == "10.0.0.1,tcp:80,10.0.0.0/8"
    assert str(SetEntry(port=30080)) == "30080"
    assert str(SetEntry(packed("fd00::1"))) == "fd00::1"
