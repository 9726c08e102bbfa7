"""Reading and deleting flows in a real kernel, checked with the conntrack tool and pyroute2."""

from __future__ import annotations

import errno
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kernel.conntrack_flows import add_flows, answer_flow

from pointsman.errors import KernelError
from pointsman.kernel import attributes as nla
from pointsman.kernel.conntrack import ConntrackTable, DeadlinePassed
from pointsman.kernel.tracked_flows import Flow, FlowQuery
from pointsman.lab.netns import Namespace
from pointsman.model.addresses import Family

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.skipif(
        shutil.which("conntrack") is None, reason="the conntrack tool is the independent reader"
    ),
]


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    space = Namespace()
    space.run(["ip", "link", "set", "lo", "up"])
    with space.entered():
        yield space
    space.close()


def insert(space: Namespace, *arguments: str) -> None:
    space.run(["conntrack", "-I", "-t", "300", *arguments])


def udp(space: Namespace, source: str, to: str, answering: str = "", *more: str) -> None:
    """One UDP flow; each side is `address port`."""
    (source_address, source_port), (address, port) = source.split(), to.split()
    reply_address, reply_port = (answering or to).split()
    insert(
        space,
        *("-p", "udp", "-s", source_address, "--sport", source_port, "-d", address, "--dport", port),
        *("-r", reply_address, "--reply-port-src", reply_port),
        *("-q", source_address, "--reply-port-dst", source_port, *more),
    )


def everything(_to: bytes, _port: int, _by: bytes, _by_port: int) -> bool:
    return True


def listed(space: Namespace, *arguments: str) -> list[str]:
    return space.run(["conntrack", "-L", *arguments]).splitlines()


def packed(text: str) -> bytes:
    return socket.inet_pton(socket.AF_INET6 if ":" in text else socket.AF_INET, text)


def test_a_flow_is_read_exactly_as_the_conntrack_tool_wrote_it(namespace: Namespace) -> None:
    udp(namespace, "10.0.0.1 1000", "10.96.0.10 53", "10.244.0.5 5353")
    udp(namespace, "fd00::1 1001", "fd00::10 53", "fd00::5 5353")
    with ConntrackTable(Family.IPV4) as table:
        (flow,) = table.list_flows(FlowQuery(17), everything)
    assert flow[:9] == (
        *(17, packed("10.0.0.1"), 1000, packed("10.96.0.10"), 53),
        *(packed("10.244.0.5"), 5353, packed("10.0.0.1"), 1000),
    )
    assert str(flow) == "10.0.0.1:1000 -> 10.96.0.10:53 answered by 10.244.0.5:5353"
    with ConntrackTable(Family.IPV6) as table:
        (flow6,) = table.list_flows(FlowQuery(17), everything)
    assert flow6[1:7] == (packed("fd00::1"), 1001, packed("fd00::10"), 53, packed("fd00::5"), 5353)


def test_pyroute2_reads_the_same_flows(namespace: Namespace) -> None:
    from pyroute2 import NFCTSocket

    for number in range(20):
        udp(namespace, f"10.0.0.{number + 1} {1000 + number}", "10.96.0.10 53", f"10.244.0.{number + 1} 53")
    with NFCTSocket() as reader:
        theirs = set()
        for message in reader.dump():
            reply = message.get_attr("CTA_TUPLE_REPLY")
            original = message.get_attr("CTA_TUPLE_ORIG")
            theirs.add(
                (
                    original.get_attr("CTA_TUPLE_IP").get_attr("CTA_IP_V4_SRC"),
                    original.get_attr("CTA_TUPLE_PROTO").get_attr("CTA_PROTO_SRC_PORT"),
                    reply.get_attr("CTA_TUPLE_IP").get_attr("CTA_IP_V4_SRC"),
                )
            )
    with ConntrackTable(Family.IPV4) as table:
        ours = {
            (socket.inet_ntoa(f.source), f.source_port, socket.inet_ntoa(f.reply_source))
            for f in table.list_flows(FlowQuery(17), everything)
        }
    assert ours == theirs
    assert len(ours) == 20


