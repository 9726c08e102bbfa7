import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.model.addresses import (
    Cidr,
    Family,
    address_and_text,
    address_from_text,
    address_text,
    cidr_from_text,
    family_of,
    find_unusable_reason,
    host_port_text,
    port_from_text,
    split_host_port,
)


@pytest.mark.parametrize(
    ("text", "packed"),
    [
        ("10.0.0.1", b"\x0a\0\0\x01"),
        ("010.000.0.001", b"\x0a\0\0\x01"),
        ("::ffff:10.0.0.1", b"\x0a\0\0\x01"),
        ("::ffff:a00:1", b"\x0a\0\0\x01"),
        ("::1", bytes(15) + b"\x01"),
        ("64:ff9b::010.0.0.1", bytes.fromhex("0064ff9b0000000000000000") + b"\x0a\0\0\x01"),
    ],
)
def test_text_is_read_as_kubernetes_reads_it(text: str, packed: bytes) -> None:
    assert address_from_text(text) == packed


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10.0.0",
        "10.0.0.256",
        "10.0.0.1.2",
        "10.0.0.+1",
        "1_0.0.0.1",
        "10.0.0.\uff11",
        "fe80::1%eth0",
        "a",
        "1:2",
        " 10.0.0.1",
    ],
)
def test_what_is_not_an_address_is_none(text: str) -> None:
    assert address_from_text(text) is None


@given(st.ip_addresses(v=4))
def test_ipv4_text_round_trips(address: ipaddress.IPv4Address) -> None:
    assert address_from_text(str(address)) == address.packed
    assert address_text(address.packed) == str(address)


@given(st.ip_addresses(v=6))
def test_ipv6_text_agrees_with_the_standard_library(address: ipaddress.IPv6Address) -> None:
    packed = address_from_text(str(address))
    mapped = address.ipv4_mapped
    assert packed == (mapped.packed if mapped else address.packed)
    if mapped is None:
        assert address_text(address.packed) == str(address)


@given(st.text(max_size=60))
def test_no_text_raises(text: str) -> None:
    address_from_text(text)
    cidr_from_text(text)


@given(st.ip_addresses(), st.integers(0, 128), st.ip_addresses())
def test_ranges_agree_with_the_standard_library(
    base: ipaddress.IPv4Address | ipaddress.IPv6Address,
    prefix: int,
    probe: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    if isinstance(base, ipaddress.IPv6Address) and base.ipv4_mapped:
        return
    prefix = min(prefix, base.max_prefixlen)
    network = ipaddress.ip_network(f"{base}/{prefix}", strict=False)
    cidr = cidr_from_text(f" {base}/{prefix}\t")
    assert cidr is not None
    assert str(cidr) == str(network)
    assert cidr.contains(probe.packed) == (probe.version == base.version and probe in network)
    assert (cidr.first, cidr.last) == (int(network[0]), int(network[-1]))


def test_a_range_without_prefix_is_not_a_range() -> None:
    assert cidr_from_text("10.0.0.1") is None
    assert cidr_from_text("10.0.0.1/33") is None


def test_a_mapped_range_becomes_ipv4() -> None:
    assert cidr_from_text("::ffff:10.0.0.0/104") == Cidr(b"\x0a\0\0\0", 8)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0.0.0.0", "unspecified"),
        ("::", "unspecified"),
        ("127.1.2.3", "loopback"),
        ("::1", "loopback"),
        ("169.254.169.254", "link-local"),
        ("fe80::1", "link-local"),
        ("febf:ffff::1", "link-local"),
        ("fec0::1", None),
        ("::2", None),
        ("224.0.0.1", "multicast"),
        ("ff02::1", "multicast"),
        ("255.255.255.255", "broadcast"),
        ("10.0.0.1", None),
        ("0.0.0.1", None),
        ("192.168.1.1", None),
        ("fd00::1", None),
    ],
)
def test_special_addresses_are_never_endpoints(text: str, reason: str | None) -> None:
    address = address_from_text(text)
    assert address is not None
    assert find_unusable_reason(address) == reason


def test_host_and_port_use_brackets_for_ipv6() -> None:
    assert host_port_text(b"\x0a\0\0\x01", 80) == "10.0.0.1:80"
    assert host_port_text(bytes(15) + b"\x01", 80) == "[::1]:80"
    assert family_of(bytes(16)) is Family.IPV6


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("10.0.0.1:80", ("10.0.0.1", "80")),
        ("[::1]:80", ("::1", "80")),
        (":80", ("", "80")),
        ("name:x", ("name", "x")),
        ("10.0.0.1", None),
        ("::1:80", None),
        ("[::1]", None),
        ("[[::1]]:80", None),
    ],
)
def test_host_and_port_are_split_as_go_splits_them(text: str, parts: tuple[str, str] | None) -> None:
    assert split_host_port(text) == parts


@pytest.mark.parametrize(
    ("text", "port"),
    [("0", 0), ("65535", 65535), ("65536", None), ("", None), ("-1", None), ("٣", None), ("9" * 5000, None)],
)
def test_ports_are_numbers_up_to_65535(text: str, port: int | None) -> None:
    assert port_from_text(text) == port


@given(
    st.ip_addresses().map(str)
    | st.from_regex(r"[0-9]{1,4}(\.[0-9]{1,4}){2,4}", fullmatch=True)
    | st.from_regex(r"(::ffff:)?[0-9a-f.:]{1,12}", fullmatch=True)
)
def test_an_address_is_read_with_its_canonical_text(text: str) -> None:
    address = address_from_text(text)
    expected = None if address is None else (address, address_text(address))
    assert address_and_text(text) == expected
