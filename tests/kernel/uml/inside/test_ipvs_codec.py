"""Our netlink codecs against the kernel, with ipvsadm, ipset and pyroute2 as independent readers."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Sequence

import pytest
from pyroute2 import IPRoute
from tests.kernel.uml.inside.tools import IPTABLES, Dump

from pointsman.errors import Busy, KernelError
from pointsman.kernel import ipvs
from pointsman.kernel.ipset import IpsetSocket
from pointsman.kernel.ipvs import IpvsSocket
from pointsman.kernel.ipvs_objects import (
    PERSISTENT,
    SCHEDULER_2,
    RealKey,
    SetEntry,
    SetHeader,
    SetType,
    VirtualKey,
    VirtualServer,
)
from pointsman.kernel.netlink import Reply
from pointsman.kernel.rtnl import RouteSocket, list_local_addresses
from pointsman.lab.netns import Namespace
from pointsman.model.addresses import Family, address_from_text


def packed(text: str) -> bytes:
    address = address_from_text(text)
    assert address is not None
    return address


FOUR = VirtualServer(VirtualKey(6, packed("10.0.0.1"), 80), "mh", PERSISTENT | SCHEDULER_2, 300)
SIX = VirtualServer(VirtualKey(17, packed("fd00::1"), 53), "rr")
SCTP = VirtualServer(VirtualKey(132, packed("10.0.0.2"), 3868), "sh")


@pytest.fixture
def sock(node: Namespace) -> Iterator[IpvsSocket]:
    opened = IpvsSocket()
    yield opened
    opened.close()


@pytest.fixture
def sets(node: Namespace) -> Iterator[IpsetSocket]:
    opened = IpsetSocket()
    yield opened
    opened.close()


def test_servers_are_added_altered_and_removed_as_ipvsadm_shows(sock: IpvsSocket, dump: Dump) -> None:
    real, other = RealKey(packed("10.1.0.1"), 8080), RealKey(packed("10.1.0.2"), 8080)
    service = ipvs.encode_service_id(FOUR.key)
    replies = sock.apply(
        [
            *(ipvs.encode_service(ipvs.CMD_NEW_SERVICE, server) for server in (FOUR, SIX, SCTP)),
            ipvs.encode_destination(ipvs.CMD_NEW_DEST, service, real, 1),
            ipvs.encode_destination(ipvs.CMD_NEW_DEST, service, other, 0),
            ipvs.encode_destination(
                ipvs.CMD_NEW_DEST, ipvs.encode_service_id(SIX.key), RealKey(packed("fd01::2"), 53), 1
            ),
        ]
    )
    assert [reply.errno for reply in replies] == [0] * 6
    assert sorted(dump.servers().splitlines()) == sorted(
        [
            "-A -t 10.0.0.1:80 -s mh -p 300 -b mh-port",
            "-a -t 10.0.0.1:80 -r 10.1.0.1:8080 -m -w 1",
            "-a -t 10.0.0.1:80 -r 10.1.0.2:8080 -m -w 0",
            "-A -u [fd00::1]:53 -s rr",
            "-a -u [fd00::1]:53 -r [fd01::2]:53 -m -w 1",
            "-A --sctp-service 10.0.0.2:3868 -s sh",
        ]
    )
    assert set(sock.list_services()) == {FOUR, SIX, SCTP}
    assert {r.key: r.weight for r in sock.list_destinations(FOUR.key)} == {real: 1, other: 0}
    plain = FOUR._replace(scheduler="rr", flags=0, timeout=0)
    replies = sock.apply(
        [
            ipvs.encode_service(ipvs.CMD_SET_SERVICE, plain),
            ipvs.encode_destination(ipvs.CMD_SET_DEST, service, other, 5),
            ipvs.encode_destination_removal(service, real),
            ipvs.encode_service_removal(SIX.key),
            ipvs.encode_service_removal(SCTP.key),
        ]
    )
    assert [reply.errno for reply in replies] == [0] * 5
    assert dump.servers().splitlines() == [
        "-A -t 10.0.0.1:80 -s rr",
        "-a -t 10.0.0.1:80 -r 10.1.0.2:8080 -m -w 5",
    ]
    dump("ipvsadm", "-C")
    assert sock.list_services() == {}


def test_what_ipvsadm_made_is_read(sock: IpvsSocket, dump: Dump) -> None:
    dump("ipvsadm", "-A", "-t", "10.9.9.9:443", "-s", "lc", "-p", "77")
    dump("ipvsadm", "-a", "-t", "10.9.9.9:443", "-r", "10.1.1.1:8443", "-m", "-w", "3")
    dump("ipvsadm", "-A", "-f", "7", "-s", "rr")
    key = VirtualKey(6, packed("10.9.9.9"), 443)
    assert set(sock.list_services()) == {VirtualServer(key, "lc", PERSISTENT, 77)}
    (real,) = sock.list_destinations(key)
    assert (real.key, real.weight, real.connections) == (RealKey(packed("10.1.1.1"), 8443), 3, 0)


def test_each_refusal_among_many_requests_is_told(sock: IpvsSocket) -> None:
    payloads = [ipvs.encode_service(ipvs.CMD_NEW_SERVICE, SIX)] * 2 + [
        ipvs.encode_service_removal(SCTP.key),
        ipvs.encode_service(ipvs.CMD_NEW_SERVICE, SCTP._replace(scheduler="nope")),
        ipvs.encode_service(ipvs.CMD_NEW_SERVICE, SCTP),
    ]
    errors = [reply.errno for reply in sock.apply(payloads)]
    assert errors == [0, errno.EEXIST, errno.ESRCH, errno.ENOENT, 0]


def test_thousands_of_requests_go_through(sock: IpvsSocket) -> None:
    keys = [VirtualKey(6, (0x0A600000 + n).to_bytes(4, "big"), 80) for n in range(3000)]
    payloads = [ipvs.encode_service(ipvs.CMD_NEW_SERVICE, VirtualServer(key, "rr")) for key in keys]
    assert all(reply.ok for reply in sock.apply(payloads))
    assert {server.key for server in sock.list_services()} == set(keys)


def test_schedulers_are_probed_without_a_trace(sock: IpvsSocket, dump: Dump) -> None:
    assert sock.has_scheduler("wrr")
    assert not sock.has_scheduler("nope")
    assert dump.servers() == ""


def test_probes_of_two_ip_families_at_the_same_time_do_not_collide(sock: IpvsSocket) -> None:
    class Interrupted(IpvsSocket):
        def apply(self, payloads: Sequence[bytes]) -> list[Reply]:
            added = super().apply(payloads[:1])
            assert sock.has_scheduler("rr")
            return added + super().apply(payloads[1:])

    with contextlib.closing(Interrupted()) as other:
        assert other.has_scheduler("rr")


def test_timeouts_are_set_one_by_one(sock: IpvsSocket, dump: Dump) -> None:
    def shown() -> list[str]:
        return dump("ipvsadm", "-L", "--timeout").split()[-3:]

    tcp, _, udp = shown()
    sock.set_timeouts(tcp_fin=33)
    assert shown() == [tcp, "33", udp]


@pytest.mark.parametrize(
    ("header", "entries", "shown"),
    [
        (SetHeader("T", SetType.BITMAP_PORT), [SetEntry(port=80), SetEntry(port=30000)], ["80", "30000"]),
        (SetHeader("T", SetType.HASH_IP, Family.IPV6), [SetEntry(packed("fd00::1"))], ["fd00::1"]),
        (
            SetHeader("T", SetType.HASH_IP_PORT, Family.IPV4),
            [SetEntry(packed("10.0.0.1"), protocol, 80) for protocol in (6, 17, 132)],
            ["10.0.0.1,tcp:80", "10.0.0.1,udp:80", "10.0.0.1,sctp:80"],
        ),
        (
            SetHeader("T", SetType.HASH_IP_PORT_IP, Family.IPV6),
            [SetEntry(packed("fd00::1"), 6, 80, packed("fd00::2"))],
            ["fd00::1,tcp:80,fd00::2"],
        ),
        (
            SetHeader("T", SetType.HASH_IP_PORT_NET, Family.IPV4),
            [
                SetEntry(packed("10.0.0.1"), 6, 80, packed("10.0.0.0"), 8),
                SetEntry(packed("10.0.0.1"), 6, 80, packed("192.0.2.1"), 32),
            ],
            ["10.0.0.1,tcp:80,10.0.0.0/8", "10.0.0.1,tcp:80,192.0.2.1"],
        ),
    ],
    ids=lambda value: value.type.value if isinstance(value, SetHeader) else "",
)
def test_entries_go_in_and_out_as_ipset_shows(
    sets: IpsetSocket, dump: Dump, header: SetHeader, entries: list[SetEntry], shown: str
) -> None:
    sets.create(header)
    sets.create(header)
    assert sets.add("T", entries) == {}
    assert sets.add("T", entries) == {}
    added = {line.split()[2] for line in dump.sets().splitlines() if line.startswith("add")}
    assert added == set(shown)
    assert sets.list_entries(("T",)) == {"T": set(entries)}
    assert sets.list_headers()["T"].elements == len(entries)
    assert sets.delete("T", entries[:1]) == {}
    assert sets.delete("T", entries[:1]) == {}
    assert sets.list_entries(("T",)) == {"T": set(entries[1:])}
    dump("ipset", "flush", "T")
    assert sets.list_entries(("T",)) == {"T": set()}
    sets.destroy("T")
    assert dump.sets() == ""


def test_a_long_set_is_listed_completely(sets: IpsetSocket) -> None:
    sets.create(SetHeader("T", SetType.HASH_IP_PORT, Family.IPV4))
    entries = {SetEntry((0x0A600000 + n).to_bytes(4, "big"), 6, 80) for n in range(5000)}
    assert sets.add("T", entries) == {}
    assert sets.list_entries(("T",))["T"] == entries


def test_a_bad_entry_is_named_and_the_others_are_added(sets: IpsetSocket) -> None:
    sets.create(SetHeader("T", SetType.HASH_IP_PORT, Family.IPV4))
    good, bad = SetEntry(packed("10.0.0.1"), 6, 80), SetEntry(packed("fd00::1"), 6, 80)
    failed = sets.add("T", [bad, good])
    assert list(failed) == [bad]
    assert "fd00::1,tcp:80" in str(failed[bad])
    assert sets.list_entries(("T",))["T"] == {good}


def test_a_set_in_use_is_busy_and_counts_its_rules(sets: IpsetSocket, dump: Dump) -> None:
    sets.create(SetHeader("T", SetType.HASH_IP, Family.IPV4))
    dump(IPTABLES, "-A", "INPUT", "-m", "set", "--match-set", "T", "src", "-j", "DROP")
    assert sets.list_headers()["T"].references == 1
    with pytest.raises(Busy, match="a rule still uses the set"):
        sets.destroy("T")


def test_a_set_of_another_type_is_not_taken_over(sets: IpsetSocket) -> None:
    sets.create(SetHeader("T", SetType.HASH_IP, Family.IPV4))
    with pytest.raises(KernelError, match="T"):
        sets.create(SetHeader("T", SetType.HASH_IP_PORT, Family.IPV4))


def test_addresses_of_the_dummy_device_as_pyroute2_sees_them(node: Namespace) -> None:
    route = RouteSocket()
    index = route.ensure_dummy("kube-ipvs0")
    assert route.ensure_dummy("kube-ipvs0") == index
    four, six = packed("10.0.0.1"), packed("fd00::5")
    replies = route.add_addresses(index, [four, six, four])
    assert [reply.errno for reply in replies] == [0, 0, errno.EEXIST]
    with IPRoute() as reader:
        seen = {
            (item.get_attr("IFA_ADDRESS"), item["prefixlen"])
            for item in reader.get_addr(index=index)
            if item["scope"] == 0
        }
    assert seen == {("10.0.0.1", 32), ("fd00::5", 128)}
    assert four in list_local_addresses(Family.IPV4)
    assert four not in list_local_addresses(Family.IPV4, exclude=("kube-ipvs0",))
    assert [r.errno for r in route.delete_addresses(index, [four, four])] == [0, errno.EADDRNOTAVAIL]
    assert route.delete_link("kube-ipvs0")
    assert not route.delete_link("kube-ipvs0")
    route.close()