@pytest.mark.parametrize("family", list(Family), ids=lambda family: family.value)
def test_queries_select_by_protocol_address_and_port(namespace: Namespace, family: Family) -> None:
    base = "10.96.0.1" if family is Family.IPV4 else "fd00::1"
    client = "10.0.0.1" if family is Family.IPV4 else "fd00::99"
    for last in (0, 1):
        for port in (53, 54):
            udp(namespace, f"{client} {1000 + last}", f"{base}{last} {port}")
    insert(
        namespace,
        *("-p", "tcp", "-s", client, "-d", f"{base}0", "--sport", "1", "--dport", "53"),
        *("--state", "ESTABLISHED", "-u", "SEEN_REPLY"),
    )

    def found(query: FlowQuery) -> set[tuple[bytes, int]]:
        return {(f.destination, f.destination_port) for f in table.list_flows(query, everything)}

    first, second = packed(f"{base}0"), packed(f"{base}1")
    with ConntrackTable(family) as table:
        assert found(FlowQuery(17, first, 53)) == {(first, 53)}
        assert found(FlowQuery(17, None, 54)) == {(first, 54), (second, 54)}
        assert found(FlowQuery(17, second, None)) == {(second, 53), (second, 54)}
        assert len(found(FlowQuery(17))) == 4
        assert found(FlowQuery(6)) == {(first, 53)}
        assert found(FlowQuery(132)) == set()
        assert {
            f.destination_port
            for f in table.list_flows(FlowQuery(17), lambda _to, port, _by, _by_port: port == 53)
        } == {53}


def ignored(_family: Family, _query: FlowQuery) -> bytes:
    """The filter as a kernel sees it that knows none."""
    return b""


def test_a_kernel_that_ignores_or_refuses_the_filter_gives_the_same_answer(namespace: Namespace) -> None:
    udp(namespace, "10.0.0.1 1000", "10.96.0.10 53")
    udp(namespace, "10.0.0.1 1000", "10.96.0.11 53")
    query = FlowQuery(17, packed("10.96.0.10"), 53)
    unknown_flag = nla.pack_nested(25, nla.pack_u32(1, 1 << 31))
    with (
        ConntrackTable(Family.IPV4) as table,
        ConntrackTable(Family.IPV4, ignored) as old,
        ConntrackTable(Family.IPV4, lambda _family, _query: nla.pack_nested(1) + unknown_flag) as strict,
    ):
        filtered = table.list_flows(query, everything)
        assert old.list_flows(query, everything) == filtered
        assert strict.list_flows(query, everything) == filtered
    assert len(filtered) == 1


def handshake(space: Namespace, source_port: int, *more: str) -> None:
    """A TCP flow from 10.0.0.1 to 10.96.0.10:80, not translated."""
    insert(
        space,
        *("-p", "tcp", "-s", "10.0.0.1", "--sport", str(source_port), "-d", "10.96.0.10", "--dport", "80"),
        *(more or ("--state", "SYN_SENT")),
    )


def test_flows_without_a_reply_can_be_asked_for(namespace: Namespace) -> None:
    handshake(namespace, 1000)
    handshake(namespace, 1001, "--state", "ESTABLISHED", "-u", "SEEN_REPLY")
    with ConntrackTable(Family.IPV4) as table, ConntrackTable(Family.IPV4, ignored) as old:
        both = {flow.source_port: flow.replied for flow in table.list_flows(FlowQuery(6), everything)}
        assert both == {1000: False, 1001: True}
        query = FlowQuery(6, packed("10.96.0.10"), 80, unreplied=True)
        assert [flow.source_port for flow in table.list_flows(query, everything)] == [1000]
        assert [flow.source_port for flow in old.list_flows(query, everything)] == [1000]


def test_a_flow_answered_replaced_or_ended_since_it_was_listed_is_no_longer_unreplied(
    namespace: Namespace,
) -> None:
    for source_port in (1000, 1001, 1002):
        handshake(namespace, source_port)
    with ConntrackTable(Family.IPV4) as table:
        listed_before = sorted(table.list_flows(FlowQuery(6, unreplied=True), everything))
        assert table.filter_unreplied(listed_before) == listed_before
        answer_flow(Family.IPV4, listed_before[0])
        namespace.run(["conntrack", "-D", "-p", "tcp", "--sport", "1001"])
        replaced = listed_before[2]._replace(id=b"\0\0\0\1")
        assert table.filter_unreplied([*listed_before[:2], replaced]) == []
        assert table.filter_unreplied(listed_before[2:]) == listed_before[2:]
        assert table.filter_unreplied([]) == []


