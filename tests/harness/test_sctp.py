from __future__ import annotations

import struct

from tests.harness import sctp


def test_checksum_is_crc32c() -> None:
    assert sctp.crc32c(b"123456789") == 0xE3069283


def test_a_packet_carries_the_checksum_of_itself_with_the_field_zeroed() -> None:
    packet = sctp.init(40000, 80)
    (checksum,) = struct.unpack_from("<I", packet, 8)
    assert checksum == sctp.crc32c(packet[:8] + bytes(4) + packet[12:])


def test_the_cookie_of_an_answer_is_found_and_padding_is_not_part_of_it() -> None:
    answer = sctp.init_ack(80, 40000, 0x5EED, b"pod1 10.0.0.1\n")
    assert len(answer) % 4 == 0
    assert sctp.cookie_of(answer) == (80, 40000, b"pod1 10.0.0.1\n")


def test_anything_but_an_answer_has_no_cookie() -> None:
    assert sctp.cookie_of(sctp.init(40000, 80)) is None
    assert sctp.cookie_of(b"") is None