def test_exactly_the_named_flows_are_deleted(namespace: Namespace) -> None:
    for port in range(1000, 1010):
        udp(namespace, f"10.0.0.1 {port}", "10.96.0.10 53", "10.244.0.5 53")
    with ConntrackTable(Family.IPV4) as table:
        flows = table.list_flows(FlowQuery(17), everything)
        doomed = [flow for flow in flows if flow.source_port % 2]
        assert table.delete(doomed) == 5
        assert table.delete(doomed) == 0
    assert sorted(line.split("sport=")[1].split()[0] for line in listed(namespace)) == [
        "1000",
        "1002",
        "1004",
        "1006",
        "1008",
    ]


def test_a_flow_that_was_replaced_meanwhile_is_spared(namespace: Namespace) -> None:
    udp(namespace, "10.0.0.1 1000", "10.96.0.10 53", "10.244.0.5 53")
    with ConntrackTable(Family.IPV4) as table:
        old = table.list_flows(FlowQuery(17), everything)
        namespace.run(["conntrack", "-D", "-p", "udp"])
        udp(namespace, "10.0.0.1 1000", "10.96.0.10 53", "10.244.0.6 53")
        assert table.delete([old[0]._replace(id=b"\0\0\0\1")]) == 0
    assert len(listed(namespace)) == 1


def test_flows_of_other_zones_are_not_shown(namespace: Namespace) -> None:
    udp(namespace, "10.0.0.1 1000", "10.96.0.10 53", "10.244.0.5 53", "-w", "5")
    assert len(listed(namespace)) == 1
    with ConntrackTable(Family.IPV4) as table:
        assert table.list_flows(FlowQuery(17), everything) == []


def test_sctp_flows_are_read_and_deleted(namespace: Namespace) -> None:
    try:
        insert(
            namespace,
            *("-p", "sctp", "-s", "10.0.0.1", "-d", "10.96.0.10", "--sport", "7", "--dport", "9"),
            *("--orig-vtag", "1", "--reply-vtag", "2", "--state", "ESTABLISHED"),
        )
    except Exception as error:  # noqa: BLE001
        pytest.skip(f"no SCTP in this kernel's conntrack: {error}")
    with ConntrackTable(Family.IPV4) as table:
        (flow,) = table.list_flows(FlowQuery(132, packed("10.96.0.10"), 9), everything)
        assert table.delete([flow]) == 1
    assert listed(namespace) == []


@pytest.mark.parametrize("family", list(Family), ids=lambda family: family.value)
def test_thousands_of_flows_are_listed_completely_and_deleted(namespace: Namespace, family: Family) -> None:
    limit = int(Path("/proc/sys/net/netfilter/nf_conntrack_max").read_text())
    count = min(6000, limit // 2)
    client, service, pod = (
        (packed("10.0.0.1"), packed("10.96.0.10"), packed("10.244.0.5"))
        if family is Family.IPV4
        else (packed("fd00::1"), packed("fd00::10"), packed("fd00::5"))
    )
    flows = [Flow(17, client, 1 + n, service, 53, pod, 53, client, 1 + n, b"") for n in range(count)]
    add_flows(family, flows)
    with ConntrackTable(family) as table:
        found = table.list_flows(FlowQuery(17, service, 53), everything)
        assert {flow._replace(id=b"") for flow in found} == set(flows)
        assert table.delete(found) == count
        assert table.list_flows(FlowQuery(17), everything) == []


def test_a_passed_deadline_stops_listing_and_deleting(namespace: Namespace) -> None:
    udp(namespace, "10.0.0.1 1000", "10.96.0.10 53")
    with ConntrackTable(Family.IPV4) as table:
        flows = table.list_flows(FlowQuery(17), everything)
        with pytest.raises(DeadlinePassed, match="0 of 1 deletions"):
            table.delete(flows, expired=lambda: True)
        with pytest.raises(DeadlinePassed):
            table.list_flows(FlowQuery(17), everything, expired=lambda: True)
    assert len(listed(namespace)) == 1


def test_without_privileges_the_error_says_what_is_missing(namespace: Namespace) -> None:
    udp(namespace, "10.0.0.1 1000", "10.96.0.10 53")
    child = os.fork()
    if child == 0:
        os.setresuid(65534, 65534, 65534)
        try:
            with ConntrackTable(Family.IPV4) as table:
                table.list_flows(FlowQuery(17), everything)
        except KernelError as error:
            os._exit(0 if error.errno == errno.EPERM and "CAP_NET_ADMIN" in str(error) else 2)
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
